"""Vectors of candidates that were sent as text before, shared by all servers of one Redis.

Keys are `pe:t:{<model fingerprint>}:<sha256 of the text>`; a value tells its dtype and dimension and is checked as
every other (index_builder.codec). Redis may lose, damage or refuse anything: what it does not give is encoded.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from numpy.typing import NDArray

from service.redis_server import Budget, RedisServer
from service.redis_tier import Cached, CountCache, RedisTier

__all__ = ["Cached", "TextCache"]

TIER = "text"


class TextCache:
    """The vectors of texts under one model. Safe to use from several threads.

    Args:
        server: where they are.
        lifetime_seconds: of what is written.
        count: told of each text asked for: tier, result, how many.
        fingerprint: the model's.
        dim: D.
        dtype: "float16" or "float32", as vectors are scored.
    """

    def __init__(
        self, server: RedisServer, lifetime_seconds: int, count: CountCache, fingerprint: str, dim: int, dtype: str
    ) -> None:
        self._redis = RedisTier(server, TIER, count, f"pe:t:{{{fingerprint}}}:", dim, dtype, lifetime_seconds)

    def read(self, texts: Sequence[str], budget: Budget | None = None) -> Cached:
        """Look texts up, as many as come in time.

        Args:
            texts: N of them.
            budget: the request's; None: one of its own.
        """
        return self._redis.read(_names(texts), budget or Budget())

    def write(self, texts: Sequence[str], vectors: NDArray[Any]) -> None:
        """Remember vectors (N, D) in the background; those of a Redis that cannot keep up are dropped."""
        self._redis.write(_names(texts), vectors)


def _names(texts: Sequence[str]) -> list[str]:
    return [sha256(text.encode()).hexdigest() for text in texts]
