"""Exact top-k over stored candidate embeddings: the scan.

The score of a row is the closed form of candidate attention over the stored vector, rounded to float32. It must not
depend on the row's place in a block or on the machine's matrix kernels, or equal texts would not tie: so the scan
finds the rows that can be among the best in float32, and only those finalists are scored again, in float64.

Pruning: `score <= max_i s_i` (Humeau et al.'s softmax weights are a convex combination), so a row whose largest `s_i`
stays below the k-th best score so far needs no softmax; after the first blocks almost none do.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_BLOCK_ELEMENTS = 2**17  # of a block's (rows, M) product: half a megabyte in float32 stays in a core's cache
_BLOCK_ROWS = (256, 8192)
_FINAL_ROWS = 4096  # finalists scored at a time in float64: bounds memory when a whole pool ties


class TopK(NamedTuple):
    """Rows (k,) int64 and their scores (k,) float32, best first, equal scores in row order."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]


def top_k(
    matrix: NDArray[np.floating], codes: NDArray[np.float32], k: int, rows: NDArray[np.int64] | None = None
) -> TopK:
    """Find the k best rows by candidate attention.

    Args:
        matrix: candidate embeddings, (N, D) float16 or float32; may be memory-mapped.
        codes: one context's vectors, (M, D), the score scale multiplied in.
        k: how many; fewer come back when there are fewer rows.
        rows: score only these rows (ascending); None: all.

    Returns:
        Rows of `matrix` and scores, exactly those of scoring every row and sorting by (-score, row).
    """
    stored = torch.from_numpy(matrix)
    chosen = None if rows is None else torch.from_numpy(rows)
    n = len(matrix) if rows is None else len(rows)
    if min(n, k) <= 0:
        return TopK(np.empty(0, np.int64), np.empty(0, np.float32))
    with torch.inference_mode():
        vectors = torch.from_numpy(codes)
        finalists = _finalists(stored, vectors, min(k, n), chosen, n)
        scores = _canonical_scores(stored, vectors, finalists)
    order = np.lexsort((finalists.numpy(), -scores))[:k]
    return TopK(finalists.numpy()[order], scores[order])


def scores_of(matrix: NDArray[np.floating], codes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Score every row of `matrix` (N, D) against one context's `codes` (M, D); returns (N,), as `top_k` scores."""
    with torch.inference_mode():
        return _canonical_scores(torch.from_numpy(matrix), torch.from_numpy(codes), torch.arange(len(matrix)))


def _finalists(stored: Tensor, codes: Tensor, k: int, chosen: Tensor | None, n: int) -> Tensor:
    """Rows whose float32 score is within rounding of the k-th best, in row order."""
    best = _Best(k, _rounding(codes))
    step = min(max(_BLOCK_ELEMENTS // len(codes), _BLOCK_ROWS[0]), _BLOCK_ROWS[1])
    transposed = codes.T.contiguous()
    for start in range(0, n, step):
        block_rows = None if chosen is None else chosen[start : start + step]
        block = (stored[start : start + step] if block_rows is None else stored[block_rows]).float()
        s = block @ transposed  # (rows, M)
        upper = s.amax(dim=1)
        margin = best.margin(block)
        alive = (upper >= best.threshold - margin).nonzero()[:, 0]
        if len(alive):
            scores = _closed_form(s[alive])
            best.add(scores, alive + start if block_rows is None else block_rows[alive], margin)
    return best.rows.sort().values


class _Best:
    """The rows that can still be among the k best, and the k-th best score so far."""

    def __init__(self, k: int, rounding: float) -> None:
        self.k = k
        self.rounding = rounding
        self.threshold = float("-inf")
        self.rows = torch.empty(0, dtype=torch.int64)
        self._scores = torch.empty(0)
        self._margin = 0.0

    def margin(self, block: Tensor) -> float:
        """How far two computed scores of these rows can be apart from their order in exact arithmetic."""
        self._margin = max(self._margin, self.rounding * float(torch.linalg.vector_norm(block, dim=1).max()))
        return self._margin

    def add(self, scores: Tensor, rows: Tensor, margin: float) -> None:
        scores, rows = torch.cat([self._scores, scores]), torch.cat([self.rows, rows])
        if len(scores) >= self.k:
            self.threshold = float(scores.topk(self.k).values[-1])
            keep = scores >= self.threshold - margin
            scores, rows = scores[keep], rows[keep]
        self._scores, self.rows = scores, rows


def _rounding(codes: Tensor) -> float:
    """Bound, per unit length of a row, on the difference of two float32 scores from rounding.

    A dot product of D terms is off by at most about `D eps |y| |c|`; rounding errors average out to sqrt(D), and four
    times that is taken for each of the two scores and their softmax.
    """
    longest = float(torch.linalg.vector_norm(codes, dim=1).max())
    return 8.0 * math.sqrt(codes.shape[1]) * float(torch.finfo(torch.float32).eps) * longest


def _closed_form(s: Tensor) -> Tensor:
    """`sum_i softmax(s)_i s_i` over the last axis."""
    return (s.softmax(dim=-1) * s).sum(dim=-1)


def _canonical_scores(stored: Tensor, codes: Tensor, rows: Tensor) -> NDArray[np.float32]:
    exact = codes.double().T.contiguous()
    parts = [
        _closed_form(stored[rows[start : start + _FINAL_ROWS]].double() @ exact).float()
        for start in range(0, len(rows), _FINAL_ROWS)
    ]
    return torch.cat(parts).numpy()
