"""The copy of a generation's embeddings in Redis, for servers that do not hold the matrix.

    pe:{<generation>}:c:<id>   the vector of a candidate: codec.py
    pe:{<generation>}:meta     count, dim and dtype; written last: the copy is complete

The braces are literal, and put a generation on one slot of a cluster. Redis may lose any value at any time, so every
value is checked when it is read.
"""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from polyrank.index_builder.errors import StoreUnavailable
from polyrank.index_builder.redis_client import BUILDING_TIMEOUT_SECONDS, Client, connect, disconnect, translated
from polyrank.index_builder.vectors.codec import DTYPES, Fetched, decode_many, encode, prefix

MGET_KEYS = 512
_PIPELINE_COMMANDS = 2000
_SCAN_COUNT = 1000


class StoredVectors:
    """Vectors (D,) in Redis under names; several threads may use it.

    Args:
        client: the caller closes it.
        beginning: put before a name to make its key.
        dim: D.
        dtype: "float16" or "float32".
        lifetime_seconds: of what is put; None: unlimited.
    """

    def __init__(
        self, client: Client, beginning: str, dim: int, dtype: str, lifetime_seconds: int | None = None
    ) -> None:
        self._client = client
        self._key = beginning.encode()
        self._dim, self._dtype = dim, DTYPES[dtype]
        self._lifetime_seconds = lifetime_seconds

    def put_many(self, names: Sequence[str], vectors: NDArray[Any]) -> None:
        """Write vectors (N, D), rounded to the dtype; if StoreUnavailable is raised, some may have been written."""
        head, rows = prefix(self._dtype, self._dim), np.ascontiguousarray(vectors, self._dtype)
        for start in range(0, len(names), _PIPELINE_COMMANDS):
            pipeline = self._client.pipeline(transaction=False)
            for i in range(start, min(start + _PIPELINE_COMMANDS, len(names))):
                key = self._key + names[i].encode()
                pipeline.set(key, encode(key, rows[i], head), ex=self._lifetime_seconds)
            with translated():
                pipeline.execute()

    def get_many(self, names: Sequence[str]) -> Fetched:
        """Fetch the vectors of names, in the order asked; errors as `translated`."""
        keys = [self._key + name.encode() for name in names]
        values: list[bytes | None] = []
        with translated():
            for start in range(0, len(keys), MGET_KEYS):
                values += cast(list[bytes | None], self._client.mget(keys[start : start + MGET_KEYS]))
        if len(values) != len(keys) or not all(value is None or isinstance(value, bytes) for value in values):
            raise StoreUnavailable("Redis failed: its answer belongs to another question")
        return decode_many(keys, values, self._dtype, self._dim)


def beginning_of(generation: str) -> str:
    """The beginning of the keys of a generation's vectors."""
    return f"pe:{{{generation}}}:c:"


class RedisEmbeddings(StoredVectors):
    """The copy of one generation, over its own connections; see `connect`. `drop_generation` removes its keys."""

    def __init__(self, url: str, generation: str, dim: int, dtype: str, timeout_seconds: float) -> None:
        super().__init__(connect(url, timeout_seconds), beginning_of(generation), dim, dtype)
        self._meta_key = f"pe:{{{generation}}}:meta"
        self._shape = {"dim": dim, "dtype": dtype}
        self._put = 0

    def put_many(self, names: Sequence[str], vectors: NDArray[Any]) -> None:
        """Write vectors, and count them for `commit`."""
        super().put_many(names, vectors)
        self._put += len(names)

    def commit(self) -> None:
        """Declare the copy complete."""
        with translated():
            self._client.set(self._meta_key, orjson.dumps({"count": self._put, **self._shape}))

    def count(self) -> int:
        """The number of embeddings; 0 if the copy is incomplete, or of another dimension or dtype."""
        with translated():
            value = cast(bytes | None, self._client.get(self._meta_key))
        try:
            meta = orjson.loads(value or b"{}")
        except orjson.JSONDecodeError:
            return 0
        if not isinstance(meta, dict) or any(meta.get(key) != wanted for key, wanted in self._shape.items()):
            return 0
        return int(meta.get("count", 0))

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
            for key in client.scan_iter(match=f"{beginning_of(generation)}*", count=_SCAN_COUNT):
                keys.append(key)
                if len(keys) == _SCAN_COUNT:
                    client.unlink(*keys)
                    keys.clear()
            if keys:
                client.unlink(*keys)
    finally:
        disconnect(client)
