"""Vectors under names that need not be computed or read again: in this process's memory, and behind it in Redis.

The names are candidates' ids for a generation's copy in Redis, or hashes of texts for texts that came with requests.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.vectors.encoder import DTYPES
from polyrank.index_builder.vectors.late import each_of
from polyrank.index_builder.vectors.redis import CORRUPT, HIT, MGET_KEYS, MISS, Fetched, StoredRows, StoredVectors
from polyrank.model.representations import LateRows, Representations
from polyrank.service.caching.largest import Largest
from polyrank.service.caching.lru import Key, Lru
from polyrank.service.caching.redis_server import Budget, RedisServer

MEMORY_TIER = "lru"
DIGEST_LETTERS = 64  # of a sha256 in hexadecimal
# A request may count on so much of the memory. The rest is for what others keep meanwhile.
SHARE_OF_A_REQUEST = 0.5
# A text has no more rows for a second stage than it has bytes, and so many: special tokens, markers, a short prompt.
MORE_ROWS = 16

# Counts vectors asked for: tier, result, how many.
CountCache = Callable[[str, str, int], None]


class Cached(NamedTuple):
    """What a cache knew of N names: vectors (N, D), which of them are known (N,), and whether it answered."""

    vectors: NDArray[Any]
    known: NDArray[np.bool_]
    available: bool


def known_of(statuses: NDArray[np.uint8], count: CountCache, tier: str) -> NDArray[np.bool_]:
    """Count what Redis gave by result, from its status; returns which are known, (N,)."""
    for result, status in (("hit", HIT), ("miss", MISS), ("corrupt", CORRUPT)):
        count(tier, result, int((statuses == status).sum()))
    return np.equal(statuses, HIT)


class RedisTier:
    """The vectors in Redis whose keys have one beginning. Safe to use from several threads.

    A vector that does not come in time, is damaged, or is longer than `longest`, is not known; that is no error. Each
    vector asked for is counted under the tier. What is written stays for `lifetime_seconds`; None: for ever.
    """

    def __init__(
        self,
        server: RedisServer,
        tier: str,
        count: CountCache,
        beginning: str,
        dim: int,
        dtype: str,
        longest: float = math.inf,
        lifetime_seconds: int | None = None,
    ) -> None:
        self._server, self._tier, self._count = server, tier, count
        self._store = StoredVectors(server.client, server.seal, beginning, dim, dtype, longest, lifetime_seconds)
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
            found.vectors[rows], found.known[rows] = part.vectors, known_of(part.status, self._count, self._tier)
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

    def fits(self, count: int, name_letters: int, beside: int, share: float) -> bool:
        """Whether so many vectors fit into a share of the memory, with so many numbers beside all of them.

        Names have this length. What lies beside a vector is an entry of its own.
        """
        if self._memory is None:
            return False
        entries, numbers = count * (2 if beside else 1), count * self._dim + beside
        return self._memory.fits(entries, name_letters, numbers * self._dtype.itemsize, share)

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


class CachedRows(NamedTuple):
    """The rows (k, D2) of each of N names, None where a cache did not know them, and whether it answered."""

    rows: list[NDArray[Any] | None]
    available: bool


class RowsTier:
    """The rows of a second stage in Redis whose keys have one beginning; arguments and errors as `RedisTier`."""

    def __init__(
        self,
        server: RedisServer,
        tier: str,
        count: CountCache,
        beginning: str,
        late: LateRows,
        dtype: str,
        largest: Largest,
        lifetime_seconds: int | None = None,
    ) -> None:
        self._server, self._tier, self._count = server, tier, count
        most = largest.row, largest.rows
        self._store = StoredRows(server.client, server.seal, beginning, late, dtype, *most, lifetime_seconds)

    def read(self, names: Sequence[str], budget: Budget) -> CachedRows:
        """Look names up, as many as come in time."""
        found: list[NDArray[Any] | None] = []
        if not names:
            return CachedRows(found, True)
        at_once = self._store.at_once
        chunks = [names[start : start + at_once] for start in range(0, len(names), at_once)]
        answer = self._server.read(
            f"get_{self._tier}", [partial(self._store.get_many, each) for each in chunks], budget
        )
        for part in answer.parts:
            known_of(part.status, self._count, self._tier)
            found += part.rows
        if answer.asked:
            self._count(self._tier, "error", len(names) - len(found))
        return CachedRows(found + [None] * (len(names) - len(found)), answer.available)

    def write(self, names: Sequence[str], rows: Sequence[NDArray[Any]]) -> None:
        """Put the rows of each name in the background, if Redis can keep up."""
        if names:
            self._server.write(
                f"put_{self._tier}",
                partial(self._store.put_many, names, rows),
                partial(self._count, self._tier, "write_error", len(names)),
            )


class RowsCache:
    """Rows of a second stage that belong together, in memory and in Redis; see `VectorCache`."""

    def __init__(
        self, space: str, late: LateRows, dtype: str, count: CountCache, memory: Lru | None, redis: RowsTier | None
    ) -> None:
        self.late, self._space, self._dtype = late, f"{space} {dtype} rows", DTYPES[dtype]
        self._count, self._memory, self._redis = count, memory, redis

    def read(self, names: Sequence[str], budget: Budget) -> CachedRows:
        """Look names up; what Redis knows is put into memory."""
        found = self._remembered(names)
        gaps = [at for at, rows in enumerate(found) if rows is None]
        if self._redis is None or not gaps:
            return CachedRows(found, True)
        fetched = self._redis.read([names[at] for at in gaps], budget)
        for at, rows in zip(gaps, fetched.rows, strict=True):
            found[at] = rows
        known = [at for at in gaps if found[at] is not None]
        self._remember([names[at] for at in known], [rows for rows in fetched.rows if rows is not None])
        return CachedRows(found, fetched.available)

    def write(self, names: Sequence[str], rows: Sequence[NDArray[Any]]) -> None:
        """Put the rows of each name into memory and, in the background, into Redis."""
        self._remember(names, rows)
        if self._redis is not None:
            self._redis.write(names, rows)

    def _remembered(self, names: Sequence[str]) -> list[NDArray[Any] | None]:
        if self._memory is None or not names:
            return [None] * len(names)
        values = self._memory.get_many([(self._space, name) for name in names])
        hits = sum(value is not None for value in values)
        self._count(MEMORY_TIER, "hit", hits)
        self._count(MEMORY_TIER, "miss", len(names) - hits)
        shape = -1, self.late.dim
        return [None if value is None else np.frombuffer(value, self._dtype).reshape(shape) for value in values]

    def _remember(self, names: Sequence[str], rows: Sequence[NDArray[Any]]) -> None:
        if self._memory is not None:
            made = (np.ascontiguousarray(each, self._dtype).tobytes() for each in rows)
            self._memory.put_many(((self._space, name), each) for name, each in zip(names, made, strict=True))


class TextCache:
    """What was made of texts that came with earlier requests. Safe to use from several threads.

    Keys in Redis are `pe:t:{<model fingerprint>}:<back-end>:<precision>:<sha256 of the text>`: each rounds in its own
    way. Those of the rows for a second stage have `r:` before the hash.

    `most_rows` is how many rows a text may have where their numbers differ.
    """

    def __init__(self, vectors: VectorCache, rows: RowsCache | None = None, most_rows: int = 0) -> None:
        self._vectors, self._rows, self._most_rows = vectors, rows, most_rows

    def read(self, texts: Sequence[str], budget: Budget) -> tuple[Cached, list[NDArray[Any] | None]]:
        """Look up N texts, as many as come in time; also returns their rows, if the model has a second stage.

        A text whose rows are missing is not known.
        """
        names = _names(texts)
        found = self._vectors.read(names, budget)
        if self._rows is None:
            return found, []
        known = np.flatnonzero(found.known)
        rows, available = self._rows.read([names[at] for at in known.tolist()], budget)
        of_texts: list[NDArray[Any] | None] = [None] * len(texts)
        for at, each in zip(known.tolist(), rows, strict=True):
            of_texts[at], found.known[at] = each, each is not None
        return found._replace(available=found.available and available), of_texts

    def holds(self, texts: Sequence[str]) -> bool:
        """Whether memory keeps what is made of these texts for a request that is sent again.

        Redis does not count: a request may read only for a moment, and what comes late is encoded anew.
        """
        return self._vectors.fits(len(texts), DIGEST_LETTERS, self._most_numbers(texts), SHARE_OF_A_REQUEST)

    def _most_numbers(self, texts: Sequence[str]) -> int:
        """Return how many numbers the rows of texts have at most."""
        if self._rows is None:
            return 0
        late = self._rows.late
        if late.count is not None:
            return late.dim * late.count * len(texts)
        return late.dim * sum(min(self._most_rows, len(text.encode()) + MORE_ROWS) for text in texts)

    def write(self, texts: Sequence[str], made: Representations) -> None:
        """Put what was made of texts, in the store's dtype."""
        names = _names(texts)
        self._vectors.write(names, made.first)
        if self._rows is not None and made.late is not None and made.counts is not None:
            self._rows.write(names, each_of(made.late, made.counts))


def _names(texts: Sequence[str]) -> list[str]:
    return [sha256(text.encode()).hexdigest() for text in texts]
