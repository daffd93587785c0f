"""The dtypes of stored vectors, and the bytes of a vector as a value in Redis.

    version u8 | dtype u8 | dim u16 | crc32 u32 over the key and the vector | the vector, little-endian

The rows that a model keeps of a candidate for a second stage are another value:

    version u8 | dtype u8 | dim u16 | count u32 | crc32 u32 over the key, the count and the rows | the rows, one by one

The checksum covers the key too: a damaged value is recognised, and so is one that belongs to another key. It does not
tell who wrote a value; a digest behind it can (polyrank.index_builder.redis_client.Seal).
"""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import BuildError
from polyrank.index_builder.names import DTYPE_NAMES
from polyrank.model.representations import LateRows, Representations

VERSION = 1
ROWS_VERSION = 2
DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(name).newbyteorder("<") for name in DTYPE_NAMES}
MAX_DIM = 0xFFFF

HIT, MISS, CORRUPT = 0, 1, 2


class Fetched(NamedTuple):
    """Vectors (N, D), zero where none was found, and the status of each, (N,): HIT, MISS or CORRUPT."""

    vectors: NDArray[Any]
    status: NDArray[np.uint8]


class FetchedRows(NamedTuple):
    """Rows (k, D2) of each of N names, None where none were found, and the status of each, (N,)."""

    rows: list[NDArray[Any] | None]
    status: NDArray[np.uint8]


_PREFIX = struct.Struct("<BBH")
_CRC_END = _PREFIX.size + 4
_COUNT = struct.Struct("<I")
_COUNT_END = _PREFIX.size + _COUNT.size
_ROWS_CRC_END = _COUNT_END + 4


def rounded(vectors: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Round vectors to a store's dtype. Raises BuildError if a value is not finite, before or after rounding."""
    with np.errstate(over="ignore", invalid="ignore"):
        stored = vectors.astype(DTYPES[dtype], copy=False)
    if not np.isfinite(stored).all():
        raise BuildError(f"the model gave vectors that are not finite in {dtype}; check its weights")
    return stored


def rounded_all(made: Representations, dtype: str) -> Representations:
    """Round everything of candidates; errors as `rounded`."""
    late = None if made.late is None else rounded(made.late, dtype)
    return Representations(rounded(made.first, dtype), late, made.counts)


def prefix(dtype: np.dtype[Any], dim: int) -> bytes:
    """The first bytes of every value of this dtype and dimension."""
    return _PREFIX.pack(VERSION, list(DTYPES.values()).index(dtype), dim)


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
    return _rows_prefix(rows.dtype, rows.shape[1]) + count + checksum + body


def decode_rows(
    keys: Sequence[bytes], values: Sequence[bytes | None], dtype: np.dtype[Any], late: LateRows
) -> FetchedRows:
    """Read the rows in the values of keys; status as `decode_many`. Another number of rows is CORRUPT, too."""
    head = _rows_prefix(dtype, late.dim)
    found = [_rows_in(key, value, dtype, late, head) for key, value in zip(keys, values, strict=True)]
    status = [
        MISS if value is None else CORRUPT if rows is None else HIT for value, rows in zip(values, found, strict=True)
    ]
    return FetchedRows(found, np.array(status, np.uint8))


def _rows_prefix(dtype: np.dtype[Any], dim: int) -> bytes:
    return _PREFIX.pack(ROWS_VERSION, list(DTYPES.values()).index(dtype), dim)


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
