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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.errors import VectorsDamaged
from polyrank.model.representations import Additions
from polyrank.model.search.widening import widen, widened

# Rows or products above could overflow float32.
LONGEST_ROW = 2.0**90
LARGEST_PRODUCT = 2.0**100

# The margin of scores with additions, as a share of the threshold: `2**-23` for scores that are equal in float32,
# `2**-24` twice for a GPU, which adds in float32. Float64 rounds a billionth of that.
RELATIVE = 2.0**-22

_UNIT = 2.0**-24  # of a float32 operation
_TINY = 2.0**-126  # the smallest normal float32; smaller numbers may be flushed to 0

Rows = NDArray[np.int64] | slice  # numbers of rows, or all from one to another
Scores = NDArray[np.float32] | NDArray[np.float64]


def margin_of(m: NDArray[np.float64], products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute twice the largest error of a score from the largest error of a product.

    The derivatives of the closed form sum to at most `1 + 2 (max s - score)`, and `max s - score <= W((M - 1) / e)`
    with Lambert's W, so to less than `1 + 2 ln(1 + (M - 1) / e)`. Rounding in the closed form itself adds the last
    term: `exp(t)` is off by `2**-22 (2 + |t|) exp(t)`, and the mean of `t**2` over the weights is at most
    `2 (2 + ln M)**2`.

    m: the number of codes of each context. products: the largest error of a product of each context.
    """
    slopes = 1 + 2 * np.log1p((m - 1) / math.e)
    margins: NDArray[np.float64] = 2 * (slopes * products + (m + 8) * 2**-22 * (2 + np.log(m)) ** 2)
    return margins


def rounding(codes: NDArray[np.float32], longest: float, late_weight: float = 1.0) -> float:
    """Bound how far below the k-th best score, computed in float32 on a CPU, the score of a row of the k best can be.

    A sum of D products in any order is off by at most `(D + 1) 2**-24 |y| |c|`. The sum of M terms in the closed form,
    which are not relative to the largest, is off by `(2 M + 2) 2**-24 |y| |c|`. The rest covers comparisons, and
    scores that are equal only in float32.

    codes: (M, D). longest: length of the longest row. late_weight: by which scores are multiplied in float64;
    `RELATIVE` is then to be added. Returns infinity if products may overflow.
    """
    m, dim = codes.shape
    length = _length(codes.astype(np.float64))
    largest = length * longest
    if not (longest < LONGEST_ROW and largest < LARGEST_PRODUCT):
        return math.inf
    products = (dim + 4) * _UNIT * largest * (1 + 2**-10) + dim * _TINY * (1 + length + longest)
    late: float = float(margin_of(np.array(float(m)), np.array(products))) + 2 * (2 * m + 4) * _UNIT * largest
    return late_weight * late + _TINY  # by which numbers that float32 hardly holds may be rounded


_BLOCK_ELEMENTS = 2**19  # of a block's rows, (size, D), or of its product, (size, M): 2 MB in float32 stay in cache
_BLOCK_ROWS = 128  # at least
_FEW_ROWS = 256  # up to so many rows, pruning costs more than scoring them all in float64
_FEW_CODES = 128  # products with so few are turned: NumPy reduces short rows slowly
_SLACK = 1.125  # a vector that is made again in a lower precision can be a little longer
_FINAL_ROWS = 256  # finalists scored at a time in float64; bounds the memory if a whole pool ties
_SMALL, _LARGE = 2.0**-80, 2.0**120  # between them sums of squares lose nothing in float32


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
    allowed: NDArray[np.bool_] | None = None,
    additions: Additions | None = None,
) -> TopK:
    """Find the k best rows by candidate attention, and by what is added to it.

    Args:
        matrix: candidate embeddings, (N, D) float16 or float32; may be memory-mapped.
        codes: one context's vectors, (M, D), the score scale multiplied in.
        k: how many rows to find; fewer come back when there are fewer.
        rows: score only these rows, ascending; best for few of them. None: all.
        longest: `longest_row(matrix)` or more, if it is known; saves a pass over the rows, and shows rows that changed.
        allowed: which rows to score, (N,); best for many of them. Not together with `rows`.
        additions: what to add to the scores; None: nothing.

    Returns:
        Rows of `matrix` and scores, exactly those of scoring every row and sorting by (-score, row).

    Raises:
        VectorsDamaged: a score by attention cannot be, given the length of the longest row.
    """
    n = len(rows) if rows is not None else len(matrix) if allowed is None else int(np.count_nonzero(allowed))
    if min(n, k) <= 0:
        return TopK(np.empty(0, np.int64), np.empty(0, np.float32))
    best = None
    with np.errstate(all="ignore"):  # what is no number is found by its score
        if n > max(k, _FEW_ROWS):
            best = Best.of(k, codes, longest_row(matrix) if longest is None else longest, additions)
        if best is None or best.margin == math.inf:  # few rows, or products that overflow in float32
            finalists = rows if allowed is None else np.flatnonzero(allowed)
        else:
            finalists = _finalists(_Blocks(np.asarray(matrix), rows, len(codes)), codes, best, allowed, additions)
        return ranked(matrix, codes, finalists, k, longest, additions)


def longest_row(matrix: NDArray[np.floating]) -> float:
    """Return the length of the longest row, or a little more: it bounds how far rounding can move a score."""
    with np.errstate(all="ignore"):
        blocks = _Blocks(np.asarray(matrix), None, 1)
        return float(np.max([longest_of(block) for block, _ in blocks], initial=0.0))


def longest_of(rows: NDArray[np.float32]) -> float:
    """Return the length of the longest of rows (n, D), n at least 1, or up to `(D + 4) 2**-24` of it more.

    That is more than what a sum of squares in float32 can lose.
    """
    square = float(np.vecdot(rows, rows).max())
    if not _SMALL < square < _LARGE:
        wide = rows.astype(np.float64)
        square = float(np.vecdot(wide, wide).max())
    surplus: float = (rows.shape[1] + 4) * _UNIT
    return math.sqrt(square) * (1 + surplus)


def scores_of(
    matrix: NDArray[np.floating], codes: NDArray[np.float32], additions: Additions | None = None
) -> NDArray[np.float32]:
    """Score every row of `matrix` (N, D) against one context's `codes` (M, D); returns (N,), as `top_k` scores."""
    with np.errstate(all="ignore"):
        late = _late(np.asarray(matrix), codes.astype(np.float64), None)
        return added(late, slice(None), additions).astype(np.float32)


def _finalists(
    blocks: "_Blocks",
    codes: NDArray[np.float32],
    best: "Best",
    allowed: NDArray[np.bool_] | None,
    additions: Additions | None,
) -> NDArray[np.int64]:
    """Find the kept rows whose computed score is within rounding of the k-th best, in row order."""
    transposed = np.ascontiguousarray(codes.T)
    products = np.empty((blocks.size, len(codes)), np.float32)
    for block, rows in blocks:
        s = turned(np.matmul(block, transposed, out=products[: len(block)]))
        reaches = ~(added(s.max(axis=0), rows, additions) < best.bar)  # so is what is no number; `best` refuses it
        alive = np.flatnonzero(reaches if allowed is None else reaches & allowed[rows])
        if allowed is None and 2 * len(alive) > len(block):  # not worth selecting: the threshold drops the others
            numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
            best.add(added(closed_form(s), rows, additions), numbers)
        elif len(alive):
            chosen = rows.start + alive if isinstance(rows, slice) else rows[alive]
            best.add(added(closed_form(s[:, alive]), chosen, additions), chosen)
    return np.sort(best.rows)


def turned(s: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return products (n, M) as (M, n), laid out so that what is next done to them is fast."""
    return np.ascontiguousarray(s.T) if s.shape[1] <= _FEW_CODES else s.T


class _Blocks:
    """Rows in float32, a block at a time, in one buffer that stays in cache: fresh memory costs more than the product.

    Iterates over (block (size, D), its rows); the next block overwrites it.
    """

    def __init__(self, stored: NDArray[Any], chosen: NDArray[np.int64] | None, m: int) -> None:
        self._stored, self._chosen = stored, chosen
        self._count = len(stored) if chosen is None else len(chosen)
        self.size = max(1, min(max(_BLOCK_ELEMENTS // max(stored.shape[1], m), _BLOCK_ROWS), self._count))

    def __iter__(self) -> Iterator[tuple[NDArray[np.float32], Rows]]:
        buffer = np.empty((self.size, self._stored.shape[1]), np.float32)
        for start in range(0, self._count, self.size):
            rows: Rows = slice(start, min(start + self.size, self._count))
            if self._chosen is not None:
                rows = self._chosen[rows]
            block = self._stored[rows]
            if block.dtype != np.float32:
                widen(block, buffer[: len(block)])
                block = buffer[: len(block)]
            yield block, rows


class Best:
    """The rows that can still be among the k best.

    Attributes:
        threshold: the k-th best score so far.
        margin: how far below the k-th best a computed score can be, by rounding, and still be among the k best.
    """

    def __init__(self, k: int, margin: float, relative: float = 0.0) -> None:
        """Begin without rows; `relative` is what the margin grows by, as a share of the threshold."""
        self.margin = margin
        self.threshold = -math.inf
        self.rows = np.empty(0, np.int64)
        self._relative = relative
        self._k = k
        self._scores: Scores = np.empty(0, np.float32)

    @classmethod
    def of(cls, k: int, codes: NDArray[np.float32], longest: float, additions: Additions | None) -> "Best":
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

    def add(self, scores: Scores, rows: NDArray[np.int64]) -> None:
        """Add new rows (n,) with their scores (n,), and drop the rows that fall below the bar.

        Raises VectorsDamaged for a score that is no number.
        """
        if math.isnan(largest := float(scores.max(initial=-math.inf))):
            raise VectorsDamaged(largest, math.inf)
        scores, rows = np.concatenate([self._scores, scores]), np.concatenate([self.rows, rows])
        if len(scores) >= self._k:
            at = len(scores) - self._k
            self.threshold = max(self.threshold, float(np.partition(scores, at)[at]))
        keep = scores >= self.bar
        self._scores, self.rows = scores[keep], rows[keep]


def added(late: Scores, rows: Rows, additions: Additions | None) -> Scores:
    """Add what a query adds to the scores, or bounds of scores, `late` (n,) of rows (n,).

    Returns (n,) float64, or `late` itself if nothing is added. Added numbers can be much larger than late scores, and
    float32 would round the late scores away.
    """
    if additions is None:
        return late
    return additions.late_weight * late.astype(np.float64) + additions.values[rows]


def closed_form(s: Scores) -> Scores:
    """Compute `sum_i softmax(s)_i s_i` over the first axis of (M, n), in its type."""
    weights = s - s.max(axis=0)
    np.exp(weights, out=weights)
    totals = weights.sum(axis=0)
    np.multiply(weights, s, out=weights)
    sums: Scores = weights.sum(axis=0)
    sums /= totals
    return sums


def ranked(
    stored: NDArray[np.floating],
    codes: NDArray[np.float32],
    rows: NDArray[np.int64] | None,
    k: int,
    longest: float | None = None,
    additions: Additions | None = None,
) -> TopK:
    """Score rows (n,), ascending, as answers report it, and return the k best; None: all. The rest as `top_k`."""
    exact = codes.astype(np.float64)
    late = _late(np.asarray(stored), exact, rows)
    _check(late, exact, longest)
    scores = added(late, slice(None) if rows is None else rows, additions).astype(np.float32)
    order = np.argsort(-scores, kind="stable")[:k]
    return TopK(order if rows is None else rows[order], scores[order])


def _check(scores: Scores, codes: NDArray[np.float64], longest: float | None) -> None:
    """Raise VectorsDamaged for late scores (n,) that are no numbers or, given the longest row, out of bounds.

    A late score is a weighted mean of the products of a row with the codes, none of which exceeds the product of the
    lengths. What a query adds has no such bounds, so it is not part of these scores. A file that is mapped can change
    after its checksum was taken. Codes that are no numbers tell nothing of the rows, so their scores are left to the
    caller.
    """
    if not math.isfinite(length := _length(codes)):
        return
    limit = math.inf if longest is None else _SLACK * length * longest + 2**-100
    largest = float(np.abs(scores.astype(np.float32)).max(initial=0.0))  # not a number if any is none
    if not largest <= limit:
        raise VectorsDamaged(largest, limit)


def _length(codes: NDArray[np.float64]) -> float:
    return math.sqrt(np.vecdot(codes, codes).max())


def _late(stored: NDArray[Any], codes: NDArray[np.float64], rows: NDArray[np.int64] | None) -> NDArray[np.float64]:
    """Score rows (n,) of the stored matrix by candidate attention to codes (M, D), (n,); None: all rows."""
    late = np.empty(len(stored) if rows is None else len(rows))
    for start in range(0, len(late), _FINAL_ROWS):
        part = slice(start, start + _FINAL_ROWS)
        own = widened(stored[part if rows is None else rows[part]]).astype(np.float64)
        late[part] = closed_form(np.matmul(codes, own.T))
    return late
