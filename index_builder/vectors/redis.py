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
from collections.abc import Sequence
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
from polyrank.index_builder.vectors.local import DTYPES
from polyrank.model.representations import LateRows

MGET_KEYS = 512
_SCAN_COUNT = 1000
# Rows are asked for in answers of about this size at most.
_MGET_BYTES = 1 << 20

VERSION = 1
ROWS_VERSION = 3
MAX_DIM = 0xFFFF
HIT, MISS, CORRUPT = 0, 1, 2
_PREFIX = struct.Struct("<BBH")
_CRC_END = _PREFIX.size + 4


class FetchedRows(NamedTuple):
    """What was found of N names."""

    rows: NDArray[Any]  # those of the first HIT, then those of the next, and so on, (R, D)
    counts: NDArray[np.int64]  # how many each name has, (N,); 0 where none were found
    status: NDArray[np.uint8]  # of each, (N,): HIT, MISS or CORRUPT


def prefix(dtype: np.dtype[Any], dim: int, version: int = VERSION) -> bytes:
    """The first bytes of every value of this dtype and dimension; `version`: ROWS_VERSION for a second stage's rows."""
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


def decode_many(
    keys: Sequence[bytes],
    values: Sequence[bytes | None],
    dtype: np.dtype[Any],
    of: LateRows,
    version: int = VERSION,
) -> FetchedRows:
    """Read the rows in the values of keys.

    A key without a value is a MISS. A value of another length, version, dtype, dimension or number of rows is CORRUPT,
    and so is one whose checksum does not fit.
    """
    head, size = prefix(dtype, of.dim, version), of.dim * dtype.itemsize
    bodies = [_body(key, value, head, size, of.count) for key, value in zip(keys, values, strict=True)]
    good = [body for body in bodies if body is not None]
    counts = np.array([0 if body is None else len(body) // size for body in bodies], np.int64)
    pairs = zip(values, bodies, strict=True)
    status = [MISS if value is None else CORRUPT if body is None else HIT for value, body in pairs]
    rows = np.frombuffer(bytearray().join(good), dtype).reshape(-1, of.dim)
    return FetchedRows(rows, counts, np.array(status, np.uint8))


def within(rows: NDArray[Any], longest: float) -> NDArray[np.bool_]:
    """Tell which rows (N, D) are numbers throughout and no longer than that, (N,)."""
    wide = rows.astype(np.float64)
    squares = np.einsum("nd,nd->n", wide, wide)
    inside: NDArray[np.bool_] = np.isfinite(squares) & (squares <= longest**2)
    return inside


class StoredRows:
    """Rows (k, D) in Redis under names, a vector as its only row; several threads may use it.

    Args:
        beginning: put before a name to make its key.
        of: how many rows a name has, and of which size.
        version: ROWS_VERSION for those of a second stage.
        longest: a length that no row exceeds; where one from Redis does, all of its name are CORRUPT.
        most: rows of one name, where their numbers differ; more are CORRUPT, too.
        lifetime_seconds: of what is put; None: unlimited.
    """

    def __init__(
        self,
        client: Client,
        seal: Seal,
        beginning: str,
        of: LateRows,
        dtype: str,
        *,
        version: int = VERSION,
        longest: float = math.inf,
        most: float = math.inf,
        lifetime_seconds: int | None = None,
    ) -> None:
        self._client, self._seal, self._key, self._lifetime = client, seal, beginning.encode(), lifetime_seconds
        self._of, self._dtype, self._version, self._longest = of, DTYPES[dtype], version, longest
        self._most = most if of.count is None else math.inf
        # How many names are asked for, or put, in one go.
        self.at_once = max(1, min(MGET_KEYS, _MGET_BYTES // (of.dim * self._dtype.itemsize * of.usual_count)))

    def put_many(self, names: Sequence[str], rows: Sequence[NDArray[Any]] | NDArray[Any]) -> None:
        """Write the rows of each name, rounded to the dtype; if StoreUnavailable is raised, some may have been written.

        `rows`: (k, D) for each name, or vectors (N, D).
        """
        head = prefix(self._dtype, self._of.dim, self._version)
        for start in range(0, len(names), self.at_once):
            pipeline = self._client.pipeline(transaction=False)
            for at in range(start, min(start + self.at_once, len(names))):
                key = self._key + names[at].encode()
                value = encode(key, np.ascontiguousarray(rows[at], self._dtype), head)
                pipeline.set(key, self._seal.sealed(key, value), ex=self._lifetime)
            with translated():
                pipeline.execute()

    def get_many(self, names: Sequence[str]) -> FetchedRows:
        """Fetch the rows of names, in the order asked; errors as `translated`."""
        keys = [self._key + name.encode() for name in names]
        fetched = decode_many(keys, self._values(keys), self._dtype, self._of, self._version)
        owners = np.repeat(np.arange(len(names)), fetched.counts)
        is_foreign = fetched.counts > self._most
        is_foreign[owners[~within(fetched.rows, self._longest)]] = True
        if not is_foreign.any():
            return fetched
        fetched.counts[is_foreign], fetched.status[is_foreign] = 0, CORRUPT
        return fetched._replace(rows=fetched.rows[~is_foreign[owners]])

    def _values(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = []
        with translated():
            for start in range(0, len(keys), self.at_once):
                values += cast(list[bytes | None], self._client.mget(keys[start : start + self.at_once]))
        if len(values) != len(keys) or not all(value is None or isinstance(value, bytes) for value in values):
            raise StoreUnavailable("Redis failed: its answer belongs to another question")
        pairs = zip(keys, values, strict=True)
        return [None if value is None else self._seal.opened(key, value) for key, value in pairs]


def beginning_of(generation: str) -> str:
    """The beginning of the keys of a generation's vectors."""
    return f"pe:{{{generation}}}:c:"


def rows_beginning_of(generation: str) -> str:
    """The beginning of the keys of a generation's rows for the second stage."""
    return f"pe:{{{generation}}}:r:"


class RedisEmbeddings(StoredRows):
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
        client, seal = connect(url, timeout_seconds), Seal(url)
        super().__init__(client, seal, beginning_of(generation), LateRows(dim, 1), dtype, longest=longest)
        rows = rows_beginning_of(generation)
        self.rows = None if late is None else StoredRows(client, seal, rows, late, dtype, version=ROWS_VERSION)
        self._meta_key = f"pe:{{{generation}}}:meta".encode()
        self._shape = {"dim": dim, "dtype": dtype, "late": None if late is None else asdict(late)}
        self._rows_put = 0

    def put_many(self, names: Sequence[str], rows: Sequence[NDArray[Any]] | NDArray[Any]) -> None:
        """Write vectors, and count them for `commit`."""
        super().put_many(names, rows)
        self._rows_put += len(names)

    def commit(self) -> None:
        with translated():
            shape = {name: value for name, value in self._shape.items() if value is not None}
            meta = orjson.dumps({"count": self._rows_put, **shape})
            self._client.set(self._meta_key, self._seal.sealed(self._meta_key, meta))

    def count(self) -> int:
        """The number of embeddings; 0 if the copy is incomplete, or of another dimension or dtype."""
        with translated():
            value = cast(bytes | None, self._client.get(self._meta_key))
        try:
            meta = orjson.loads(self._seal.opened(self._meta_key, value or b"") or b"{}")
        except orjson.JSONDecodeError:
            return 0
        if not isinstance(meta, dict) or any(meta.get(key) != expected for key, expected in self._shape.items()):
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
