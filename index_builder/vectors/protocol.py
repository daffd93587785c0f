"""What a store of candidate embeddings does, whichever it is: the matrix on disk or the copy in Redis."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.vectors.codec import CORRUPT, HIT, MISS

__all__ = ["CORRUPT", "HIT", "MISS", "EmbeddingStore", "Fetched"]


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was found for the ids asked for.

    Attributes:
        vectors: (N, D) in the store's dtype; zero where there is none.
        status: (N,), HIT, MISS or CORRUPT.
    """

    vectors: NDArray[Any]
    status: NDArray[np.uint8]


class EmbeddingStore(Protocol):
    """The embeddings of one generation, by candidate id."""

    def put_many(self, ids: Sequence[str], vectors: NDArray[Any]) -> None:
        """Add vectors (N, D), rounded to the store's dtype. An id is put once."""

    def commit(self) -> None:
        """Declare the store complete; what was put can be counted on from here."""

    def get_many(self, ids: Sequence[str]) -> Fetched:
        """Fetch the vectors of ids, in the order asked."""

    def count(self) -> int:
        """How many embeddings a complete store holds; 0 when it is not complete."""

    def ping(self) -> None:
        """Raise StoreUnavailable when the store does not answer."""

    def close(self) -> None:
        """Let go of connections and maps."""
