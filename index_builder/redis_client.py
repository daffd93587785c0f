"""A Redis client that fails in time, and whose errors are StoreUnavailable. No other module imports redis-py.

It is imported when a client is made: most commands need none, and it takes a fifth of a second.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from polyrank.index_builder.errors import StoreUnavailable

if TYPE_CHECKING:
    import redis

SERVING_TIMEOUT_SECONDS = 0.05
BUILDING_TIMEOUT_SECONDS = 5.0

Client: TypeAlias = "redis.Redis"


def connect(
    url: str, timeout_seconds: float, max_connections: int = 8, free_within_seconds: float | None = None
) -> Client:
    """Make a client that fails within the timeout; by default, redis-py retries for up to a minute.

    Args:
        url: redis://, rediss:// or unix:// URL; nothing is sent before the first command.
        timeout_seconds: for connecting, and for each answer.
        max_connections: a thread that finds all of them in use waits.
        free_within_seconds: how long it waits; None: `timeout_seconds`.

    Raises:
        StoreUnavailable: the URL is not one of Redis.
    """
    import redis
    from redis.backoff import NoBackoff
    from redis.maint_notifications import MaintNotificationsConfig
    from redis.retry import Retry

    try:
        pool = redis.BlockingConnectionPool.from_url(
            url,
            max_connections=max_connections,
            timeout=timeout_seconds if free_within_seconds is None else free_within_seconds,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            retry=Retry(NoBackoff(), 0),
            retry_on_timeout=False,
            health_check_interval=0,
            # Each of these would cost a new connection a round trip, and notices of maintenance relax the timeouts.
            driver_info=None,
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
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
    """Turn the exceptions of redis-py into StoreUnavailable."""
    import redis
    from redis.exceptions import OutOfMemoryError

    try:
        yield
    except OutOfMemoryError as error:
        raise StoreUnavailable(
            "Redis is full (maxmemory): give it more memory, or remove old generations with polyrank store gc --redis"
        ) from error
    except redis.RedisError as error:
        raise StoreUnavailable(f"Redis failed: {error}") from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # redis-py, when an answer has another shape
        raise StoreUnavailable(f"Redis failed: its answer makes no sense: {error}") from error
