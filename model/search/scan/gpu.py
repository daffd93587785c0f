"""The scan of a matrix that lies in the memory of a GPU.

One kernel scores every row in the matrix's own type, with sums in float32. That takes little more than reading the
matrix once. A second kernel scores the rows within rounding of the k-th best again, in float64; only these leave the
GPU.

Where the GPU fails, the CPU answers (`GuardedScan`). kernels.py has the kernels, in Triton.
"""

import contextlib
import logging
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.model.representations import Additions
from polyrank.model.search.scan.plain import PlainScan, Query, Scan, Status
from polyrank.model.search.topk import LARGEST_PRODUCT, LONGEST_ROW, TopK, added, longest_row, margin_of

# Each context is scaled by a power of two so that the length of its longest vector is just below 2**15: then nothing
# overflows in float16, and no element that matters is lost.
_BITS = 15
_ALIGNED = 4  # numbers of four bytes: 16 bytes
_MOST_BITS = 120  # float32 holds 2**120 and its inverse


class GpuCodes:
    """Code vectors of C contexts on the GPU; zeros pad each context to the same number, a multiple of `multiple`.

    `matrix` is what will be scanned, `longest` the length of its longest row.

    Attributes:
        padded: the number of vectors of each, zeros included.
        exact: the vectors, (C, padded, D) float32.
        rounded: the same, scaled, in the matrix's type.
        units: the factor that undoes the scaling, (C,) float32.
        counts: the number of vectors of each context, zeros excluded, (C,) int32.
        ks: the number of rows that each context asks for, (C,) int32.
        late_weights: by which the scores of each context are multiplied, at least (C,) float64.
    """

    def __init__(
        self,
        codes: Sequence[NDArray[np.float32]],
        ks: Sequence[int],
        matrix: Tensor,
        longest: float,
        multiple: int,
        late_weights: Sequence[float],
    ) -> None:
        counts = np.array([len(own) for own in codes], np.int32)
        self.contexts, self.padded = len(codes), -(-int(counts.max()) // multiple) * multiple
        exact = torch.zeros(self.contexts, self.padded, matrix.shape[1])
        for into, own in zip(exact, codes, strict=True):
            into[: len(own)] = torch.from_numpy(own)
        lengths = torch.linalg.vector_norm(exact, dim=2, dtype=torch.float64).amax(dim=1).numpy()
        bits = np.minimum(_BITS - np.frexp(lengths)[1], _MOST_BITS)
        units = np.ldexp(np.float32(1), -bits)
        margins = margin(counts, lengths, units, longest, matrix.shape[1], matrix.dtype, np.array(late_weights))
        # One copy for all five: a copy takes the same time however small it is.
        # Rows are aligned to 16 bytes: for another alignment the kernels would be compiled anew.
        numbers = np.zeros((6, -(-self.contexts // _ALIGNED) * _ALIGNED), np.int32)
        numbers[:4, : self.contexts] = units.view(np.int32), margins.view(np.int32), counts, ks
        numbers[4:].reshape(-1).view(np.float64)[: self.contexts] = late_weights
        everything = torch.from_numpy(numbers).to(matrix.device)
        uploaded, self.late_weights = everything[:, : self.contexts], everything[4:].reshape(-1).view(torch.float64)
        self.units, self.margins = uploaded[0].view(torch.float32), uploaded[1].view(torch.float32)
        self.counts, self.ks = uploaded[2], uploaded[3]
        self.exact = exact.to(matrix.device)
        self.rounded = (self.exact / self.units[:, None, None]).to(matrix.dtype)


def margin(
    counts: NDArray[np.int32],
    lengths: NDArray[np.float64],
    units: NDArray[np.float32],
    longest: float,
    dim: int,
    dtype: torch.dtype,
    late_weights: NDArray[np.float64],
) -> NDArray[np.float32]:
    """Bound how far below the k-th best computed score the score of a row of the k best can be.

    That is twice the largest error of a score. A product is off by rounding the code vector y to float16, at most
    `2**-11 |y| |c|`, and by D sums whose last bits tensor cores cut off, at most `2**-22 D |y| |c|`. Late weights
    multiply the error of a score; they are rounded to float32, and so is their product with the score.

    counts, units, late_weights: as in GpuCodes. lengths: length of each context's longest vector, (C,). longest: length
    of the longest row. dtype: type that the vectors are rounded to. Returns a bound for each context, (C,); infinite if
    products may overflow.
    """
    m, unit = counts.astype(np.float64), units.astype(np.float64)
    rounding = 0.0 if dtype == torch.float32 else 2.0**-11
    smallest = 0.0 if dtype == torch.float32 else 2.0**-25 * math.sqrt(dim)  # of elements near 0 in float16
    products = ((rounding + (dim + 4) * 2**-22) * lengths + smallest * unit) * longest * (1 + 2**-10)
    products += dim * (unit * 2.0**-110 + 2.0**-126)  # of products too small for float32
    bounded = (longest < LONGEST_ROW) & (longest * lengths < LARGEST_PRODUCT)
    with np.errstate(over="ignore"):  # an infinite margin makes finalists of all rows
        margins = late_weights * (margin_of(m, products) + 2**-22 * longest * lengths) + 2.0**-126
        return np.where(bounded, margins, np.inf).astype(np.float32)


_MOST_SCORES = 2**25  # of all queries that are scanned at a time
_SCORE_BYTES = 25  # of a score, its mask, the number added to it, and a finalist
_FEW = 2048  # finalists that are fetched together with their number
_BLOCKS_A_PLACE = 4  # times k blocks: so many maxima suffice to choose a threshold from


class Tiles(NamedTuple):
    """How a kernel divides its work: rows, contexts, codes and dimensions of a program, its warps and stages."""

    rows: int
    contexts: int
    codes: int
    dims: int
    warps: int
    stages: int


_MOST_COLUMNS = 128  # of a product: contexts by codes
_MOST_CONTEXTS = 4  # of a product; more need more registers than there are


def tiles_for(m: int, contexts: int, dtype: torch.dtype) -> Tiles:
    """Choose the tiles for so many contexts of up to m code vectors.

    Two programs of these sizes share a multiprocessor: one waits for rows while the other reduces products.
    """
    if dtype == torch.float32:  # without tensor cores, which would round
        return Tiles(128, 1, 64, 32, 8, 2)
    codes = next((most for most in (16, 64) if m <= most), _MOST_COLUMNS)
    together = min(_MOST_CONTEXTS, 1 if contexts == 1 else _MOST_COLUMNS // codes)
    return Tiles(128, together, codes, 64, 4 if together == 1 and codes <= 64 else 8, 3)


class GpuScan:
    """Scans a matrix on a GPU; safe to call from several threads.

    Attributes:
        longest: the length of the longest row.

    Raises:
        MemoryError: the matrix does not fit.
        ImportError: Triton is not installed.
    """

    def __init__(self, matrix: NDArray[Any], device: str, tiles: Tiles | None = None) -> None:
        """Copy the matrix (N, D), float16 or float32, to the GPU; `tiles` None: `tiles_for` chooses for each call."""
        from polyrank.model.search.scan import kernels  # and with it Triton, which only a machine with a GPU needs

        self._kernels: Any = kernels
        self._device = torch.device(device)
        self._tiles = tiles
        self.status = Status("gpu", f"the pool lies in the memory of {device}")
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # memory that torch keeps for itself does not count as free
            needed = matrix.nbytes + _SCORE_BYTES * max(_MOST_SCORES, len(matrix))
            free, _ = torch.cuda.mem_get_info(self._device)
            if needed > free:
                raise MemoryError(f"{needed >> 20} MiB are needed on {self._device}, and {free >> 20} are free")
        self.longest = longest_row(matrix)
        self._matrix = torch.from_numpy(matrix).to(self._device)

    def top_k(self, queries: Sequence[Query]) -> list[TopK]:
        """Find the best rows of each query, exactly, in one pass over the pool."""
        n = len(self._matrix)
        if n == 0:
            return [TopK(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in queries]
        at_once = max(1, _MOST_SCORES // n)
        parts = [queries[start : start + at_once] for start in range(0, len(queries), at_once)]
        on_device = torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext()
        with torch.inference_mode(), on_device:
            return [best for part in parts for best in self._best(part)]

    def _best(self, queries: Sequence[Query]) -> list[TopK]:
        ks = [max(0, min(query.k, query.count(len(self._matrix)))) for query in queries]
        vectors = [query.codes for query in queries]
        tiles = self._tiles or tiles_for(max(map(len, vectors)), len(vectors), self._matrix.dtype)
        late_weights = [1.0 if query.additions is None else query.additions.late_weight for query in queries]
        codes = GpuCodes(vectors, ks, self._matrix, self.longest, tiles.codes, late_weights)
        values = self._values(queries)
        scores, maxima = self._scores(codes, self._allowed(queries), values, tiles)
        # The k-th largest of the blocks' maxima is at most the k-th best score, and there are far fewer of them.
        most = max(1, *ks)
        among = maxima if maxima.shape[1] >= _BLOCKS_A_PLACE * most else scores
        finalists = self._finalists(codes, scores, maxima, among.topk(most, dim=1).values, values is not None, tiles)
        owners = finalists[:, 0] >> 32
        return [_sorted(finalists[owners == at], query.additions, ks[at]) for at, query in enumerate(queries)]

    def _allowed(self, queries: Sequence[Query]) -> Tensor | None:
        """Return which rows may be in each answer, (C, N); None: all."""
        if all(query.allowed is None for query in queries):
            return None
        allowed = torch.ones(len(queries), len(self._matrix), dtype=torch.bool, device=self._device)
        for of_query, query in zip(allowed, queries, strict=True):
            if query.allowed is not None:
                of_query.copy_(torch.from_numpy(query.allowed))
        return allowed

    def _values(self, queries: Sequence[Query]) -> Tensor | None:
        """Return what is added to the scores of each query, (C, N) float32; None: nothing to any."""
        if all(query.additions is None for query in queries):
            return None
        values = torch.zeros(len(queries), len(self._matrix), device=self._device)
        for of_query, query in zip(values, queries, strict=True):
            if query.additions is not None:
                of_query.copy_(torch.from_numpy(query.additions.values))
        return values

    def _scores(
        self, codes: GpuCodes, allowed: Tensor | None, values: Tensor | None, tiles: Tiles
    ) -> tuple[Tensor, Tensor]:
        """Return all scores (C, N), and the largest of each block of rows (C, blocks)."""
        n, dim = self._matrix.shape
        blocks = -(-n // tiles.rows)
        scores = torch.empty(codes.contexts, n, device=self._device)
        maxima = torch.empty(codes.contexts, blocks, device=self._device)
        self._kernels.scan[(-(-codes.contexts // tiles.contexts) * blocks,)](
            self._matrix,
            codes.rounded,
            codes.units,
            codes.counts,
            scores if allowed is None else allowed,
            codes.late_weights,
            scores if values is None else values,
            scores,
            maxima,
            n,
            codes.padded,
            codes.contexts,
            D=dim,
            ROWS=tiles.rows,
            CODES=tiles.codes,
            DIMS=tiles.dims,
            PACK=tiles.contexts,
            MASKED=allowed is not None,
            ADDED=values is not None,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
        return scores, maxima

    def _finalists(
        self, codes: GpuCodes, scores: Tensor, maxima: Tensor, best: Tensor, adds: bool, tiles: Tiles
    ) -> NDArray[np.int64]:
        """Return of each finalist, in any order, its context times 2**32 and row, and the bits of its score, (F, 2)."""
        contexts, n = scores.shape
        slots = torch.empty(1 + scores.numel(), 2, dtype=torch.int64, device=self._device)
        slots[0] = 0
        self._kernels.finalists[(maxima.numel(),)](
            self._matrix,
            codes.exact,
            codes.counts,
            scores,
            maxima,
            best,
            codes.ks,
            codes.margins,
            slots,
            n,
            codes.padded,
            contexts,
            best.shape[1],
            D=self._matrix.shape[1],
            ROWS=tiles.rows,
            CODES=16,
            DIMS=128,
            ADDED=adds,
        )
        first = slots[: 1 + _FEW].cpu().numpy()
        count = int(first[0, 0])
        return first[1 : 1 + count] if count <= _FEW else slots[1 : 1 + count].cpu().numpy()


def _sorted(finalists: NDArray[np.int64], additions: Additions | None, k: int) -> TopK:
    rows, late = finalists[:, 0] & 0xFFFFFFFF, np.ascontiguousarray(finalists[:, 1]).view(np.float64)
    scores = added(late, rows, additions).astype(np.float32)
    order = np.lexsort((rows, -scores))[:k]
    return TopK(rows[order], scores[order])


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
        return self._cpu.longest

    def top_k(self, queries: Sequence[Query]) -> list[TopK]:
        if (gpu := self._gpu) is not None:
            try:
                best = gpu.top_k(queries)
                self._failures = 0
                return best
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
            [answer], [expected] = self._gpu.top_k([query]), self._cpu.top_k([query])
            same = len(answer.scores) == len(expected.scores)
            if not same or not np.allclose(answer.scores, expected.scores, _RELATIVE, 0):
                raise RuntimeError("its scores are not those of the CPU")
