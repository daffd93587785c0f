"""The copy of a generation's embeddings in Redis, for servers that do not hold the matrix.

    pe:{<generation>}:c:<id>   the vector of a candidate
    pe:{<generation>}:r:<id>   its rows for the second stage, where the model has one
    pe:{<generation>}:meta     count, dim, dtype, and "late" with a second stage; written last: the copy is complete

The braces are literal, and put a generation on one slot of a cluster. Redis may lose any value at any time, and others
may write there. So every value is checked when it is read: its form, its checksum, and that its vectors are numbers and
no longer than the model makes them. Where the URL names a secret, each value has a digest behind it
(polyrank.index_builder.redis_client.Seal).

A vector, and the rows of a candidate one after the other, are stored as

    version u8 | dtype u8 | dim u16 | crc32 u32 over the key and the rows | the rows, little-endian

of versions of their own. The checksum covers the key too: a damaged value is recognised, and so is one that belongs to
another key.
"""

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, cast
from zlib import crc32

import numpy as np
import orjson
from numpy.typing import NDArray

from polyrank.index_builder.errors import StoreUnavailable
from polyrank.index_builder.redis_client import (
    BUILDING_TIMEOUT_SECONDS,
    Client,
    Seal,
    connect,
    disconnect,
    translated,
)
from polyrank.index_builder.vectors.encoder import DTYPES
from polyrank.model.representations import LateRows

MGET_KEYS = 512
_PIPELINE_COMMANDS = 2000
_SCAN_COUNT = 1000
# Rows are asked for in answers of about this size.
_MGET_BYTES = 1 << 20

VERSION = 1
ROWS_VERSION = 3
MAX_DIM = 0xFFFF
HIT, MISS, CORRUPT = 0, 1, 2
_PREFIX = struct.Struct("<BBH")
_CRC_END = _PREFIX.size + 4


class Fetched(NamedTuple):
    """Vectors (N, D), zero where none was found, and the status of each, (N,): HIT, MISS or CORRUPT."""

    vectors: NDArray[Any]
    status: NDArray[np.uint8]


class FetchedRows(NamedTuple):
    """Rows (k, D2) of each of N names, None where none were found, and the status of each, (N,)."""

    rows: list[NDArray[Any] | None]
    status: NDArray[np.uint8]


def prefix(dtype: np.dtype[Any], dim: int, version: int = VERSION) -> bytes:
    """The first bytes of every value of this dtype and dimension; `version`: VERSION, or ROWS_VERSION for rows."""
    return _PREFIX.pack(version, list(DTYPES.values()).index(dtype), dim)


def encode(key: bytes, rows: NDArray[Any], head: bytes) -> bytes:
    """The value that stores a vector (D,) or rows (k, D) under a key; `head` is the `prefix` of dtype and dimension."""
    body = rows.tobytes()
    return head + crc32(body, crc32(key)).to_bytes(4, "little") + body


def _body(key: bytes, value: bytes | None, head: bytes, size: int, count: int | None) -> memoryview | None:
    """The rows of `size` bytes in a value; None where it has another head or number of rows, or its checksum is wrong.

    The length is looked at first: what a stranger has written there may be long.
    """
    if value is None or len(value) < _CRC_END or not value.startswith(head):
        return None
    body = memoryview(value)[_CRC_END:]
    if len(body) % size or count not in (None, len(body) // size):
        return None
    return body if crc32(body, crc32(key)) == int.from_bytes(value[_PREFIX.size : _CRC_END], "little") else None


def decode_many(keys: Sequence[bytes], values: Sequence[bytes | None], dtype: np.dtype[Any], dim: int) -> Fetched:
    """Read the vectors in the values of keys.

    A key without a value is a MISS. A value of another length, version, dtype or dimension is CORRUPT, and so is one
    whose checksum does not fit.
    """
    head, size = prefix(dtype, dim), dim * dtype.itemsize
    bodies = [_body(key, value, head, size, 1) for key, value in zip(keys, values, strict=True)]
    good, is_good = [body for body in bodies if body is not None], [body is not None for body in bodies]
    vectors = np.zeros((len(keys), dim), dtype)
    vectors[is_good] = np.frombuffer(b"".join(good), dtype).reshape(-1, dim)
    return Fetched(vectors, _status(values, is_good))


def _status(values: Sequence[bytes | None], is_good: Sequence[bool]) -> NDArray[np.uint8]:
    pairs = zip(values, is_good, strict=True)
    return np.array([HIT if good else MISS if value is None else CORRUPT for value, good in pairs], np.uint8)


def within(rows: NDArray[Any], longest: float) -> NDArray[np.bool_]:
    """Tell which rows (N, D) are numbers throughout and no longer than that, (N,)."""
    wide = rows.astype(np.float64)
    squares = np.einsum("nd,nd->n", wide, wide)
    inside: NDArray[np.bool_] = np.isfinite(squares) & (squares <= longest**2)
    return inside


def decode_rows(
    keys: Sequence[bytes], values: Sequence[bytes | None], dtype: np.dtype[Any], late: LateRows
) -> FetchedRows:
    """Read the rows in the values of keys; status as `decode_many`. Another number of rows is CORRUPT, too."""
    head, size = prefix(dtype, late.dim, ROWS_VERSION), late.dim * dtype.itemsize
    bodies = [_body(key, value, head, size, late.count) for key, value in zip(keys, values, strict=True)]
    found = [None if body is None else np.frombuffer(body, dtype).reshape(-1, late.dim) for body in bodies]
    return FetchedRows(found, _status(values, [rows is not None for rows in found]))


class StoredVectors:
    """Vectors (D,) in Redis under names; several threads may use it.

    Args:
        beginning: put before a name to make its key.
        longest: a length that no vector exceeds; one from Redis that does is CORRUPT.
        lifetime_seconds: of what is put; None: unlimited.
    """

    at_once = MGET_KEYS  # how many names are asked for in one go

    def __init__(
        self,
        client: Client,
        seal: Seal,
        beginning: str,
        dim: int,
        dtype: str,
        longest: float = math.inf,
        lifetime_seconds: int | None = None,
    ) -> None:
        self._values = _Values(client, seal, lifetime_seconds)
        self._key = beginning.encode()
        self._dim, self._dtype, self._longest = dim, DTYPES[dtype], longest

    def put_many(self, names: Sequence[str], vectors: NDArray[Any]) -> None:
        """Write vectors (N, D), rounded to the dtype; if StoreUnavailable is raised, some may have been written."""
        head, rows = prefix(self._dtype, self._dim), np.ascontiguousarray(vectors, self._dtype)
        keys = [self._key + name.encode() for name in names]
        self._values.put_many(keys, lambda at: encode(keys[at], rows[at], head), _PIPELINE_COMMANDS)

    def get_many(self, names: Sequence[str]) -> Fetched:
        """Fetch the vectors of names, in the order asked; errors as `translated`."""
        keys = [self._key + name.encode() for name in names]
        found = decode_many(keys, self._values.get_many(keys, self.at_once), self._dtype, self._dim)
        foreign = ~within(found.vectors, self._longest)
        found.vectors[foreign], found.status[foreign] = 0, CORRUPT
        return found


class StoredRows:
    """Rows (k, D2) in Redis under names, for a second stage; arguments and threads as `StoredVectors`.

    More rows than `most`, where their numbers differ, are CORRUPT, too.
    """

    def __init__(
        self,
        client: Client,
        seal: Seal,
        beginning: str,
        late: LateRows,
        dtype: str,
        longest: float = math.inf,
        most: float = math.inf,
        lifetime_seconds: int | None = None,
    ) -> None:
        self._values = _Values(client, seal, lifetime_seconds)
        self._key = beginning.encode()
        self._late, self._dtype, self._longest, self._most = late, DTYPES[dtype], longest, most
        usual_bytes = late.dim * self._dtype.itemsize * late.usual_count
        self.at_once = max(1, min(MGET_KEYS, _MGET_BYTES // usual_bytes))

    def put_many(self, names: Sequence[str], rows: Sequence[NDArray[Any]]) -> None:
        """Write the rows of each name, in the store's dtype; errors as `StoredVectors.put_many`."""
        keys = [self._key + name.encode() for name in names]
        head = prefix(self._dtype, self._late.dim, ROWS_VERSION)
        self._values.put_many(keys, lambda at: encode(keys[at], rows[at], head), self.at_once)

    def get_many(self, names: Sequence[str]) -> FetchedRows:
        """Fetch the rows of names, in the order asked; errors as `translated`."""
        keys = [self._key + name.encode() for name in names]
        found = decode_rows(keys, self._values.get_many(keys, self.at_once), self._dtype, self._late)
        for at, rows in enumerate(found.rows):
            too_many = rows is not None and self._late.count is None and len(rows) > self._most
            if rows is not None and (too_many or not within(rows, self._longest).all()):
                found.rows[at], found.status[at] = None, CORRUPT
        return found


class _Values(NamedTuple):
    """Sealed values of one Redis; `lifetime_seconds` is that of those put."""

    client: Client
    seal: Seal
    lifetime_seconds: int | None

    def put_many(self, keys: Sequence[bytes], value: Callable[[int], bytes], at_once: int) -> None:
        for start in range(0, len(keys), at_once):
            pipeline = self.client.pipeline(transaction=False)
            for at in range(start, min(start + at_once, len(keys))):
                pipeline.set(keys[at], self.seal.sealed(keys[at], value(at)), ex=self.lifetime_seconds)
            with translated():
                pipeline.execute()

    def get_many(self, keys: Sequence[bytes], at_once: int) -> list[bytes | None]:
        values: list[bytes | None] = []
        with translated():
            for start in range(0, len(keys), at_once):
                values += cast(list[bytes | None], self.client.mget(keys[start : start + at_once]))
        if len(values) != len(keys) or not all(value is None or isinstance(value, bytes) for value in values):
            raise StoreUnavailable("Redis failed: its answer belongs to another question")
        found = zip(keys, values, strict=True)
        return [None if value is None else self.seal.opened(key, value) for key, value in found]


def beginning_of(generation: str) -> str:
    """The beginning of the keys of a generation's vectors."""
    return f"pe:{{{generation}}}:c:"


def rows_beginning_of(generation: str) -> str:
    """The beginning of the keys of a generation's rows for the second stage."""
    return f"pe:{{{generation}}}:r:"


class RedisEmbeddings(StoredVectors):
    """The copy of one generation, over its own connections; see `connect`. `drop_generation` removes its keys.

    `longest` bounds the vectors that are read, not the rows. `rows`: those of the second stage; None: the model has
    none.
    """

    def __init__(
        self,
        url: str,
        generation: str,
        dim: int,
        dtype: str,
        timeout_seconds: float,
        late: LateRows | None = None,
        longest: float = math.inf,
    ) -> None:
        self._client, seal = connect(url, timeout_seconds), Seal(url)
        super().__init__(self._client, seal, beginning_of(generation), dim, dtype, longest)
        self.rows = None if late is None else StoredRows(self._client, seal, rows_beginning_of(generation), late, dtype)
        self._meta_key = f"pe:{{{generation}}}:meta".encode()
        self._shape = {"dim": dim, "dtype": dtype, "late": None if late is None else asdict(late)}
        self._put = 0

    def put_many(self, names: Sequence[str], vectors: NDArray[Any]) -> None:
        """Write vectors, and count them for `commit`."""
        super().put_many(names, vectors)
        self._put += len(names)

    def commit(self) -> None:
        """Declare the copy complete."""
        with translated():
            shape = {name: value for name, value in self._shape.items() if value is not None}
            meta = orjson.dumps({"count": self._put, **shape})
            self._client.set(self._meta_key, self._values.seal.sealed(self._meta_key, meta))

    def count(self) -> int:
        """The number of embeddings; 0 if the copy is incomplete, or of another dimension or dtype."""
        with translated():
            value = cast(bytes | None, self._client.get(self._meta_key))
        try:
            meta = orjson.loads(self._values.seal.opened(self._meta_key, value or b"") or b"{}")
        except orjson.JSONDecodeError:
            return 0
        if not isinstance(meta, dict) or any(meta.get(key) != wanted for key, wanted in self._shape.items()):
            return 0
        count = meta.get("count")
        return count if isinstance(count, int) else 0

    def ping(self) -> None:
        with translated():
            self._client.ping()

    def close(self) -> None:
        disconnect(self._client)


def drop_generation(url: str, generation: str) -> None:
    """Remove every key of a generation. If StoreUnavailable is raised, some may remain."""
    client = connect(url, BUILDING_TIMEOUT_SECONDS)
    try:
        with translated():
            client.unlink(f"pe:{{{generation}}}:meta")  # first: from here on the copy counts as incomplete
            keys: list[bytes] = []
            for key in client.scan_iter(match=f"pe:{{{generation}}}:[cr]:*", count=_SCAN_COUNT):
                keys.append(key)
                if len(keys) == _SCAN_COUNT:
                    client.unlink(*keys)
                    keys.clear()
            if keys:
                client.unlink(*keys)
    finally:
        disconnect(client)
