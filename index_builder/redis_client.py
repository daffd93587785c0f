"""A Redis client that fails in time, and its errors in our words: the only module that imports redis-py."""

from collections.abc import Iterator
from contextlib import contextmanager

import redis
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError
from redis.retry import Retry

from index_builder.errors import StoreUnavailable

SERVING_TIMEOUT_SECONDS = 0.05
BUILDING_TIMEOUT_SECONDS = 5.0

Client = redis.Redis


def connect(url: str, timeout_seconds: float, max_connections: int = 8) -> Client:
    """A client that fails within the timeout instead of retrying for up to a minute, as redis-py would by itself.

    Args:
        url: redis://, rediss:// or unix:// URL; nothing is sent before the first command.
        timeout_seconds: for connecting, for each answer, and for a connection where all are in use.
        max_connections: threads beyond these wait for one of them instead of failing.

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


def disconnect(client: Client) -> None:
    """Close every connection of the client."""
    client.close()
    client.connection_pool.disconnect()


@contextmanager
def translated() -> Iterator[None]:
    """Turn what redis-py raises into StoreUnavailable."""
    try:
        yield
    except OutOfMemoryError as error:
        raise StoreUnavailable(
            "Redis is full (maxmemory): give it more memory, or remove old generations with polyrank store gc --redis"
        ) from error
    except redis.RedisError as error:
        raise StoreUnavailable(f"Redis failed: {error}") from error
