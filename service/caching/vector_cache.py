"""Vectors under names that need not be computed again: those in this process's memory, then those in Redis."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.vectors.codec import DTYPES
from polyrank.service.caching.budget import Budget
from polyrank.service.caching.lru import Key, Lru
from polyrank.service.caching.redis_tier import Cached, CountCache, RedisTier

TIER = "lru"


class VectorCache:
    """Vectors that belong together: of one model and dtype, or of one generation. Safe to use from several threads.

    Args:
        space: the names mean the same vectors in every cache of this space.
        dim: D.
        dtype: "float16" or "float32".
        count: told of each vector asked for: tier, result, how many.
        memory: shared with other spaces; None: nothing is kept here.
        redis: behind it; None: there is none.
    """

    def __init__(
        self, space: str, dim: int, dtype: str, count: CountCache, memory: Lru | None, redis: RedisTier | None
    ) -> None:
        self._space, self._dim, self._dtype = f"{space} {dtype}", dim, DTYPES[dtype]
        self._count, self._memory, self._redis = count, memory, redis

    def read(self, names: Sequence[str], budget: Budget) -> Cached:
        """Look names up; what Redis knows is remembered here."""
        found = self._remembered(names)
        gaps = np.flatnonzero(~found.known)
        if self._redis is None or not len(gaps):
            return found
        wanted = [names[at] for at in gaps.tolist()]
        vectors, known, available = self._redis.read(wanted, budget)
        found.vectors[gaps], found.known[gaps] = vectors, known
        places = np.flatnonzero(known)
        self.remember([wanted[at] for at in places.tolist()], vectors[places])
        return found._replace(available=available)

    def _remembered(self, names: Sequence[str]) -> Cached:
        vectors, known = np.zeros((len(names), self._dim), self._dtype), np.zeros(len(names), bool)
        if self._memory is not None and names:
            values = self._memory.get_many([self._key(name) for name in names])
            hits = [value for value in values if value is not None]
            known[:] = [value is not None for value in values]
            vectors[known] = np.frombuffer(b"".join(hits), self._dtype).reshape(-1, self._dim)
            self._count(TIER, "hit", len(hits))
            self._count(TIER, "miss", len(names) - len(hits))
        return Cached(vectors, known, True)

    def remember(self, names: Sequence[str], vectors: NDArray[Any]) -> None:
        """Keep vectors (N, D) in memory."""
        if self._memory is not None:
            rows = np.ascontiguousarray(vectors, self._dtype)
            self._memory.put_many((self._key(name), row.tobytes()) for name, row in zip(names, rows, strict=True))

    def write(self, names: Sequence[str], vectors: NDArray[Any]) -> None:
        """Keep vectors (N, D) in memory, and in the background in Redis."""
        self.remember(names, vectors)
        if self._redis is not None:
            self._redis.write(names, vectors)

    def _key(self, name: str) -> Key:
        return self._space, name
