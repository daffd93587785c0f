"""The embeddings of a generation as Redis strings, for servers that do not hold the matrix.

Keys are `pe:{<generation>}:c:<id>`; the braces are literal, and put a generation on one slot of a cluster. The key
`pe:{<generation>}:meta` is written last and tells that the generation is complete. Redis is a copy and may lose any
value at any time; what is read is checked. The only module that knows redis-py: its errors become StoreUnavailable.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import orjson
import redis
from numpy.typing import NDArray
from redis.backoff import NoBackoff
from redis.retry import Retry

from index_builder.codec import DTYPES, decode_many, encode, prefix
from index_builder.errors import StoreUnavailable
from index_builder.store import Fetched

SERVING_TIMEOUT_SECONDS = 0.05
BUILDING_TIMEOUT_SECONDS = 5.0

_MGET_KEYS = 512
_PIPELINE_COMMANDS = 2000
_SCAN_COUNT = 1000


def connect(url: str, timeout_seconds: float, max_connections: int = 8) -> "redis.Redis":
    """A client that fails within the timeout instead of retrying for up to a minute, as redis-py would by itself.

    Raises:
        StoreUnavailable: the URL is not one of Redis.
    """
    try:
        pool = redis.BlockingConnectionPool.from_url(
            url,
            max_connections=max_connections,
            timeout=timeout_seconds,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise StoreUnavailable("the Redis URL must begin with redis://, rediss:// or unix://") from error
    return redis.Redis.from_pool(pool)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise StoreUnavailable(f"Redis failed: {error}") from error


class RedisStore:
    """The Redis copy of one generation; safe to use from several threads.

    Args:
        url: redis://, rediss:// or unix:// URL.
        generation: the generation's id.
        dim: D.
        dtype: "float16" or "float32".
        timeout_seconds: for connecting, and for each command.
    """

    def __init__(self, url: str, generation: str, dim: int, dtype: str, timeout_seconds: float) -> None:
        self._client = connect(url, timeout_seconds)
        self._key = f"pe:{{{generation}}}:c:".encode()
        self._meta_key = f"pe:{{{generation}}}:meta"
        self._dim, self._dtype = dim, DTYPES[dtype]
        self._shape = {"dim": dim, "dtype": dtype}
        self._put = 0

    def put_many(self, ids: Sequence[str], vectors: NDArray[Any]) -> None:
        """Write vectors (N, D), rounded to the store's dtype."""
        head, rows = prefix(self._dtype, self._dim), np.ascontiguousarray(vectors, self._dtype)
        for start in range(0, len(ids), _PIPELINE_COMMANDS):
            pipeline = self._client.pipeline(transaction=False)
            for i in range(start, min(start + _PIPELINE_COMMANDS, len(ids))):
                key = self._key + ids[i].encode()
                pipeline.set(key, encode(key, rows[i], head))
            with _translated():
                pipeline.execute()
        self._put += len(ids)

    def commit(self) -> None:
        """Write the key that tells that everything was put."""
        with _translated():
            self._client.set(self._meta_key, orjson.dumps({"count": self._put, **self._shape}))

    def get_many(self, ids: Sequence[str]) -> Fetched:
        """Fetch the vectors of ids, in the order asked; damaged values are told by their status."""
        keys = [self._key + each.encode() for each in ids]
        values: list[bytes | None] = []
        with _translated():
            for start in range(0, len(keys), _MGET_KEYS):
                values += cast(list[bytes | None], self._client.mget(keys[start : start + _MGET_KEYS]))
        return Fetched(*decode_many(keys, values, self._dtype, self._dim))

    def count(self) -> int:
        """How many embeddings were put; 0 when the copy is incomplete or of another dimension or dtype."""
        with _translated():
            value = cast(bytes | None, self._client.get(self._meta_key))
        try:
            meta = orjson.loads(value or b"{}")
        except orjson.JSONDecodeError:
            return 0
        if not isinstance(meta, dict) or any(meta.get(key) != wanted for key, wanted in self._shape.items()):
            return 0
        return int(meta.get("count", 0))

    def ping(self) -> None:
        """Raise StoreUnavailable when Redis does not answer."""
        with _translated():
            self._client.ping()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._client.connection_pool.disconnect()


def drop_generation(url: str, generation: str, timeout_seconds: float = BUILDING_TIMEOUT_SECONDS) -> None:
    """Remove every key of a generation, the one that declares it complete first.

    Raises:
        StoreUnavailable: Redis failed; some keys may remain.
    """
    client = connect(url, timeout_seconds)
    try:
        with _translated():
            client.unlink(f"pe:{{{generation}}}:meta")
            keys: list[bytes] = []
            for key in client.scan_iter(match=f"pe:{{{generation}}}:c:*", count=_SCAN_COUNT):
                keys.append(key)
                if len(keys) == _SCAN_COUNT:
                    client.unlink(*keys)
                    keys.clear()
            if keys:
                client.unlink(*keys)
    finally:
        client.close()
        client.connection_pool.disconnect()
