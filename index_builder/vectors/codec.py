"""How a vector is written as bytes, so that a damaged or misplaced one is recognised.

    version u8 | dtype u8 | dim u16 | crc32 u32 over the key and the vector | the vector, little-endian

The key is under the checksum: a value that was stored under another key does not pass for this one's.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import BuildError

VERSION = 1
DTYPES: dict[str, np.dtype[Any]] = {"float16": np.dtype("<f2"), "float32": np.dtype("<f4")}
MAX_DIM = 0xFFFF

HIT, MISS, CORRUPT = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Fetched:
    """The vectors that were found.

    Attributes:
        vectors: (N, D) in the store's dtype; zero where none was found.
        status: (N,) of HIT, MISS or CORRUPT.
    """

    vectors: NDArray[Any]
    status: NDArray[np.uint8]


_PREFIX = struct.Struct("<BBH")
_CRC_END = _PREFIX.size + 4


def rounded(vectors: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Vectors in a store's dtype.

    Raises:
        BuildError: a value is not finite, or not any more.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        stored = vectors.astype(DTYPES[dtype], copy=False)
    if not np.isfinite(stored).all():
        raise BuildError(f"the model gave vectors that are not finite in {dtype}; check its weights")
    return stored


def prefix(dtype: np.dtype[Any], dim: int) -> bytes:
    """The bytes that every value of this dtype and dimension begins with."""
    return _PREFIX.pack(VERSION, list(DTYPES.values()).index(dtype), dim)


def encode(key: bytes, vector: NDArray[Any], head: bytes) -> bytes:
    """The value of a vector (D,) under its key; `head` is the `prefix` of its dtype and dimension."""
    body = vector.tobytes()
    return head + crc32(body, crc32(key)).to_bytes(4, "little") + body


def decode_many(
    keys: Sequence[bytes], values: Sequence[bytes | None], dtype: np.dtype[Any], dim: int
) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Read the values of keys.

    Returns:
        the vectors (N, D), zero where there is none, and the status (N,) of each: HIT, MISS (no value) or CORRUPT
        (another length, version, dtype or dimension, or a checksum that does not fit).
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
    return vectors, status
