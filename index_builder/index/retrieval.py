"""How an index is searched for a context: the union of what its codes find, and of what words find where they count.

Requests and the measurements of a build go through the same functions.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.index.faiss_index import RETRIEVE_K, CandidateIndex
from polyrank.model.representations import Additions
from polyrank.model.search.topk import TopK, top_k

Rows = NDArray[np.int64]

# Rounding may move the index's inner products, sums of D products in float32, by this share of the score.
CERTIFICATE_MARGIN = 1e-4

_GROUPS = 8  # so many for each row that is wanted, so that few others reach the bar


class LargestRows(NamedTuple):
    """The rows with the largest values."""

    rows: Rows  # (n,), largest value first; equal values in row order
    values: NDArray[np.float32]  # theirs, (n,) float32
    rest: float  # the largest value of the other rows allowed; -inf: there are none

    def first(self, count: int) -> "LargestRows":
        if count >= len(self.rows):
            return self
        return LargestRows(self.rows[:count], self.values[:count], float(self.values[count]))


def largest_rows(values: NDArray[np.float32], count: int, allowed: NDArray[np.bool_] | None = None) -> LargestRows:
    """Find the rows with the largest values; at most `count`, which is at least 1.

    The values are dealt out to groups. The largest of each group are as many different rows as there are groups. So if
    the k-th largest of them is t, at least k rows reach t, and the k best are among those that do. Few others are: two
    passes over the values leave little more than k of them.

    values: (N,), finite. allowed: which rows may be returned, (N,); None: all.
    """
    if allowed is not None:
        values = np.where(allowed, values, np.float32(-np.inf))
    total = count + 1  # the last one is the largest of the rest
    least = _threshold(values, total)
    rows = _largest(values, np.flatnonzero(values >= least if least > -np.inf else values > least), total)
    largest = LargestRows(rows, values[rows], -np.inf)
    return largest.first(count)


def _threshold(values: NDArray[np.float32], count: int) -> float:
    """Return a number that at least so many values reach; -inf where it is not worth looking for one."""
    groups = _GROUPS * count
    size = len(values) // groups
    if size < 2:
        return -np.inf
    best = values[: size * groups].reshape(size, groups).max(axis=0)
    return float(np.partition(best, groups - count)[groups - count])


def _largest(values: NDArray[np.float32], rows: Rows, count: int) -> Rows:
    """Return the rows with the largest values of some rows, which are ascending; at most `count`, in order."""
    of_rows = values[rows]
    if len(rows) > count:  # without sorting them all: many can be equal
        last = np.partition(of_rows, len(rows) - count)[len(rows) - count]
        above = np.flatnonzero(of_rows > last)
        ties = np.flatnonzero(of_rows == last)[: count - len(above)]
        rows = rows[np.concatenate([above, ties])]
        of_rows = values[rows]
    return rows[np.lexsort((rows, -of_rows))]


class FoundRows(NamedTuple):
    """The rows to score."""

    rows: Rows  # ascending
    # The highest score that any other allowed row can have: -inf if there is no other row, inf if the index may have
    # missed some.
    bound: float


class BestByWords(NamedTuple):
    """The rows for which words say most."""

    late_weight: float  # of the scores by vectors beside the words
    best: LargestRows  # at least as many rows as are retrieved by vectors, or all that are allowed


def best_by_words(
    index: CandidateIndex, additions: Additions, limit: int, allowed: NDArray[np.bool_] | None = None
) -> BestByWords:
    """Choose rows by words, as many as `retrieve` does by vectors; `allowed` (N,) are the rows to choose from."""
    return BestByWords(additions.late_weight, largest_rows(additions.values, max(limit, index.depth), allowed))


def with_words(index: CandidateIndex, hits: FoundRows, words: BestByWords, limit: int) -> FoundRows:
    """Add the best by words to what `retrieve` found with this limit, and bound the whole score of the other rows."""
    best = words.best.first(max(limit, index.depth))
    rows = np.union1d(hits.rows, best.rows)
    if -np.inf in (hits.bound, best.rest):
        return FoundRows(rows, -np.inf)  # there are no other rows
    margin = CERTIFICATE_MARGIN * max(1.0, abs(hits.bound))
    return FoundRows(rows, words.late_weight * (hits.bound + margin) + best.rest)


def retrieve(
    index: CandidateIndex,
    codes: NDArray[np.float32],
    limit: int,
    exclude: Rows | None = None,
    only: NDArray[np.bool_] | None = None,
    threads: int | None = None,
    least: int = 10,
) -> FoundRows:
    """Retrieve the rows whose largest inner product with any of a context's codes is highest.

    codes: (M, D), one context's vectors. limit: how many rows to return: more if the index's `depth` is more, fewer if
    fewer are allowed. exclude: distinct rows not to return. least: how many rows the caller needs at least. Others are
    as of `CandidateIndex.search`.
    """
    dropped = np.empty(0, np.int64) if exclude is None else exclude
    allowed = index.count - len(dropped) if only is None else int(only.sum() - only[dropped].sum())
    limit = min(max(limit, index.depth), allowed)
    if limit <= 0:
        return FoundRows(np.empty(0, np.int64), -np.inf)
    depth = limit if index.is_exact else _rows_a_code(limit, len(codes), least)
    rows, products = index.search(codes, depth, exclude, only, threads)
    hits = union(rows, products, limit)
    if len(hits) == allowed:
        return FoundRows(np.sort(hits), -np.inf)
    # Only an index that misses nothing bounds the rest: each of its lists is `limit` long, so no inner product of a row
    # outside the union is above the worst of those inside, and a row's score is at most its largest inner product.
    bound = float(products[rows == hits[-1]].max()) if index.is_exact else np.inf
    return FoundRows(np.sort(hits), bound)


def search(
    index: CandidateIndex,
    matrix: NDArray[Any],
    codes: NDArray[np.float32],
    k: int,
    exclude: Rows | None = None,
    additions: Additions | None = None,
) -> TopK:
    """Retrieve rows and score them by the matrix (N, D), as the service does for a request that states no number.

    Returns at most `k` of the retrieved rows, which are counted from 0 in their order. `additions` is what words add to
    the score of each row of the matrix; None: nothing. It does not go with `exclude`.
    """
    hits = retrieve(index, codes, RETRIEVE_K, exclude)
    if additions is not None:
        hits = with_words(index, hits, best_by_words(index, additions, RETRIEVE_K), RETRIEVE_K)
        additions = Additions(additions.late_weight, additions.values[hits.rows])
    return top_k(matrix[hits.rows], codes, k, additions=additions)


def _rows_a_code(limit: int, m: int, least: int) -> int:
    """How many rows to ask for with each of `m` codes so that their union holds nearly all of the best `limit`.

    A row that is good for a context is good for many of its codes, so each list can be shorter than the union. The
    fewer the codes, the less their lists overlap. Measured: docs/measurements/index.md.

    >>> [_rows_a_code(200, m, 10) for m in (1, 4, 16, 64, 360)]
    [200, 200, 100, 50, 22]
    """
    return min(limit, max(least, math.ceil(2 * limit / math.sqrt(m))))


def union(rows: Rows, products: NDArray[np.float32], limit: int) -> Rows:
    """The `limit` distinct rows with the largest inner product with any code, best first; ties by row number."""
    is_row = rows.ravel() >= 0
    distinct, inverse = np.unique(rows.ravel()[is_row], return_inverse=True)
    best = np.full(len(distinct), -np.inf, np.float32)
    np.maximum.at(best, inverse, products.ravel()[is_row])
    return distinct[np.lexsort((distinct, -best))[:limit]]
