"""Rows under names that need not be computed or read again: in this process's memory, and behind it in Redis.

The names are candidates' ids for a generation's copy in Redis, or hashes of texts for texts that came with requests.
The rows are vectors, one for each name, or those of a second stage.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import sha256
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.vectors.local import DTYPES
from polyrank.index_builder.vectors.redis import CORRUPT, HIT, MISS, StoredRows
from polyrank.model.representations import Representations, each_of
from polyrank.service.caching.redis_server import Budget, RedisServer

ENTRY_BYTES = 220  # of an entry besides its name and its value: measured with tracemalloc, CPython 3.11
MEMORY_TIER = "lru"

# Counts arrays asked for: tier, result, how many.
CountCache = Callable[[str, str, int], None]
# What the value belongs to, and its name there.
Key = tuple[str, str]


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


class RedisTier:
    """The rows in Redis whose keys have one beginning. Safe to use from several threads.

    Rows that do not come in time, are damaged, or cannot be of the model, are not known; that is no error. Each name
    asked for is counted under the tier.
    """

    def __init__(self, server: RedisServer, tier: str, count: CountCache, stored: StoredRows) -> None:
        self._server, self._tier, self._count, self._stored = server, tier, count, stored

    def read(self, names: Sequence[str], budget: Budget) -> tuple[list[bytes | None], bool]:
        """Look names up; returns the rows of each, None where they did not come in time, and whether Redis answered."""
        if not names:
            return [], True
        starts = range(0, len(names), self._stored.at_once)
        steps = [partial(self._stored.get_many, names[start : start + self._stored.at_once]) for start in starts]
        answer = self._server.read(f"get_{self._tier}", steps, budget)
        found: list[bytes | None] = []
        for rows, counts, status in answer.parts:
            known = known_of(status, self._count, self._tier).tolist()
            content, ends = rows.tobytes(), (np.cumsum(counts) * rows.itemsize * rows.shape[1]).tolist()
            each = zip([0, *ends], ends, known, strict=False)
            found += [content[start:end] if is_known else None for start, end, is_known in each]
        if answer.asked:
            self._count(self._tier, "error", len(names) - len(found))
        return found + [None] * (len(names) - len(found)), answer.available

    def write(self, names: Sequence[str], rows: Any) -> None:
        """Put the rows of each name in the background, if Redis can keep up."""
        if names:
            self._server.write(
                f"put_{self._tier}",
                partial(self._stored.put_many, names, rows),
                partial(self._count, self._tier, "write_error", len(names)),
            )


class Cached(NamedTuple):
    """What a cache knew of N names."""

    known: NDArray[np.bool_]  # which of them, (N,)
    rows: NDArray[Any]  # those of the first that is known, then those of the next, and so on, (R, D)
    counts: NDArray[np.int64]  # of the rows of each known name
    available: bool  # whether it answered


class RowsCache:
    """Rows (k, D) that belong together: of one model and dtype, or of one generation. A vector is the only row.

    Safe to use from several threads. A name means the same in every cache of one space. Other spaces share the memory;
    None: nothing is kept in memory. Redis is behind it.
    """

    def __init__(
        self, space: str, dim: int, dtype: str, count: CountCache, memory: Lru | None, redis: RedisTier | None
    ) -> None:
        self._dim, self._dtype, self._space = dim, DTYPES[dtype], f"{space} {dtype}"
        self._count, self._memory, self._redis = count, memory, redis

    def read(self, names: Sequence[str], budget: Budget) -> Cached:
        """Look names up; what Redis knows is put into memory."""
        values: list[bytes | None] = [None] * len(names)
        if self._memory is not None and names:
            values = self._memory.get_many([(self._space, name) for name in names])
            hits = len(values) - values.count(None)
            self._count(MEMORY_TIER, "hit", hits)
            self._count(MEMORY_TIER, "miss", len(names) - hits)
        gaps, available = [at for at, value in enumerate(values) if value is None], True
        if self._redis is not None and gaps:
            found, available = self._redis.read([names[at] for at in gaps], budget)
            for at, value in zip(gaps, found, strict=True):
                values[at] = value
            self._remember((names[at], value) for at, value in zip(gaps, found, strict=True) if value is not None)
        whole = [value for value in values if value is not None]
        counts = np.array([len(value) for value in whole], np.int64) // (self._dim * self._dtype.itemsize)
        rows = np.frombuffer(bytearray().join(whole), self._dtype).reshape(-1, self._dim)  # may be written to
        return Cached(np.array([value is not None for value in values], bool), rows, counts, available)

    def write(self, names: Sequence[str], rows: Any) -> None:
        """Put the rows of each name, or vectors (N, D), into memory and, in the background, into Redis."""
        made = (np.ascontiguousarray(each, self._dtype).tobytes() for each in rows)
        self._remember(zip(names, made, strict=True))
        if self._redis is not None:
            self._redis.write(names, rows)

    def _remember(self, values: Iterable[tuple[str, bytes]]) -> None:
        if self._memory is not None:
            self._memory.put_many(((self._space, name), value) for name, value in values)


class TextCache:
    """What was made of texts that came with earlier requests. Safe to use from several threads.

    Keys in Redis are `pe:t:{<model fingerprint>}:<back-end>:<rounding>:<dtype>:<sha256 of the text>`: each rounds in
    its own way. Those of the rows for a second stage have `r:` before the hash.
    """

    def __init__(self, vectors: RowsCache, rows: RowsCache | None = None) -> None:
        self._vectors, self._rows = vectors, rows

    def read(self, texts: Sequence[str], budget: Budget) -> tuple[Representations, NDArray[np.bool_], bool]:
        """Look up N texts, as many as come in time.

        Returns what was made of those that are known, which of all these are (N,), and whether the cache answered.
        """
        names = _names(texts)
        known, vectors, _, available = self._vectors.read(names, budget)
        if self._rows is None:
            return Representations(vectors), known, available
        places = np.flatnonzero(known)
        late = self._rows.read([names[at] for at in places.tolist()], budget)
        known[places] = late.known
        made = Representations(vectors[late.known], late.rows, late.counts)
        return made, known, available and late.available

    def write(self, texts: Sequence[str], made: Representations) -> None:
        """Put what was made of texts, in the store's dtype."""
        names = _names(texts)
        self._vectors.write(names, made.first)
        if self._rows is not None and made.late is not None and made.counts is not None:
            self._rows.write(names, each_of(made.late, made.counts))


def _names(texts: Sequence[str]) -> list[str]:
    return [sha256(text.encode()).hexdigest() for text in texts]
