"""How good and how fast an index is: recall, tuning until it is high enough, and times, by which `auto` chooses.

Times are not measured over a large pool. The scan is timed over a sample, and its time predicted for all rows. A graph
of all rows takes minutes to build, so searches are timed in a small one. Its rows fit into the processor's cache, so
the prediction is too low. A larger graph is built and timed, unless the small one is slower than the scan.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import thread_time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import BuildError
from polyrank.index_builder.index.choice import STAYS, IndexSpec, SearchTimes, choose_index, grown_hnsw, grown_scan
from polyrank.index_builder.index.faiss_index import CandidateIndex, faiss_threads
from polyrank.index_builder.index.retrieval import search
from polyrank.model import threads
from polyrank.model.representations import Additions
from polyrank.model.search.scan import Query, prepare
from polyrank.model.search.topk import longest_row, top_k

MOST_PROBES = 256
_PROBED_ROWS = 64_000_000  # by all probes together, half a minute on two cores: a large pool gets fewer probes
_LEAST_PROBES = 32
_RUNGS = 6  # steps of tuning at most
_PLACES = (10, 100)
_ROUNDING = 1e-5  # relative to the score: a row that ties with the last place counts as found

VECTORS, VECTORS_AND_WORDS = "vectors", "vectors and words"  # what a measured score is made of

# The rows of the samples that are timed. The larger graph takes 5 seconds of one core to build at D = 384.
SCANNED_ROWS = 131_072
GRAPH_ROWS = (4_096, 16_384)
_K = 10
_ROUNDS = 3

Codes = NDArray[np.float32]
Work = Callable[[Codes], object]


@dataclass(frozen=True, slots=True)
class Recall:
    """The measured recall, as the manifest records it."""

    # The share of the 10 and 100 best rows by score that are found among as many.
    at_10: float
    at_100: float
    of: str  # which score: VECTORS, or VECTORS_AND_WORDS for the sum of both
    # "given" for real contexts; "pool" for vectors of the pool, which stand for contexts of one code and must not find
    # themselves; "none" if nothing was measured, because the ranking is exact by construction.
    probes: str
    count: int  # of the probes
    # Time of retrieving and scoring one probe, in milliseconds, with reading its words if they are part of the score;
    # None if nothing was measured.
    p50_ms: float | None
    p99_ms: float | None

    def described(self, least: float) -> dict[str, float | int | str | None]:
        """The manifest's entry; `least` is the recall that was asked for."""
        return {
            "recall@10": self.at_10,
            "recall@100": self.at_100,
            "of": self.of,
            "probes": self.probes,
            "count": self.count,
            "p50_ms": self.p50_ms,
            "p99_ms": self.p99_ms,
            "min_recall": least,
        }

    def doubt(self, index: IndexSpec, least: float) -> str | None:
        """A warning if the pool's own vectors show a low recall. With given probes the build would have failed."""
        if self.at_10 >= least:
            return None
        return (
            f"recall@10 of {index.factory} is {self.at_10:.3f} on {self.count} of the pool's own vectors, below "
            f"{least:g}; give --probes with real contexts to tune the search by, or choose another --index"
        )


EXACT = Recall(1.0, 1.0, VECTORS, "none", 0, None, None)


class Probe(NamedTuple):
    """A context to search for."""

    codes: Codes  # its vectors (M, D), with the score scale multiplied in
    # Reads what words add to the score of each row; None: they do not count. Each time anew, since it is a number for
    # each row of the pool.
    read_words: Callable[[], Additions] | None = None

    def additions(self) -> Additions | None:
        """Return what words add to the scores; None: nothing."""
        return None if self.read_words is None else self.read_words()


class Probes:
    """Contexts, and the scores of their best rows by a scan of the whole matrix."""

    def __init__(self, matrix: NDArray[Any], contexts: Sequence[Probe], seed: int = 0) -> None:
        """Choose the probes and scan the matrix (N, D) for the best rows of each.

        Words count for all that are given, or for none. If none are given, rows of the matrix are drawn. Words do not
        count for these: a row's vector has not the score scale of a context's, by which the two parts are weighed.
        """
        rng = np.random.default_rng(seed)
        most = min(MOST_PROBES, max(_LEAST_PROBES, _PROBED_ROWS // len(matrix)))
        self.source = "given" if contexts else "pool"
        self.of = VECTORS_AND_WORDS if contexts and contexts[0].read_words is not None else VECTORS
        self._matrix = matrix
        chosen = rng.permutation(len(contexts) or len(matrix))[:most]
        if contexts:
            self._probes, self._own = [contexts[at] for at in chosen], [chosen[:0]] * len(chosen)
        else:
            self._probes = [Probe(np.asarray(matrix[[row]], np.float32)) for row in chosen]
            self._own = list(chosen[:, None])
        longest = longest_row(matrix)
        self._scores: list[NDArray[np.float32]] = []
        for probe, own in zip(self._probes, self._own, strict=True):
            best = top_k(matrix, probe.codes, _PLACES[-1] + len(own), longest=longest, additions=probe.additions())
            self._scores.append(best.scores[~np.isin(best.rows, own)][: _PLACES[-1]])

    def measure(self, index: CandidateIndex) -> Recall:
        """Retrieve and score every probe as the service does with a request."""
        shares, seconds = [], []
        for probe, own, best in zip(self._probes, self._own, self._scores, strict=True):
            began = time.perf_counter()
            scores = search(index, self._matrix, probe.codes, _PLACES[-1], own, probe.additions()).scores
            seconds.append(time.perf_counter() - began)
            shares.append([_share(scores, best, places) for places in _PLACES])
        at_10, at_100 = np.mean(shares, axis=0).round(6).tolist()
        p50, p99 = np.percentile(seconds, (50, 99)) * 1000
        return Recall(at_10, at_100, self.of, self.source, len(shares), round(float(p50), 3), round(float(p99), 3))


def _share(scores: NDArray[np.float32], best: NDArray[np.float32], places: int) -> float:
    """The share of the first places whose scores were found. A small pool has fewer places."""
    places = min(places, len(best))
    if places == 0:
        return 1.0
    last = best[places - 1]
    return min(int((scores >= last - _ROUNDING * max(1.0, abs(last))).sum()), places) / places


def measured(
    index: CandidateIndex, matrix: NDArray[Any], contexts: Sequence[Probe], least: float
) -> tuple[CandidateIndex, Recall]:
    """Measure an index. With given probes, tune it until recall@10 is `least`, or raise BuildError."""
    if index.is_exact and not contexts:
        return index, EXACT  # with one code, the list of the nearest rows is the ranking
    probes = Probes(matrix, contexts)
    return _tuned(index, probes, least) if contexts else (index, probes.measure(index))


def _tuned(index: CandidateIndex, probes: Probes, least: float) -> tuple[CandidateIndex, Recall]:
    """Raise the search effort step by step, each time in the way that gains more, until recall@10 is enough."""
    recall = probes.measure(index)
    for _ in range(_RUNGS):
        ways = [] if recall.at_10 >= least else index.harder()
        if not ways:
            break
        index, recall = max(((way, probes.measure(way)) for way in ways), key=lambda tried: tried[1].at_10)
    if recall.at_10 < least:
        params = ", ".join(f"{name} {value}" for name, value in index.spec.params.items())
        by = f" by {recall.of}" if recall.of != VECTORS else ""
        raise BuildError(
            f"recall@10 of {index.spec.factory} is {recall.at_10:.3f} on {recall.count} probes{by} even with {params}, "
            f"below the {least:g} asked for; choose another --index (exact misses nothing) or a lower --min-recall"
        )
    return index, recall


def time_searches(matrix: NDArray[Any], contexts: Sequence[Codes]) -> SearchTimes:
    """Time searches of samples of a matrix (N, D), and predict what they take over all of its rows.

    A context is given by its vectors (M, D), with the score scale multiplied in.
    """
    with threads.only_one(), faiss_threads(1):
        scan_sample = _spread(matrix, SCANNED_ROWS)
        scan = prepare(scan_sample)
        for rows in GRAPH_ROWS:
            graph_sample = _spread(matrix, rows)
            graph = CandidateIndex.build(choose_index("hnsw", len(graph_sample), matrix.shape[1]), graph_sample)
            by_scan, by_graph = _milliseconds(
                [lambda codes: scan.top_k([Query(codes, _K)]), partial(search, graph, graph_sample, k=_K)], contexts
            )
            times = SearchTimes(
                round(grown_scan(by_scan, len(scan_sample), len(matrix)), 3),
                round(grown_hnsw(by_graph, len(graph_sample), len(matrix)), 3),
            )
            if times.ratio > STAYS:
                break
    return times


def _spread(matrix: NDArray[Any], count: int) -> NDArray[Any]:
    """At most so many rows, evenly spread."""
    if len(matrix) <= count:
        return matrix
    return np.asarray(matrix[np.linspace(0, len(matrix) - 1, count).astype(np.int64)])


def _milliseconds(ways: Sequence[Work], contexts: Sequence[Codes]) -> list[float]:
    """Time each way in turns: the least milliseconds of each context, and their median.

    It is processor time: what other processes take does not count.
    """
    least = np.full((len(ways), len(contexts)), np.inf)
    for _ in range(_ROUNDS):
        for place, codes in enumerate(contexts):
            for way, work in enumerate(ways):
                began = thread_time()
                work(codes)
                least[way, place] = min(least[way, place], thread_time() - began)
    return [float(each) for each in np.median(least, axis=1) * 1000]
