"""Retrieval through an index, as the service does it and a build measures it: the union of what each code finds."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.index.faiss_index import CandidateIndex

Rows = NDArray[np.int64]


class Retrieved(NamedTuple):
    """What is to be scored.

    Attributes:
        rows: ascending.
        bound: no row that was allowed and is not among them scores more: -inf where there is none, inf where the index
            may have missed some.
    """

    rows: Rows
    bound: float


def retrieve(
    index: CandidateIndex,
    codes: NDArray[np.float32],
    limit: int,
    exclude: Rows | None = None,
    only: NDArray[np.bool_] | None = None,
    threads: int | None = None,
    least: int = 10,
) -> Retrieved:
    """Of the rows that an index finds for a context's codes (M, D), those with the largest inner product with any.

    Args:
        index: searched for at least its own `depth` rows a code.
        codes: one context's vectors.
        limit: how many rows; more where the index's `depth` is more, fewer where there are no more.
        exclude: rows not to return, each once.
        only: (N,), true for the rows that may be returned.
        threads: of FAISS; None leaves it to FAISS.
        least: how many rows are needed, where there are as many.
    """
    dropped = np.empty(0, np.int64) if exclude is None else exclude
    allowed = index.count - len(dropped) if only is None else int(only.sum() - only[dropped].sum())
    limit = min(max(limit, index.depth), allowed)
    if limit <= 0:
        return Retrieved(np.empty(0, np.int64), -np.inf)
    each = limit if index.is_exact else _rows_a_code(limit, len(codes), least)
    rows, products = index.search(codes, each, exclude, only, threads)
    chosen = union(rows, products, limit)
    if len(chosen) == allowed:
        return Retrieved(np.sort(chosen), -np.inf)
    # Only an index that misses nothing bounds the rest. With every list `limit` long, a row outside the union has no
    # inner product above the worst of those inside, and a score is never above its largest inner product.
    bound = float(products[rows == chosen[-1]].max()) if index.is_exact else np.inf
    return Retrieved(np.sort(chosen), bound)


def _rows_a_code(limit: int, m: int, least: int) -> int:
    """How many rows to ask an index for, of each of `m` codes, so that their union is of the best `limit`, nearly.

    What is among the best for a context is among the best for many of its codes, so that lists need not be as long as
    their union; with fewer codes they overlap less. docs/measurements/index.md.

    >>> [_rows_a_code(200, m, 10) for m in (1, 4, 16, 64, 360)]
    [200, 200, 100, 50, 22]
    """
    return min(limit, max(least, math.ceil(2 * limit / math.sqrt(m))))


def union(rows: Rows, products: NDArray[np.float32], limit: int) -> Rows:
    """Of the rows found for all codes, the `limit` with the largest best inner product, best first; ties by row."""
    found = rows.ravel() >= 0
    distinct, inverse = np.unique(rows.ravel()[found], return_inverse=True)
    best = np.full(len(distinct), -np.inf, np.float32)
    np.maximum.at(best, inverse, products.ravel()[found])
    return distinct[np.lexsort((distinct, -best))[:limit]]
