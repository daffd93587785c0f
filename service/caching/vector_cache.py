"""Arrays under names that need not be computed or read again: in this process's memory, and behind it in Redis.

The names are candidates' ids for a generation's copy in Redis, or hashes of texts for texts that came with requests.
The arrays are vectors or, for a second stage, the rows of each name.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import sha256
from threading import Lock
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.vectors.encoder import DTYPES
from polyrank.index_builder.vectors.late import each_of
from polyrank.index_builder.vectors.redis import CORRUPT, HIT, MISS, Fetched, FetchedRows
from polyrank.model.representations import LateRows, Representations
from polyrank.service.caching.redis_server import Budget, RedisServer

ENTRY_BYTES = 220  # of an entry besides its name and its value: measured with tracemalloc, CPython 3.11
MEMORY_TIER = "lru"

# Counts arrays asked for: tier, result, how many.
CountCache = Callable[[str, str, int], None]
# What the value belongs to, and its name there.
Key = tuple[str, str]
F = TypeVar("F", Fetched, FetchedRows)
F_co = TypeVar("F_co", Fetched, FetchedRows, covariant=True)


class Lru:
    """Values by key, up to `max_bytes` of keys, values and what holds them. Safe to use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._entries: OrderedDict[Key, bytes] = OrderedDict()
        self.bytes = 0

    def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """Return the values of keys, in the order asked; None where there is none."""
        found = []
        with self._lock:
            for key in keys:
                value = self._entries.get(key)
                if value is not None:
                    self._entries.move_to_end(key)
                found.append(value)
        return found

    def put_many(self, entries: Iterable[tuple[Key, bytes]]) -> None:
        """Add values, or replace them; a value larger than `max_bytes` is not kept."""
        with self._lock:
            for key, value in entries:
                self._drop(key, self._entries.pop(key, None))
                self._entries[key] = value
                self.bytes += _bytes(key, value)
            while self.bytes > self._max_bytes:
                self._drop(*self._entries.popitem(last=False))

    def _drop(self, key: Key, value: bytes | None) -> None:
        if value is not None:
            self.bytes -= _bytes(key, value)


def _bytes(key: Key, value: bytes) -> int:
    return ENTRY_BYTES + len(key[1]) + len(value)


def known_of(statuses: NDArray[np.uint8], count: CountCache, tier: str) -> NDArray[np.bool_]:
    """Count what Redis gave by result, from its status; returns which are known, (N,)."""
    for result, status in (("hit", HIT), ("miss", MISS), ("corrupt", CORRUPT)):
        count(tier, result, int((statuses == status).sum()))
    return np.equal(statuses, HIT)


class Stored(Protocol[F_co]):
    """See `StoredVectors` and `StoredRows`."""

    at_once: int

    def get_many(self, names: Sequence[str]) -> F_co:
        """Fetch the arrays of names."""

    def put_many(self, names: Sequence[str], arrays: Any, /) -> None:
        """Write an array for each name."""


class RedisTier(Generic[F]):
    """The arrays in Redis whose keys have one beginning. Safe to use from several threads.

    An array that does not come in time, is damaged, or cannot be of the model, is not known; that is no error. Each
    array asked for is counted under the tier.
    """

    def __init__(self, server: RedisServer, tier: str, count: CountCache, stored: Stored[F]) -> None:
        self._server, self._tier, self._count = server, tier, count
        self._stored: Stored[F] = stored

    def read(self, names: Sequence[str], budget: Budget) -> tuple[list[F], bool]:
        """Look names up; returns what came in time of the first ones, and whether Redis answered."""
        if not names:
            return [], True
        starts = range(0, len(names), self._stored.at_once)
        steps = [partial(self._stored.get_many, names[start : start + self._stored.at_once]) for start in starts]
        answer = self._server.read(f"get_{self._tier}", steps, budget)
        for part in answer.parts:
            known_of(part.status, self._count, self._tier)
        if answer.asked:
            self._count(self._tier, "error", len(names) - sum(len(part.status) for part in answer.parts))
        return answer.parts, answer.available

    def write(self, names: Sequence[str], arrays: Any) -> None:
        """Put an array for each name in the background, if Redis can keep up."""
        if names:
            self._server.write(
                f"put_{self._tier}",
                partial(self._stored.put_many, names, arrays),
                partial(self._count, self._tier, "write_error", len(names)),
            )


class _ArrayCache(Generic[F]):
    """Arrays that belong together: of one model and dtype, or of one generation. Safe to use from several threads.

    A name means the same array in every cache of one space. Other spaces share the memory; None: nothing is kept in
    memory. Redis is behind it.
    """

    def __init__(
        self, space: str, dim: int, dtype: str, count: CountCache, memory: Lru | None, redis: RedisTier[F] | None
    ) -> None:
        self.dim, self.dtype, self._space = dim, DTYPES[dtype], f"{space} {dtype}"
        self._count, self._memory = count, memory
        self._redis: RedisTier[F] | None = redis

    def write(self, names: Sequence[str], arrays: Any) -> None:
        """Put an array for each name into memory and, in the background, into Redis."""
        self._remember(names, arrays)
        if self._redis is not None:
            self._redis.write(names, arrays)

    def _remembered(self, names: Sequence[str]) -> list[bytes | None]:
        if self._memory is None or not names:
            return [None] * len(names)
        values = self._memory.get_many([(self._space, name) for name in names])
        hits = len(values) - values.count(None)
        self._count(MEMORY_TIER, "hit", hits)
        self._count(MEMORY_TIER, "miss", len(names) - hits)
        return values

    def _remember(self, names: Sequence[str], arrays: Iterable[NDArray[Any]]) -> None:
        if self._memory is not None:
            made = (np.ascontiguousarray(each, self.dtype).tobytes() for each in arrays)
            self._memory.put_many(((self._space, name), each) for name, each in zip(names, made, strict=True))


class Cached(NamedTuple):
    """What a cache knew of N names: vectors (N, D), which of them are known (N,), and whether it answered."""

    vectors: NDArray[Any]
    known: NDArray[np.bool_]
    available: bool


class VectorCache(_ArrayCache[Fetched]):
    """Vectors (D,)."""

    def read(self, names: Sequence[str], budget: Budget) -> Cached:
        """Look names up; what Redis knows is put into memory."""
        values = self._remembered(names)
        known = np.array([value is not None for value in values], bool)
        vectors = np.zeros((len(names), self.dim), self.dtype)
        hits = b"".join(value for value in values if value is not None)
        vectors[known] = np.frombuffer(hits, self.dtype).reshape(-1, self.dim)
        gaps = np.flatnonzero(~known)
        if self._redis is None or not len(gaps):
            return Cached(vectors, known, True)
        parts, available = self._redis.read([names[at] for at in gaps.tolist()], budget)
        for part in parts:
            asked, gaps = np.split(gaps, [len(part.status)])
            is_there = part.status == HIT
            places = asked[is_there]
            vectors[places], known[places] = part.vectors[is_there], True
            self._remember([names[at] for at in places.tolist()], vectors[places])
        return Cached(vectors, known, available)


class RowsCache(_ArrayCache[FetchedRows]):
    """Rows of a second stage, `late`: (k, D2) for each name."""

    def __init__(
        self,
        space: str,
        late: LateRows,
        dtype: str,
        count: CountCache,
        memory: Lru | None,
        redis: RedisTier[FetchedRows] | None,
    ) -> None:
        super().__init__(f"{space} rows", late.dim, dtype, count, memory, redis)
        self.late = late

    def read(self, names: Sequence[str], budget: Budget) -> tuple[list[NDArray[Any] | None], bool]:
        """Look names up, as `VectorCache.read`; returns the rows of each, None where they are not known."""
        found = [
            None if value is None else np.frombuffer(value, self.dtype).reshape(-1, self.dim)
            for value in self._remembered(names)
        ]
        gaps = [at for at, rows in enumerate(found) if rows is None]
        if self._redis is None or not gaps:
            return found, True
        parts, available = self._redis.read([names[at] for at in gaps], budget)
        came = [rows for part in parts for rows in part.rows]
        for at, rows in zip(gaps, came, strict=False):
            if rows is not None:
                found[at] = rows
                self._remember([names[at]], [rows])
        return found, available


class TextCache:
    """What was made of texts that came with earlier requests. Safe to use from several threads.

    Keys in Redis are `pe:t:{<model fingerprint>}:<back-end>:<rounding>:<dtype>:<sha256 of the text>`: each rounds in
    its own way. Those of the rows for a second stage have `r:` before the hash.
    """

    def __init__(self, vectors: VectorCache, rows: RowsCache | None = None) -> None:
        self._vectors, self._rows = vectors, rows

    def read(self, texts: Sequence[str], budget: Budget) -> tuple[Cached, list[NDArray[Any] | None]]:
        """Look up N texts, as many as come in time; also returns their rows, if the model has a second stage."""
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

    def write(self, texts: Sequence[str], made: Representations) -> None:
        """Put what was made of texts, in the store's dtype."""
        names = _names(texts)
        self._vectors.write(names, made.first)
        if self._rows is not None and made.late is not None and made.counts is not None:
            self._rows.write(names, each_of(made.late, made.counts))


def _names(texts: Sequence[str]) -> list[str]:
    return [sha256(text.encode()).hexdigest() for text in texts]
