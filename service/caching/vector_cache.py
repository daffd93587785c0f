"""Vectors under names that need not be computed or read again: in this process's memory, and behind it in Redis.

The names are candidates' ids for a generation's copy in Redis, or hashes of texts for texts that came with requests.
"""

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.vectors.codec import CORRUPT, DTYPES, HIT, MISS, Fetched
from polyrank.index_builder.vectors.redis import MGET_KEYS, StoredVectors
from polyrank.service.caching.lru import Key, Lru
from polyrank.service.caching.redis_server import Budget, RedisServer

MEMORY_TIER = "lru"

# Counts vectors asked for: tier, result, how many.
CountCache = Callable[[str, str, int], None]


class Cached(NamedTuple):
    """What a cache knew of N names: vectors (N, D), which of them are known (N,), and whether it answered."""

    vectors: NDArray[Any]
    known: NDArray[np.bool_]
    available: bool


def known_of(fetched: Fetched, count: CountCache, tier: str) -> NDArray[np.bool_]:
    """Count what Redis gave by result; returns which vectors are known, (N,)."""
    for result, status in (("hit", HIT), ("miss", MISS), ("corrupt", CORRUPT)):
        count(tier, result, int((fetched.status == status).sum()))
    return np.equal(fetched.status, HIT)


class RedisTier:
    """The vectors in Redis whose keys have one beginning. Safe to use from several threads.

    A vector that does not come in time, or is damaged, is not known; that is no error. Each vector asked for is counted
    under the tier. What is written stays for `lifetime_seconds`; None: for ever.
    """

    def __init__(
        self,
        server: RedisServer,
        tier: str,
        count: CountCache,
        beginning: str,
        dim: int,
        dtype: str,
        lifetime_seconds: int | None = None,
    ) -> None:
        self._server, self._tier, self._count = server, tier, count
        self._store = StoredVectors(server.client, beginning, dim, dtype, lifetime_seconds)
        self._dim, self._dtype = dim, DTYPES[dtype]

    def read(self, names: Sequence[str], budget: Budget) -> Cached:
        """Look names up, as many as come in time."""
        found = Cached(np.zeros((len(names), self._dim), self._dtype), np.zeros(len(names), bool), True)
        if not names:
            return found
        chunks = [names[start : start + MGET_KEYS] for start in range(0, len(names), MGET_KEYS)]
        steps = [partial(self._store.get_many, chunk) for chunk in chunks]
        answer = self._server.read(f"get_{self._tier}", steps, budget)
        if answer.asked:
            self._enter(found, answer.parts)
        return found._replace(available=answer.available)

    def _enter(self, found: Cached, parts: Sequence[Fetched]) -> None:
        """Enter and count what came of the first names."""
        came = 0
        for part in parts:
            rows = slice(came, came + len(part.status))
            found.vectors[rows], found.known[rows] = part.vectors, known_of(part, self._count, self._tier)
            came += len(part.status)
        self._count(self._tier, "error", len(found.known) - came)

    def write(self, names: Sequence[str], vectors: NDArray[Any]) -> None:
        """Put vectors (N, D) in the background, if Redis can keep up."""
        if names:
            self._server.write(
                f"put_{self._tier}",
                partial(self._store.put_many, names, vectors),
                partial(self._count, self._tier, "write_error", len(names)),
            )


class VectorCache:
    """Vectors that belong together: of one model and dtype, or of one generation. Safe to use from several threads.

    A name means the same vector in every cache of one space. Other spaces share the memory; None: nothing is kept in
    memory. Redis is behind it.
    """

    def __init__(
        self, space: str, dim: int, dtype: str, count: CountCache, memory: Lru | None, redis: RedisTier | None
    ) -> None:
        self._space, self._dim, self._dtype = f"{space} {dtype}", dim, DTYPES[dtype]
        self._count, self._memory, self._redis = count, memory, redis

    def read(self, names: Sequence[str], budget: Budget) -> Cached:
        """Look names up; what Redis knows is put into memory."""
        found = self._remembered(names)
        gaps = np.flatnonzero(~found.known)
        if self._redis is None or not len(gaps):
            return found
        wanted = [names[at] for at in gaps.tolist()]
        vectors, known, available = self._redis.read(wanted, budget)
        found.vectors[gaps], found.known[gaps] = vectors, known
        places = np.flatnonzero(known)
        self._remember([wanted[at] for at in places.tolist()], vectors[places])
        return found._replace(available=available)

    def write(self, names: Sequence[str], vectors: NDArray[Any]) -> None:
        """Put vectors (N, D) into memory and, in the background, into Redis."""
        self._remember(names, vectors)
        if self._redis is not None:
            self._redis.write(names, vectors)

    def _remembered(self, names: Sequence[str]) -> Cached:
        vectors, known = np.zeros((len(names), self._dim), self._dtype), np.zeros(len(names), bool)
        if self._memory is not None and names:
            values = self._memory.get_many([self._key(name) for name in names])
            hits = [value for value in values if value is not None]
            known[:] = [value is not None for value in values]
            vectors[known] = np.frombuffer(b"".join(hits), self._dtype).reshape(-1, self._dim)
            self._count(MEMORY_TIER, "hit", len(hits))
            self._count(MEMORY_TIER, "miss", len(names) - len(hits))
        return Cached(vectors, known, True)

    def _remember(self, names: Sequence[str], vectors: NDArray[Any]) -> None:
        if self._memory is not None:
            rows = np.ascontiguousarray(vectors, self._dtype)
            self._memory.put_many((self._key(name), row.tobytes()) for name, row in zip(names, rows, strict=True))

    def _key(self, name: str) -> Key:
        return self._space, name


class TextCache:
    """Vectors of candidates that came as text with earlier requests. Safe to use from several threads.

    Keys in Redis are `pe:t:{<model fingerprint>}:<back-end>:<precision>:<sha256 of the text>`: each rounds
    in its own way.
    """

    def __init__(self, vectors: VectorCache) -> None:
        self._vectors = vectors

    def read(self, texts: Sequence[str], budget: Budget) -> Cached:
        """Look up N texts, as many as come in time."""
        return self._vectors.read(_names(texts), budget)

    def write(self, texts: Sequence[str], vectors: NDArray[Any]) -> None:
        """Put vectors (N, D)."""
        self._vectors.write(_names(texts), vectors)


def _names(texts: Sequence[str]) -> list[str]:
    return [sha256(text.encode()).hexdigest() for text in texts]
