"""Exact top-k over a whole pool, for several contexts in one pass over its rows.

A pool is prepared once (`prepare`) and then scanned for every context. Whatever the form that it is held in, the answer
is that of `polyrank.model.search.topk.top_k`: rows and scores of scoring every row and sorting by (-score, row).
"""

import logging
from typing import Any

from numpy.typing import NDArray

from polyrank.model.search.scan.gpu import GpuScan
from polyrank.model.search.scan.guarded import GuardedScan
from polyrank.model.search.scan.plain import PlainScan
from polyrank.model.search.scan.quantised_scan import LEAST_ROWS, QuantisedScan
from polyrank.model.search.scan.screen import is_available
from polyrank.model.search.scan.values import Query, Scan
from polyrank.model.search.topk import longest_row

__all__ = ["Query", "Scan", "prepare"]

log = logging.getLogger(__name__)


def prepare(matrix: NDArray[Any], device: str = "cpu", with_bytes: bool = True) -> Scan:
    """Prepare a pool to be scanned; a pass over all rows.

    Args:
        matrix: candidate embeddings, (N, D) float16 or float32; may be memory-mapped. It is kept, and not to change.
        device: where it is to be scanned, in torch's notation.
        with_bytes: whether it is scanned often enough on a CPU to be worth a copy in bytes (N D more in memory).

    Returns:
        On a GPU, a copy there; where that has no room for it, or Triton is missing, a warning is logged, and the CPU
        scans. On a CPU, with bytes beside the matrix, where they are wanted, this machine has the instructions for them
        and the pool is large enough; else by the matrix alone.
    """
    if device != "cpu":
        try:
            return _on_gpu(matrix, device)
        except Exception as error:  # whatever it is: the CPU gives the same answers
            log.warning("the pool is not scanned on the GPU", extra={"fields": {"why": str(error)}})
    if with_bytes and len(matrix) >= LEAST_ROWS:
        if is_available():
            return QuantisedScan(matrix)
        log.info("this processor does not multiply bytes fast: rows are scanned as they are stored")
    return PlainScan(matrix, longest_row(matrix))


def _on_gpu(matrix: NDArray[Any], device: str) -> GuardedScan:
    gpu = GpuScan(matrix, device)
    scan = GuardedScan(gpu, PlainScan(matrix, gpu.longest))
    scan.try_out(matrix.shape[1])
    return scan
