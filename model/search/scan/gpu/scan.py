"""The scan of a matrix that lies in the memory of a GPU.

One kernel scores every row in the matrix's own type, with sums in float32. That takes little more than reading the
matrix once. A second kernel scores the rows within rounding of the k-th best again, in float64; only these leave the
GPU.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.model.search.additions import Additions
from polyrank.model.search.scan.gpu.codes import GpuCodes
from polyrank.model.search.scan.plain import Query, Status
from polyrank.model.search.topk import TopK, added, longest_row

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
        status: that a GPU scans.

    Raises:
        MemoryError: the matrix does not fit.
        ImportError: Triton is not installed.
    """

    def __init__(self, matrix: NDArray[Any], device: str, tiles: Tiles | None = None) -> None:
        """Copy the matrix (N, D), float16 or float32, to the GPU; `tiles` None: `tiles_for` chooses for each call."""
        from polyrank.model.search.scan.gpu import kernels  # and with it Triton, which only a machine with a GPU needs

        self._kernels: Any = kernels
        self._device = torch.device(device)
        self._tiles = tiles
        self.status = Status("gpu", f"the pool lies in the memory of {device}")
        self._require_room(matrix)
        self.longest = longest_row(matrix)
        self._matrix = torch.from_numpy(matrix).to(self._device)

    def _require_room(self, matrix: NDArray[Any]) -> None:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # memory that torch keeps for itself does not count as free
            needed = matrix.nbytes + _SCORE_BYTES * max(_MOST_SCORES, len(matrix))
            free, _ = torch.cuda.mem_get_info(self._device)
            if needed > free:
                raise MemoryError(f"{needed >> 20} MiB are needed on {self._device}, and {free >> 20} are free")

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
        found = self._finalists(codes, scores, maxima, among.topk(most, dim=1).values, values is not None, tiles)
        owners = found[:, 0] >> 32
        return [_sorted(found[owners == at], query.additions, ks[at]) for at, query in enumerate(queries)]

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
        found = torch.empty(1 + scores.numel(), 2, dtype=torch.int64, device=self._device)
        found[0] = 0
        self._kernels.finalists[(maxima.numel(),)](
            self._matrix,
            codes.exact,
            codes.counts,
            scores,
            maxima,
            best,
            codes.ks,
            codes.margins,
            found,
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
        first = found[: 1 + _FEW].cpu().numpy()
        count = int(first[0, 0])
        return first[1 : 1 + count] if count <= _FEW else found[1 : 1 + count].cpu().numpy()


def _sorted(found: NDArray[np.int64], additions: Additions | None, k: int) -> TopK:
    rows, late = found[:, 0] & 0xFFFFFFFF, np.ascontiguousarray(found[:, 1]).view(np.float64)
    scores = added(torch.from_numpy(late), torch.from_numpy(rows), additions).float().numpy()
    order = np.lexsort((rows, -scores))[:k]
    return TopK(rows[order], scores[order])
