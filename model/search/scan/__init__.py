"""Exact top-k over a whole pool.

`prepare` makes a pool ready once; the scan it returns then answers any number of queries. Every scan gives the answer
of `polyrank.model.search.topk.top_k`: the rows and scores of scoring every row and sorting by (-score, row).

Read `plain.py` first: it holds the interface. `quantised/` scans on a CPU with a copy of the pool in bytes, `gpu/` in
the memory of a GPU.
"""

import logging
from typing import Any

from numpy.typing import NDArray

from polyrank.model.search.scan.gpu.guarded import GuardedScan
from polyrank.model.search.scan.gpu.scan import GpuScan
from polyrank.model.search.scan.plain import PlainScan, Query, Scan
from polyrank.model.search.scan.quantised.product import is_available
from polyrank.model.search.scan.quantised.scan import LEAST_ROWS, QuantisedScan
from polyrank.model.search.topk import longest_row

__all__ = ["Query", "Scan", "prepare"]

log = logging.getLogger(__name__)


def prepare(matrix: NDArray[Any], device: str = "cpu", with_bytes: bool = True) -> Scan:
    """Prepare a pool to be scanned; reads all rows once.

    A GPU gets a copy of the matrix. If it has no room or Triton is missing, a warning is logged and the CPU scans. On a
    CPU a large pool is scanned with a copy in bytes, if the processor multiplies bytes fast.

    Args:
        matrix: candidate embeddings, (N, D) float16 or float32; may be memory-mapped. The scan keeps it, so it must
            not change.
        device: where to scan, in torch's notation.
        with_bytes: whether a copy in bytes is worth its memory (N D bytes) on a CPU.
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
