"""The copy of a generation's embeddings in Redis, for servers that do not hold the matrix.

    pe:{<generation>}:c:<id>   the vector of a candidate
    pe:{<generation>}:r:<id>   its rows for the second stage, where the model has one
    pe:{<generation>}:meta     count, dim, dtype, and "late" with a second stage; written last: the copy is complete

The braces are literal, and put a generation on one slot of a cluster. Redis may lose any value at any time, and others
may write there. So every value is checked when it is read: its form, its checksum, and that its vectors are numbers and
no longer than the model makes them. Where the URL names a secret, each value has a digest behind it
(polyrank.index_builder.redis_client.Seal).

A vector is stored as

    version u8 | dtype u8 | dim u16 | crc32 u32 over the key and the vector | the vector, little-endian

and the rows for a second stage as

    version u8 | dtype u8 | dim u16 | count u32 | crc32 u32 over the key, the count and the rows | the rows, one by one

The checksum covers the key too: a damaged value is recognised, and so is one that belongs to another key.
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
ROWS_VERSION = 2
MAX_DIM = 0xFFFF
HIT, MISS, CORRUPT = 0, 1, 2
_PREFIX = struct.Struct("<BBH")
_CRC_END = _PREFIX.size + 4
_COUNT = struct.Struct("<I")
_COUNT_END = _PREFIX.size + _COUNT.size
_ROWS_CRC_END = _COUNT_END + 4


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


def encode(key: bytes, vector: NDArray[Any], head: bytes) -> bytes:
    """The value that stores a vector (D,) under a key; `head` is the `prefix` of its dtype and dimension."""
    body = vector.tobytes()
    return head + crc32(body, crc32(key)).to_bytes(4, "little") + body


def decode_many(keys: Sequence[bytes], values: Sequence[bytes | None], dtype: np.dtype[Any], dim: int) -> Fetched:
    """Read the vectors in the values of keys.

    A key without a value is a MISS. A value of another length, version, dtype or dimension is CORRUPT, and so is one
    whose checksum does not fit.
    """
    head, size = prefix(dtype, dim), _CRC_END + dim * dtype.itemsize
    status = np.full(len(keys), CORRUPT, np.uint8)
    bodies = []
    for i, (key, value) in enumerate(zip(keys, values, strict=True)):
        if value is None:
            status[i] = MISS
        elif len(value) == size and value.startswith(head):
            body = memoryview(value)[_CRC_END:]
            if crc32(body, crc32(key)) == int.from_bytes(value[_PREFIX.size : _CRC_END], "little"):
                status[i] = HIT
                bodies.append(body)
    vectors = np.zeros((len(keys), dim), dtype)
    vectors[status == HIT] = np.frombuffer(b"".join(bodies), dtype).reshape(-1, dim)
    return Fetched(vectors, status)


def within(rows: NDArray[Any], longest: float) -> NDArray[np.bool_]:
    """Tell which rows (N, D) are numbers throughout and no longer than that, (N,)."""
    wide = rows.astype(np.float64)
    squares = np.einsum("nd,nd->n", wide, wide)
    inside: NDArray[np.bool_] = np.isfinite(squares) & (squares <= longest**2)
    return inside


def encode_rows(key: bytes, rows: NDArray[Any]) -> bytes:
    """The value that stores the rows (k, D2) of a candidate, in a store's dtype, under a key."""
    count, body = _COUNT.pack(len(rows)), np.ascontiguousarray(rows).tobytes()
    checksum = crc32(body, crc32(count, crc32(key))).to_bytes(4, "little")
    return prefix(rows.dtype, rows.shape[1], ROWS_VERSION) + count + checksum + body


def decode_rows(
    keys: Sequence[bytes], values: Sequence[bytes | None], dtype: np.dtype[Any], late: LateRows
) -> FetchedRows:
    """Read the rows in the values of keys; status as `decode_many`. Another number of rows is CORRUPT, too."""
    head = prefix(dtype, late.dim, ROWS_VERSION)
    found = [_rows_in(key, value, dtype, late, head) for key, value in zip(keys, values, strict=True)]
    status = [
        MISS if value is None else CORRUPT if rows is None else HIT for value, rows in zip(values, found, strict=True)
    ]
    return FetchedRows(found, np.array(status, np.uint8))


def _rows_in(key: bytes, value: bytes | None, dtype: np.dtype[Any], late: LateRows, head: bytes) -> NDArray[Any] | None:
    if value is None or len(value) < _ROWS_CRC_END or not value.startswith(head):
        return None
    (count,) = _COUNT.unpack_from(value, _PREFIX.size)
    body = memoryview(value)[_ROWS_CRC_END:]
    if len(body) != count * late.dim * dtype.itemsize or late.count not in (None, count):
        return None
    checksum = crc32(body, crc32(memoryview(value)[_PREFIX.size : _COUNT_END], crc32(key)))
    if checksum != int.from_bytes(value[_COUNT_END:_ROWS_CRC_END], "little"):
        return None
    return np.frombuffer(body, dtype).reshape(count, late.dim)


class StoredVectors:
    """Vectors (D,) in Redis under names; several threads may use it.

    Args:
        beginning: put before a name to make its key.
        longest: a length that no vector exceeds; one from Redis that does is CORRUPT.
        lifetime_seconds: of what is put; None: unlimited.

    Attributes:
        at_once: how many names are asked for in one go.
    """

    at_once = MGET_KEYS

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
        self._values.put_many(keys, lambda at: encode_rows(keys[at], rows[at]), self.at_once)

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
        """Raise StoreUnavailable if Redis does not answer."""
        with translated():
            self._client.ping()

    def close(self) -> None:
        """Close the connections."""
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
