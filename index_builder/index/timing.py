"""How long a context's search takes on this processor, by the scan and by HNSW: what `--index auto` chooses by.

Neither is measured over a large pool. The scan is timed over a sample of the pool and its time predicted for all rows.
A graph of all rows takes minutes to build, so searches are timed in a small one. Its rows fit into the processor's
cache, so the prediction is too low. A larger graph is built and timed, unless the small one is slower than the scan.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import thread_time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.index_builder.index.choice import STAYS, SearchTimes, choose_index, grown_hnsw, grown_scan
from polyrank.index_builder.index.faiss_index import CandidateIndex, faiss_threads
from polyrank.index_builder.index.retrieval import search
from polyrank.model.search.scan import Query, prepare

# The rows of the samples. The larger graph takes 5 seconds of one core to build at D = 384.
SCANNED_ROWS = 131_072
GRAPH_ROWS = (4_096, 16_384)
_K = 10
_ROUNDS = 3

Codes = NDArray[np.float32]
Work = Callable[[Codes], object]


def time_searches(matrix: NDArray[Any], contexts: Sequence[Codes]) -> SearchTimes:
    """Time searches of samples of a matrix (N, D), and predict what they take over all of its rows.

    A context is given by its vectors (M, D), with the score scale multiplied in.
    """
    with _one_thread():
        scanned = _spread(matrix, SCANNED_ROWS)
        scan = prepare(scanned)
        for rows in GRAPH_ROWS:
            linked = _spread(matrix, rows)
            graph = CandidateIndex.build(choose_index("hnsw", len(linked), matrix.shape[1]), linked)
            by_scan, by_graph = _milliseconds(
                [lambda codes: scan.top_k([Query(codes, _K)]), partial(_search, graph, linked)], contexts
            )
            times = SearchTimes(
                round(grown_scan(by_scan, len(scanned), len(matrix)), 3),
                round(grown_hnsw(by_graph, len(linked), len(matrix)), 3),
            )
            if times.ratio > STAYS:
                break
    return times


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch and FAISS use one thread. Several wait for each other while the machine has other work to do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with faiss_threads(1):
            yield
    finally:
        torch.set_num_threads(before)


def _search(graph: CandidateIndex, matrix: NDArray[Any], codes: Codes) -> None:
    search(graph, matrix, codes, _K)


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
