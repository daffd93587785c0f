"""Exact top-k over stored candidate embeddings.

The score of a row is the closed form of candidate attention over the stored vector, rounded to float32. Equal texts
must tie, so a score may not depend on the row's place in a block or on the machine's matrix kernels. Therefore float32
only finds the rows that can be among the best, and these finalists are scored again in float64.

A query can add a number to each row's score (`Additions`). Then the score is `late_weight * closed form + number`,
computed in float64 and rounded to float32.

Pruning: `score <= max_i s_i`, because the softmax weights of Humeau et al. are a convex combination. A row whose
largest `s_i` stays below the k-th best score so far needs no softmax. After the first blocks almost no row needs one.
With additions `late_weight * max_i s_i + number` bounds the score in the same way, because the late weight is positive.

How far below the k-th best computed score a row of the k best can be is bounded by the error of rounding (`rounding`).
With additions a score is `w late + a`: w is the late weight, and a is the row's number, which float32 holds exactly.
The CPU computes that in float64 from a late score in float32, so of its error only w times that of the late score
matters. Rounding the answer to float32 is different: two scores are equal there up to `2**-23` of their size, and the
size of a has no bound. A margin for the largest a would be far too wide for all others. What may be taken for equal to
the k-th best is however about as large as the k-th best itself. So a share of the threshold is added to the margin.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.model.errors import VectorsDamaged
from polyrank.model.representations import Additions

# Rows or products above could overflow float32.
LONGEST_ROW = 2.0**90
LARGEST_PRODUCT = 2.0**100

# The margin of scores with additions, as a share of the threshold: `2**-23` for scores that are equal in float32,
# `2**-24` twice for a GPU, which adds in float32. Float64 rounds a billionth of that.
RELATIVE = 2.0**-22

_UNIT = 2.0**-24  # of a float32 operation
_TINY = 2.0**-126  # the smallest normal float32; smaller numbers may be flushed to 0


def margin_of(m: NDArray[np.float64], products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute twice the largest error of a score from the largest error of a product.

    The derivatives of the closed form sum to at most `1 + 2 (max s - score)`, and `max s - score <= W((M - 1) / e)`
    with Lambert's W, so to less than `1 + 2 ln(1 + (M - 1) / e)`. Rounding in the closed form itself adds the last
    term: `exp(t)` is off by `2**-22 (1 + |t|) exp(t)`, and the mean of `t**2` over the weights is at most
    `2 (2 + ln M)**2`.

    m: the number of codes of each context. products: the largest error of a product of each context.
    """
    slopes = 1 + 2 * np.log1p((m - 1) / math.e)
    margins: NDArray[np.float64] = 2 * (slopes * products + (m + 8) * 2**-22 * (2 + np.log(m)) ** 2)
    return margins


def rounding(codes: Tensor, longest: float, late_weight: float = 1.0) -> float:
    """Bound how far below the k-th best score, computed in float32 on a CPU, the score of a row of the k best can be.

    A sum of D products in any order is off by at most `(D + 1) 2**-24 |y| |c|`. The sum of M terms in the closed form,
    which are not relative to the largest, is off by `(2 M + 2) 2**-24 |y| |c|`. The rest covers comparisons, and
    scores that are equal only in float32.

    codes: (M, D) float32. longest: length of the longest row. late_weight: by which scores are multiplied in float64;
    `RELATIVE` is then to be added. Returns infinity if products may overflow.
    """
    m, dim = codes.shape
    length = float(torch.linalg.vector_norm(codes, dim=1, dtype=torch.float64).max())
    largest = length * longest
    if not (longest < LONGEST_ROW and largest < LARGEST_PRODUCT):
        return math.inf
    products = (dim + 4) * _UNIT * largest * (1 + 2**-10) + dim * _TINY * (1 + length + longest)
    late = float(margin_of(np.array(float(m)), np.array(products))) + 2 * (2 * m + 4) * _UNIT * largest
    return late_weight * late + _TINY  # by which numbers that float32 hardly holds may be rounded


_BLOCK_ELEMENTS = 2**19  # of a block's rows, (size, D), or of its product, (size, M): 2 MB in float32 stay in cache
_BLOCK_ROWS = 128  # at least
_FEW_ROWS = 256  # up to so many rows, pruning costs more than scoring them all in float64
_SLACK = 1.125  # a vector that is made again in a lower precision can be a little longer
_FINAL_ROWS = 4096  # finalists scored at a time in float64; bounds the memory if a whole pool ties


class TopK(NamedTuple):
    """Rows (k,) int64 and their scores (k,) float32, best first; equal scores in row order."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]


def top_k(
    matrix: NDArray[np.floating],
    codes: NDArray[np.float32],
    k: int,
    rows: NDArray[np.int64] | None = None,
    longest: float | None = None,
    kept: NDArray[np.bool_] | None = None,
    additions: Additions | None = None,
) -> TopK:
    """Find the k best rows by candidate attention, and by what is added to it.

    Args:
        matrix: candidate embeddings, (N, D) float16 or float32; may be memory-mapped.
        codes: one context's vectors, (M, D), the score scale multiplied in.
        k: how many rows to find; fewer come back when there are fewer.
        rows: score only these rows, ascending; best for few of them. None: all.
        longest: `longest_row(matrix)` or more, if it is known; saves a pass over the rows, and shows rows that changed.
        kept: which rows to score, (N,); best for many of them. Not together with `rows`.
        additions: what to add to the scores; None: nothing.

    Returns:
        Rows of `matrix` and scores, exactly those of scoring every row and sorting by (-score, row).

    Raises:
        VectorsDamaged: a score by attention cannot be, given the length of the longest row.
    """
    n = len(rows) if rows is not None else len(matrix) if kept is None else int(np.count_nonzero(kept))
    if min(n, k) <= 0:
        return TopK(np.empty(0, np.int64), np.empty(0, np.float32))
    with torch.inference_mode():
        stored, vectors = torch.from_numpy(matrix), torch.from_numpy(codes)
        chosen = None if rows is None else torch.from_numpy(rows)
        mask = None if kept is None else torch.from_numpy(kept)
        best = None
        if n > max(k, _FEW_ROWS):
            best = Best.of(k, vectors, longest_row(matrix) if longest is None else longest, additions)
        if best is None or best.margin == math.inf:  # few rows, or products that overflow in float32
            finalists = _all_of(len(matrix), chosen, mask)
        else:
            finalists = _finalists(_Blocks(stored, chosen, len(codes)), vectors, best, mask, additions)
        return ranked(stored, vectors, finalists, k, longest, additions)


def longest_row(matrix: NDArray[np.floating]) -> float:
    """Return the length of the longest row, which bounds how far rounding can move a score."""
    with torch.inference_mode():
        blocks = _Blocks(torch.from_numpy(matrix), None, 1)
        return max(
            (float(torch.linalg.vector_norm(block, dim=1, dtype=torch.float64).max()) for block, _ in blocks),
            default=0.0,
        )


def scores_of(
    matrix: NDArray[np.floating], codes: NDArray[np.float32], additions: Additions | None = None
) -> NDArray[np.float32]:
    """Score every row of `matrix` (N, D) against one context's `codes` (M, D); returns (N,), as `top_k` scores."""
    with torch.inference_mode():
        rows = torch.arange(len(matrix))
        return added(_late(torch.from_numpy(matrix), torch.from_numpy(codes), rows), rows, additions).float().numpy()


def _all_of(count: int, chosen: Tensor | None, kept: Tensor | None) -> Tensor:
    if chosen is not None:
        return chosen
    return torch.arange(count) if kept is None else kept.nonzero()[:, 0]


def _finalists(
    blocks: "_Blocks", codes: Tensor, best: "Best", kept: Tensor | None, additions: Additions | None
) -> Tensor:
    """Find the kept rows whose computed score is within rounding of the k-th best, in row order."""
    transposed = codes.T.contiguous()
    products = torch.empty(blocks.size, len(codes))
    for block, rows in blocks:
        s = torch.mm(block, transposed, out=products[: len(block)])  # (rows, M)
        reaches = ~(added(s.amax(dim=1), rows, additions) < best.bar)  # so is what is no number, which `best` refuses
        alive = (reaches if kept is None else reaches & kept[rows]).nonzero()[:, 0]
        if kept is None and 2 * len(alive) > len(rows):  # not worth selecting: the threshold drops the others
            best.add(added(closed_form(s), rows, additions), rows)
        elif len(alive):
            best.add(added(closed_form(s[alive]), rows[alive], additions), rows[alive])
    return best.rows.sort().values


class _Blocks:
    """Rows in float32, a block at a time, in one buffer that stays in cache: fresh memory costs more than the product.

    Iterates over (block (size, D), its rows (size,)); the next block overwrites it.
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
    """The rows that can still be among the k best.

    Attributes:
        threshold: the k-th best score so far.
        margin: how far below the k-th best a computed score can be, by rounding, and still be among the k best.
        rows: those that reach the bar.
    """

    def __init__(self, k: int, margin: float, relative: float = 0.0) -> None:
        """Begin without rows; `relative` is what the margin grows by, as a share of the threshold."""
        self.margin = margin
        self.threshold = float("-inf")
        self.rows = torch.empty(0, dtype=torch.int64)
        self._relative = relative
        self._k = k
        self._scores = torch.empty(0)

    @classmethod
    def of(cls, k: int, codes: Tensor, longest: float, additions: Additions | None) -> "Best":
        """Begin a search with codes (M, D) among rows up to a length; the margin is infinite if products overflow."""
        if additions is None:
            return cls(k, rounding(codes, longest))
        return cls(k, rounding(codes, longest, additions.late_weight), RELATIVE)

    @property
    def bar(self) -> float:
        """What a computed score must reach for its row to be among the k best."""
        if not math.isfinite(self.threshold):
            return self.threshold
        return self.threshold - self.margin - self._relative * abs(self.threshold)

    def expect(self, threshold: float) -> None:
        """Raise the threshold to a score that k rows are known to reach; these rows are yet to be added."""
        self.threshold = max(self.threshold, threshold)

    def add(self, scores: Tensor, rows: Tensor) -> None:
        """Add new rows (n,) with their scores (n,), and drop the rows that fall below the bar.

        Raises VectorsDamaged for a score that is no number.
        """
        if len(scores) and math.isnan(largest := float(scores.amax())):
            raise VectorsDamaged(largest, math.inf)
        scores, rows = torch.cat([self._scores, scores]), torch.cat([self.rows, rows])
        if len(scores) >= self._k:
            self.expect(float(scores.topk(self._k).values[-1]))
        keep = scores >= self.bar
        self._scores, self.rows = scores[keep], rows[keep]


def added(late: Tensor, rows: Tensor, additions: Additions | None) -> Tensor:
    """Add what a query adds to the scores, or bounds of scores, `late` (n,) of rows (n,).

    Returns (n,) float64, or `late` itself if nothing is added. Added numbers can be much larger than late scores, and
    float32 would round the late scores away.
    """
    if additions is None:
        return late
    return additions.late_weight * late.double() + torch.from_numpy(additions.values[rows.numpy()])


def closed_form(s: Tensor) -> Tensor:
    """Compute `sum_i softmax(s)_i s_i` over the last axis."""
    return (s.softmax(dim=-1) * s).sum(dim=-1)


def ranked(
    stored: Tensor,
    codes: Tensor,
    rows: Tensor,
    k: int,
    longest: float | None = None,
    additions: Additions | None = None,
) -> TopK:
    """Score rows (n,) as answers report it, and return the k best; `longest`, `additions` and errors as `top_k`."""
    late = _late(stored, codes, rows)
    _check(late.float().numpy(), codes, longest)
    scores = added(late, rows, additions).float().numpy()
    order = np.lexsort((rows.numpy(), -scores))[:k]
    return TopK(rows.numpy()[order], scores[order])


def _check(scores: NDArray[np.float32], codes: Tensor, longest: float | None) -> None:
    """Raise VectorsDamaged for late scores (n,) that are no numbers or, given the longest row, out of bounds.

    A late score is a weighted mean of the products of a row with the codes, none of which exceeds the product of the
    lengths. What a query adds has no such bounds, so it is not part of these scores. A file that is mapped can change
    after its checksum was taken. Codes that are no numbers tell nothing of the rows, so their scores are left to the
    caller.
    """
    if not math.isfinite(length := _length(codes)):
        return
    limit = math.inf if longest is None else _SLACK * length * longest + 2**-100
    largest = float(np.abs(scores).max(initial=0.0))  # not a number if any is none
    if not largest <= limit:
        raise VectorsDamaged(largest, limit)


def _length(codes: Tensor) -> float:
    return float(torch.linalg.vector_norm(codes, dim=1, dtype=torch.float64).max())


def _late(stored: Tensor, codes: Tensor, rows: Tensor) -> Tensor:
    """Score rows (n,) of the stored matrix against codes (M, D) by candidate attention, (n,) float64."""
    exact = codes.double().T.contiguous()
    parts = [
        closed_form(stored.index_select(0, rows[start : start + _FINAL_ROWS]).double() @ exact)
        for start in range(0, max(1, len(rows)), _FINAL_ROWS)
    ]
    return torch.cat(parts)
