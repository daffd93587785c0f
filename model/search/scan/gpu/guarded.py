"""A scan on a GPU that falls back to the CPU."""

import logging
from collections.abc import Sequence

import numpy as np

from polyrank.model.search.additions import Additions
from polyrank.model.search.scan.plain import PlainScan, Query, Scan, Status
from polyrank.model.search.topk import TopK

_MOST_FAILURES = 3  # in a row
_RELATIVE = 1e-5  # of scores that are the same

log = logging.getLogger(__name__)


class GuardedScan:
    """Scans on a GPU, whose memory may run out. If a call fails, the CPU answers it; after three in a row, any."""

    def __init__(self, gpu: Scan, cpu: PlainScan) -> None:
        self._gpu: Scan | None = gpu
        self._cpu = cpu
        self._failures = 0
        self.status = gpu.status

    @property
    def longest(self) -> float:
        """The length of the longest row."""
        return self._cpu.longest

    def top_k(self, queries: Sequence[Query]) -> list[TopK]:
        """Find the best rows of each query."""
        if (gpu := self._gpu) is not None:
            try:
                found = gpu.top_k(queries)
                self._failures = 0
                return found
            except Exception as error:  # whatever it is: the CPU gives the same answers
                self._failures += 1
                if self._failures >= _MOST_FAILURES:
                    self._gpu = None  # frees the memory that it held
                    why = f"the GPU failed {self._failures} times in a row: {error}"
                    self.status = Status("stored rows", why, is_fallback=True)
                fields = {"why": str(error), "failures": self._failures, "asked_again": self._gpu is not None}
                log.warning("the scan on the GPU failed, the CPU scans", extra={"fields": fields})
        return self._cpu.top_k(queries)

    def try_out(self, rows: int, dim: int) -> None:
        """Compile the kernels, which otherwise happens in the first request, and compare an answer with the CPU's.

        rows, dim: of the matrix that is scanned. Raises RuntimeError where they differ.
        """
        assert self._gpu is not None, "it has not failed yet"
        rng = np.random.default_rng(0)
        for m in (1, 64, 360):
            codes = rng.normal(size=(m, dim)).astype(np.float32)
            for contexts in (1, 4):  # several contexts share a product: that is another kernel
                for allowed in (None, np.ones(rows, bool)):
                    for additions in (None, Additions(1.0, np.zeros(rows, np.float32))):
                        self._gpu.top_k([Query(codes, 1, allowed, additions)] * contexts)
        codes = rng.normal(size=(16, dim)).astype(np.float32)
        for additions in (None, Additions(0.5, rng.normal(size=rows).astype(np.float32))):
            query = Query(codes, 10, None, additions)
            [found], [expected] = self._gpu.top_k([query]), self._cpu.top_k([query])
            same = len(found.scores) == len(expected.scores)
            if not same or not np.allclose(found.scores, expected.scores, _RELATIVE, 0):
                raise RuntimeError("its scores are not those of the CPU")
