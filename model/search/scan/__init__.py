"""Exact top-k over a whole pool.

`prepare` makes a pool ready once; the scan it returns then answers any number of queries. Every scan gives the answer
of `polyrank.model.search.topk.top_k`: the rows and scores of scoring every row and sorting by (-score, row).

Read `plain.py` first: it holds the interface. `quantised.py` scans on a CPU with a copy of the pool in bytes, `gpu.py`
in the memory of a GPU.
"""

import logging
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from polyrank.model.representations import Additions
from polyrank.model.search.scan import product
from polyrank.model.search.scan.plain import STORED_ROWS, PlainScan, Query, Scan, Status
from polyrank.model.search.scan.product import is_slow, multiplying_library, refusal
from polyrank.model.search.scan.quantised import IN_BYTES, LEAST_ROWS, QuantisedScan
from polyrank.model.search.topk import longest_row

__all__ = ["Additions", "Query", "Scan", "Status", "faster", "prepare"]

log = logging.getLogger(__name__)


def prepare(matrix: NDArray[Any], device: str = "cpu", with_bytes: bool = True) -> Scan:
    """Prepare a pool to be scanned; reads all rows once.

    A GPU gets a copy of the matrix. If it has no room or Triton is missing, the CPU scans. On a CPU a large pool is
    scanned with a copy in bytes, if the processor multiplies bytes fast. The scan's `status` says what was chosen and
    why. A warning is logged if a GPU was asked for and does not scan, or if the processor multiplies bytes fast and
    they cannot be used.

    Args:
        matrix: candidate embeddings, (N, D) float16 or float32; may be memory-mapped. The scan keeps it, so it must
            not change.
        device: where to scan, in torch's notation.
        with_bytes: whether a copy in bytes is worth its memory (N D bytes) on a CPU.
    """
    failure = None
    if device != "cpu":
        try:
            return _on_gpu(matrix, device)
        except Exception as error:  # whatever it is: the CPU gives the same answers
            failure = f"the GPU does not scan: {error}"
    status = _status(len(matrix), matrix.shape[1], with_bytes)
    if failure is not None:
        status = replace(status, why=f"{failure}; {status.why}", is_fallback=True)
    if status.is_fallback:
        fields = {"kind": status.kind, "why": status.why}
        log.warning("a slower scan serves than this machine should run", extra={"fields": fields})
    if status.kind == "bytes":
        return QuantisedScan(matrix, status)
    return PlainScan(matrix, longest_row(matrix), status)


def faster(scan: Scan, matrix: NDArray[Any]) -> Scan:
    """Return a scan in bytes of the matrix in place of one that only a timing made slow; else that one.

    The product of bytes is timed again after a few minutes; until then, and for any other scan, this costs nothing.
    """
    if not scan.status.is_timed or is_slow(matrix.shape[1]):
        return scan
    log.warning("the faster scan serves that a timing had refused")
    return QuantisedScan(matrix)


def _on_gpu(matrix: NDArray[Any], device: str) -> Scan:
    from polyrank.model.search.scan.gpu import GpuScan, GuardedScan  # imports torch

    gpu = GpuScan(matrix, device)
    scan = GuardedScan(gpu, PlainScan(matrix, gpu.longest))
    scan.try_out(*matrix.shape)
    return scan


def _status(rows: int, dim: int, with_bytes: bool) -> Status:
    if not with_bytes:
        return STORED_ROWS
    if dim == 1:
        return Status("stored rows", "a copy in bytes saves nothing for vectors of one component")
    if rows < LEAST_ROWS:
        return Status("stored rows", f"a copy in bytes saves nothing for fewer than {LEAST_ROWS} rows")
    if (why := refusal(dim)) is not None:
        return Status("stored rows", why, is_fallback=product.multiplies_bytes())
    if is_slow(dim):
        how = f"{multiplying_library().name}'s product of bytes takes far longer than that of float32"
        why = f"{how} for vectors of {dim} components"
        return Status("stored rows", why, is_fallback=True, is_timed=True)
    return IN_BYTES
