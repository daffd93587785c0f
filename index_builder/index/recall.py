"""How much of the true ranking the retrieval path finds, how fast, and searching harder until it is enough."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import BuildError
from polyrank.index_builder.index.choice import IndexSpec
from polyrank.index_builder.index.faiss_index import RETRIEVE_K, CandidateIndex
from polyrank.index_builder.index.retrieval import retrieve

MIN_RECALL = 0.95
MOST_PROBES = 256
_SCANNED_ROWS = 64_000_000  # by all probes together: half a minute on two cores, so fewer probes in large pools
_LEAST_PROBES = 32
_RUNGS = 6
_PLACES = (10, 100)
_ROUNDING = 1e-5  # of a score, relative: rows that tie with the k-th best count as found

Codes = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Recall:
    """What was measured, as the manifest records it.

    Attributes:
        at_10, at_100: the share of the 10 and 100 best rows by score that the path finds among as many.
        probes: "given" contexts; vectors of the "pool", each as the only code of a context and without itself; or
            "none": nothing was measured, because the ranking is exact by construction.
        count: how many probes.
        p50_ms, p99_ms: of retrieving and scoring a probe; None where none was measured.
    """

    at_10: float
    at_100: float
    probes: str
    count: int
    p50_ms: float | None
    p99_ms: float | None

    def described(self, least: float) -> dict[str, float | int | str | None]:
        """For the manifest, with what was asked for."""
        return {
            "recall@10": self.at_10,
            "recall@100": self.at_100,
            "probes": self.probes,
            "count": self.count,
            "p50_ms": self.p50_ms,
            "p99_ms": self.p99_ms,
            "min_recall": least,
        }

    def doubt(self, index: IndexSpec, least: float) -> str | None:
        """What to say of a recall that the pool's own vectors show to be low; given probes would have been reached."""
        if self.at_10 >= least:
            return None
        return (
            f"recall@10 of {index.factory} is {self.at_10:.3f} on {self.count} of the pool's own vectors, below "
            f"{least:g}; give --probes with real contexts to tune the search by, or choose another --index"
        )


EXACT = Recall(1.0, 1.0, "none", 0, None, None)


class Probes:
    """Contexts, and by a scan of the whole matrix the scores that their best rows have."""

    def __init__(self, matrix: NDArray[Any], given: Sequence[Codes], seed: int = 0) -> None:
        """Choose the probes and scan for each.

        Args:
            matrix: (N, D), float16 or float32.
            given: context vectors (M, D) of each context, the score scale multiplied in; none: drawn from the matrix.
            seed: of the choice.
        """
        rng = np.random.default_rng(seed)
        most = min(MOST_PROBES, max(_LEAST_PROBES, _SCANNED_ROWS // len(matrix)))
        self.source = "given" if given else "pool"
        self._matrix = matrix
        chosen = rng.permutation(len(given) or len(matrix))[:most]
        self._codes: list[Codes]
        self._own: list[NDArray[np.int64]]
        if given:
            self._codes, self._own = [given[at] for at in chosen], [np.empty(0, np.int64)] * len(chosen)
        else:
            self._codes = [np.asarray(matrix[row][None], np.float32) for row in chosen]
            self._own = [np.array([row]) for row in chosen]
        self._scores = self._scanned()

    def measure(self, index: CandidateIndex) -> Recall:
        """Take every probe through the index, as the service takes a request."""
        from polyrank.model.search.topk import top_k  # torch: a build that measures nothing does without

        found, seconds = [], []
        for codes, own, wanted in zip(self._codes, self._own, self._scores, strict=True):
            began = time.perf_counter()
            rows = retrieve(index, codes, RETRIEVE_K, own).rows
            scores = top_k(self._matrix[rows], codes, _PLACES[-1]).scores
            seconds.append(time.perf_counter() - began)
            found.append([_share(scores, wanted, places) for places in _PLACES])
        at_10, at_100 = np.mean(found, axis=0).round(6).tolist()
        p50, p99 = np.percentile(seconds, (50, 99)) * 1000
        return Recall(at_10, at_100, self.source, len(found), round(float(p50), 3), round(float(p99), 3))

    def _scanned(self) -> list[NDArray[np.float32]]:
        from polyrank.model.search.topk import longest_row, top_k

        longest, scores = longest_row(self._matrix), []
        for codes, own in zip(self._codes, self._own, strict=True):
            best = top_k(self._matrix, codes, _PLACES[-1] + len(own), longest=longest)
            scores.append(best.scores[~np.isin(best.rows, own)][: _PLACES[-1]])
        return scores


def _share(found: NDArray[np.float32], wanted: NDArray[np.float32], places: int) -> float:
    """The share of the first places whose scores were found; a pool without so many has fewer places."""
    places = min(places, len(wanted))
    if places == 0:
        return 1.0
    last = wanted[places - 1]
    return min(int((found >= last - _ROUNDING * max(1.0, abs(last))).sum()), places) / places


def measured(
    index: CandidateIndex, matrix: NDArray[Any], given: Sequence[Codes], least: float
) -> tuple[CandidateIndex, Recall]:
    """Measure an index; with given probes also tune it until recall@10 is at least `least`.

    Raises:
        BuildError: given probes do not find as much.
    """
    if index.is_exact and not given:
        return index, EXACT  # the list of a context's only code is its ranking
    probes = Probes(matrix, given)
    return _reach(index, probes, least) if given else (index, probes.measure(index))


def _reach(index: CandidateIndex, probes: Probes, least: float) -> tuple[CandidateIndex, Recall]:
    """Search harder, a step at a time in whichever way gains more, until recall@10 is at least `least`.

    Raises:
        BuildError: it is not reached within a bounded number of steps.
    """
    recall = probes.measure(index)
    for _ in range(_RUNGS):
        ways = [] if recall.at_10 >= least else index.harder()
        if not ways:
            break
        index, recall = max(((way, probes.measure(way)) for way in ways), key=lambda each: each[1].at_10)
    if recall.at_10 < least:
        params = ", ".join(f"{name} {value}" for name, value in index.spec.params.items())
        raise BuildError(
            f"recall@10 of {index.spec.factory} is {recall.at_10:.3f} on {recall.count} probes even with {params}, "
            f"below the {least:g} asked for; choose another --index (exact misses nothing) or a lower --min-recall"
        )
    return index, recall
