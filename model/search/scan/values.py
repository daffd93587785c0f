"""What a scan is asked, and what it must be able to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.model.search.topk import TopK


@dataclass(frozen=True, slots=True)
class Query:
    """One context's search.

    Attributes:
        codes: its vectors, (M, D), the score scale multiplied in.
        k: how many rows; fewer come back when fewer are allowed.
        allowed: the rows that may be in the answer, (N,); None: all.
    """

    codes: NDArray[np.float32]
    k: int
    allowed: NDArray[np.bool_] | None = None

    def count(self, rows: int) -> int:
        """How many rows are allowed of so many."""
        return rows if self.allowed is None else int(np.count_nonzero(self.allowed))


class Scan(Protocol):
    """A pool that is ready to be scanned. Safe to call from several threads."""

    @property
    def shares(self) -> bool:
        """Whether several queries take one pass together, in less time than one after the other."""

    def top_k(self, queries: Sequence[Query]) -> list[TopK]:
        """Find each query's best rows, exactly."""
