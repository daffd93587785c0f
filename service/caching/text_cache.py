"""Vectors of candidates that were sent as text before: in memory, and in Redis for all servers.

Keys in Redis are `pe:t:{<model fingerprint>}:<back-end>:<sha256 of the text>`: each back-end rounds in its own way. A
value tells its dtype and dimension and is checked as every other (vectors/codec.py). What is not known is encoded.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from numpy.typing import NDArray

from polyrank.service.caching.budget import Budget
from polyrank.service.caching.redis_tier import Cached
from polyrank.service.caching.vector_cache import VectorCache

__all__ = ["Cached", "TextCache"]


class TextCache:
    """The vectors of texts under one model and back-end. Safe to use from several threads.

    Args:
        vectors: by the sha256 of the text.
    """

    def __init__(self, vectors: VectorCache) -> None:
        self._vectors = vectors

    def read(self, texts: Sequence[str], budget: Budget | None = None) -> Cached:
        """Look texts up, as many as come in time.

        Args:
            texts: N of them.
            budget: the request's, for Redis; None: one of its own.
        """
        return self._vectors.read(_names(texts), budget or Budget())

    def write(self, texts: Sequence[str], vectors: NDArray[Any]) -> None:
        """Remember vectors (N, D); in the background in Redis, where it can keep up."""
        self._vectors.write(_names(texts), vectors)


def _names(texts: Sequence[str]) -> list[str]:
    return [sha256(text.encode()).hexdigest() for text in texts]
