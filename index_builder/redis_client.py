"""A Redis client that fails in time, and whose errors are StoreUnavailable. No other module imports redis-py.

It is imported when a client is made: most commands need none, and it takes a fifth of a second.

The URL may name a secret, as in `redis://cache:6379/0?secret=...`. Then values carry a digest that only who knows the
secret can make (`Seal`); Redis never sees it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import parse_qsl, urlencode

from polyrank.index_builder.errors import StoreUnavailable

if TYPE_CHECKING:
    import redis

SERVING_TIMEOUT_SECONDS = 0.05
BUILDING_TIMEOUT_SECONDS = 5.0
DIGEST_BYTES = 16
LEAST_SECRET_LETTERS = 16

_MOST_LETTERS = 300  # letters of an error
_SENSELESS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)

Client: TypeAlias = "redis.Redis"


class Seal:
    """Puts a keyed digest behind each value, and checks it: nobody without the secret of the URL makes such values.

    The digest is BLAKE2b, keyed with the hash of the secret, over the key's length, the key and the value. Without a
    secret values stay as they are. Raises StoreUnavailable if the secret is too short.
    """

    def __init__(self, url: str) -> None:
        _, secret = _parted(url)
        self._begun = blake2b(key=blake2b(secret.encode()).digest(), digest_size=DIGEST_BYTES) if secret else None

    def sealed(self, key: bytes, value: bytes) -> bytes:
        return value if self._begun is None else value + self._digest(key, value)

    def opened(self, key: bytes, sealed_value: bytes) -> bytes:
        """Return the value in what lies under the key; b"", which no value is, where it was not sealed so."""
        if self._begun is None:
            return sealed_value
        value = sealed_value[:-DIGEST_BYTES]
        return value if compare_digest(self._digest(key, value), sealed_value[-DIGEST_BYTES:]) else b""

    def _digest(self, key: bytes, value: bytes) -> bytes:
        assert self._begun is not None, "there is a secret"
        digest = self._begun.copy()
        digest.update(b"%d %b%b" % (len(key), key, value))
        return digest.digest()


def _parted(url: str) -> tuple[str, str]:
    """Part a URL into what redis-py is given and the secret, "" where it names none; errors as `Seal`."""
    address, _, query = url.partition("?")
    parameters = parse_qsl(query, keep_blank_values=True)
    secrets = [value for name, value in parameters if name == "secret"]
    if "&secret=" in address:  # redis-py would take it for a part of the database's number, and ignore it
        raise StoreUnavailable("the secret in the Redis URL belongs behind a question mark: redis://HOST/0?secret=...")
    if secrets and len(secrets[-1]) < LEAST_SECRET_LETTERS:
        raise StoreUnavailable(f"the secret in the Redis URL must have {LEAST_SECRET_LETTERS} characters or more")
    others = [(name, value) for name, value in parameters if name != "secret"]
    return f"{address}?{urlencode(others)}" if others else address, secrets[-1] if secrets else ""


def connect(
    url: str, timeout_seconds: float, max_connections: int = 8, free_within_seconds: float | None = None
) -> Client:
    """Make a client that fails within the timeout; by default, redis-py retries for up to a minute.

    Args:
        url: redis://, rediss:// or unix:// URL, perhaps with a secret; nothing is sent before the first command.
        timeout_seconds: for connecting, and for each answer.
        max_connections: a thread that finds all of them in use waits.
        free_within_seconds: how long it waits; None: `timeout_seconds`.

    Raises:
        StoreUnavailable: the URL is not one of Redis, its port or an option is not valid, its secret is too short, or a
            file that it names is not there.
    """
    address, _ = _parted(url)
    import redis
    from redis._parsers import _RESP2Parser
    from redis.backoff import NoBackoff
    from redis.maint_notifications import MaintNotificationsConfig
    from redis.retry import Retry

    try:
        pool = redis.BlockingConnectionPool.from_url(
            address,
            max_connections=max_connections,
            timeout=timeout_seconds if free_within_seconds is None else free_within_seconds,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            retry=Retry(NoBackoff(), 0),
            retry_on_timeout=False,
            health_check_interval=0,
            # hiredis makes room for as many values as an answer says that it holds: a line of 15 bytes took 8 GB, and
            # held up all threads for seconds. This one reads value after value; it takes 2 us for each instead of 0.3.
            protocol=2,
            parser_class=_RESP2Parser,
            # Each of these would cost a new connection a round trip, and notices of maintenance relax the timeouts.
            driver_info=None,
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        )
        pool.connection_class(**pool.connection_kwargs)  # connects to nothing, and knows its options
    except ValueError as error:
        if not address.startswith(("redis://", "rediss://", "unix://")):
            raise StoreUnavailable("the Redis URL must begin with redis://, rediss:// or unix://") from error
        raise StoreUnavailable(
            "the Redis URL has a port or an option that is not valid: a port is 65,535 at most; in a password write "
            "%2F for /"
        ) from error
    except redis.RedisError as error:
        raise StoreUnavailable(f"an option of the Redis URL is not valid: {error}") from error
    except TypeError as error:
        option = str(error).rpartition(" ")[2]
        raise StoreUnavailable(f"the Redis URL has an option that there is not: {option}") from error
    for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        if (file := pool.connection_kwargs.get(name)) and not Path(file).is_file():
            raise StoreUnavailable(f"the Redis URL names a file that there is not: {name}={file}")
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
        raise StoreUnavailable(f"Redis failed: {error}"[:_MOST_LETTERS]) from error
    except _SENSELESS as error:  # redis-py, when an answer has another shape
        raise StoreUnavailable(f"Redis failed: its answer makes no sense: {error}"[:_MOST_LETTERS]) from error
