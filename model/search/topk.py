"""Exact top-k over stored candidate embeddings: the scan.

The score of a row is the closed form of candidate attention over the stored vector, rounded to float32. It must not
depend on the row's place in a block or on the machine's matrix kernels, or equal texts would not tie: so the scan
finds the rows that can be among the best in float32, and only those finalists are scored again, in float64.

Pruning: `score <= max_i s_i` (Humeau et al.'s softmax weights are a convex combination), so a row whose largest `s_i`
stays below the k-th best score so far needs no softmax; after the first blocks almost none do.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.model.search.rounding import rounding

_BLOCK_ELEMENTS = 2**19  # of a block's rows, (size, D), or of its product, (size, M): 2 MB in float32 stay in cache
_BLOCK_ROWS = 128  # at least so many
_FEW_ROWS = 256  # finding out which of so many can be among the best costs more than scoring them all
_FINAL_ROWS = 4096  # finalists scored at a time in float64: bounds memory when a whole pool ties


class TopK(NamedTuple):
    """Rows (k,) int64 and their scores (k,) float32, best first, equal scores in row order."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]


def top_k(
    matrix: NDArray[np.floating],
    codes: NDArray[np.float32],
    k: int,
    rows: NDArray[np.int64] | None = None,
    longest: float | None = None,
    kept: NDArray[np.bool_] | None = None,
) -> TopK:
    """Find the k best rows by candidate attention.

    Args:
        matrix: candidate embeddings, (N, D) float16 or float32; may be memory-mapped.
        codes: one context's vectors, (M, D), the score scale multiplied in.
        k: how many; fewer come back when there are fewer rows.
        rows: score only these rows (ascending); None: all.
        longest: `longest_row(matrix)` where it is known, which saves a pass.
        kept: which rows to score, (N,); not together with `rows`, which is for few of them.

    Returns:
        Rows of `matrix` and scores, exactly those of scoring every row and sorting by (-score, row).
    """
    n = len(rows) if rows is not None else len(matrix) if kept is None else int(np.count_nonzero(kept))
    if min(n, k) <= 0:
        return TopK(np.empty(0, np.int64), np.empty(0, np.float32))
    with torch.inference_mode():
        stored, vectors = torch.from_numpy(matrix), torch.from_numpy(codes)
        chosen = None if rows is None else torch.from_numpy(rows)
        mask = None if kept is None else torch.from_numpy(kept)
        margin = math.inf
        if n > max(k, _FEW_ROWS):
            margin = rounding(vectors, longest_row(matrix) if longest is None else longest)
        if margin == math.inf:  # and where products overflow, which float32 cannot compare
            finalists = _all_of(len(matrix), chosen, mask)
        else:
            finalists = _finalists(_Blocks(stored, chosen, len(codes)), vectors, Best(k, margin), mask)
        scores = canonical_scores(stored, vectors, finalists)
    order = np.lexsort((finalists.numpy(), -scores))[:k]
    return TopK(finalists.numpy()[order], scores[order])


def longest_row(matrix: NDArray[np.floating]) -> float:
    """Length of the longest row, which bounds how far rounding can move a score."""
    with torch.inference_mode():
        blocks = _Blocks(torch.from_numpy(matrix), None, 1)
        return max(
            (float(torch.linalg.vector_norm(block, dim=1, dtype=torch.float64).max()) for block, _ in blocks),
            default=0.0,
        )


def scores_of(matrix: NDArray[np.floating], codes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Score every row of `matrix` (N, D) against one context's `codes` (M, D); returns (N,), as `top_k` scores."""
    with torch.inference_mode():
        return canonical_scores(torch.from_numpy(matrix), torch.from_numpy(codes), torch.arange(len(matrix)))


def _all_of(count: int, chosen: Tensor | None, kept: Tensor | None) -> Tensor:
    if chosen is not None:
        return chosen
    return torch.arange(count) if kept is None else kept.nonzero()[:, 0]


def _finalists(blocks: "_Blocks", codes: Tensor, best: "Best", kept: Tensor | None) -> Tensor:
    """Rows, of those kept, whose float32 score is within rounding of the k-th best, in row order."""
    transposed = codes.T.contiguous()
    products = torch.empty(blocks.size, len(codes))
    for block, rows in blocks:
        s = torch.mm(block, transposed, out=products[: len(block)])  # (rows, M)
        reaches = s.amax(dim=1) >= best.threshold - best.margin
        alive = (reaches if kept is None else reaches & kept[rows]).nonzero()[:, 0]
        if kept is None and 2 * len(alive) > len(
            rows
        ):  # nothing to gain from picking them out; the others fall to the threshold
            best.add(closed_form(s), rows)
        elif len(alive):
            best.add(closed_form(s[alive]), rows[alive])
    return best.rows.sort().values


class _Blocks:
    """Rows in float32, a block at a time, in one buffer that stays in cache: fresh memory costs more than the product.

    Iterates over (block (size, D), its rows (size,)); a block is gone when the next one comes.
    """

    def __init__(self, stored: Tensor, chosen: Tensor | None, m: int) -> None:
        self._stored = stored
        self._rows = torch.arange(len(stored)) if chosen is None else chosen
        self._contiguous = chosen is None
        self.size = max(1, min(max(_BLOCK_ELEMENTS // max(stored.shape[1], m), _BLOCK_ROWS), len(self._rows)))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        buffer = torch.empty(self.size, self._stored.shape[1])
        for start in range(0, len(self._rows), self.size):
            rows = self._rows[start : start + self.size]
            block = self._stored[start : start + self.size] if self._contiguous else self._stored.index_select(0, rows)
            yield (block if block.dtype == torch.float32 else buffer[: len(rows)].copy_(block)), rows


class Best:
    """The rows that can still be among the k best, and the k-th best score so far.

    Attributes:
        threshold: the k-th best score so far.
        margin: how far two computed scores can be apart from their order in exact arithmetic.
        rows: those within the margin of the threshold.
    """

    def __init__(self, k: int, margin: float) -> None:
        self.margin = margin
        self.threshold = float("-inf")
        self.rows = torch.empty(0, dtype=torch.int64)
        self._k = k
        self._scores = torch.empty(0)

    def expect(self, threshold: float) -> None:
        """Leave out, from now on, what is below a score that k rows are known to reach; they are still to be added."""
        self.threshold = max(self.threshold, threshold)

    def add(self, scores: Tensor, rows: Tensor) -> None:
        """Take in rows that were not added before, (n,), with their scores."""
        scores, rows = torch.cat([self._scores, scores]), torch.cat([self.rows, rows])
        if len(scores) >= self._k:
            self.expect(float(scores.topk(self._k).values[-1]))
        keep = scores >= self.threshold - self.margin
        self._scores, self.rows = scores[keep], rows[keep]


def closed_form(s: Tensor) -> Tensor:
    """`sum_i softmax(s)_i s_i` over the last axis."""
    return (s.softmax(dim=-1) * s).sum(dim=-1)


def canonical_scores(stored: Tensor, codes: Tensor, rows: Tensor) -> NDArray[np.float32]:
    """The scores (n,) that answers hold, of rows (n,) of the stored matrix against codes (M, D)."""
    exact = codes.double().T.contiguous()
    parts = [
        closed_form(stored.index_select(0, rows[start : start + _FINAL_ROWS]).double() @ exact).float()
        for start in range(0, max(1, len(rows)), _FINAL_ROWS)
    ]
    return torch.cat(parts).numpy()
