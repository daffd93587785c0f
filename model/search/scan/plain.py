"""A scan by the stored rows alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.model.search.scan.values import Query
from polyrank.model.search.topk import TopK, top_k


class PlainScan:
    """Scores rows in float32, a context after the other.

    Args:
        matrix: (N, D), float16 or float32.
        longest: the length of its longest row.
    """

    shares = False

    def __init__(self, matrix: NDArray[Any], longest: float) -> None:
        self._matrix, self._longest = matrix, longest

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self._matrix)

    def top_k(self, queries: Sequence[Query]) -> list[TopK]:
        """Find each query's best rows."""
        return [self.of(query) for query in queries]

    def of(self, query: Query) -> TopK:
        """Find one query's best rows."""
        rows, kept = None, query.allowed
        if kept is not None and 2 * query.count(len(self._matrix)) <= len(self._matrix):
            rows, kept = np.flatnonzero(kept), None  # others need not be read
        return top_k(self._matrix, query.codes, query.k, rows, self._longest, kept)
