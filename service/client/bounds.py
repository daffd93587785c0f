"""A bound for the time of all that a client which waits does for one answer."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import httpx2

PIECE_BYTES = 16 << 10  # written at once; within one piece only the timeout of each step counts

_until: ContextVar[float] = ContextVar("until", default=math.inf)


@contextmanager
def reading_until(until: float) -> Iterator[None]:
    """Let what the streams of a bounded client do in this thread end at a moment of `time.monotonic`."""
    token = _until.set(until)
    try:
        yield
    finally:
        _until.reset(token)


def bound(client: httpx2.Client) -> None:
    """Let `reading_until` hold for a client.

    A timeout of httpx2 is that of one step, so a server that sends a byte at a time, or `100 Continue` without end,
    holds a call for ever. httpx2 offers no place for streams of one's own but its transports' pools.
    """
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx2.HTTPTransport):
            pool: Any = transport._pool
            pool._network_backend = _Backend(pool._network_backend)


class _Backend:
    """Makes streams that keep to `reading_until`; for httpcore2 a network backend."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, **options: Any) -> "_Stream":
        return _Stream(self._inner.connect_tcp(host, port, _left(timeout, httpx2.ConnectTimeout), **options))

    def connect_unix_socket(self, path: str, timeout: float | None = None, **options: Any) -> "_Stream":
        return _Stream(self._inner.connect_unix_socket(path, _left(timeout, httpx2.ConnectTimeout), **options))

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)


class _Stream:
    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.close, self.get_extra_info = inner.close, inner.get_extra_info

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        read: bytes = self._inner.read(max_bytes, _left(timeout, httpx2.ReadTimeout))
        return read

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), PIECE_BYTES):
            self._inner.write(buffer[start : start + PIECE_BYTES], _left(timeout, httpx2.WriteTimeout))

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> "_Stream":
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, _left(timeout, httpx2.ConnectTimeout)))


def _left(timeout: float | None, over: type[httpx2.TimeoutException]) -> float | None:
    """Return the seconds that a step may take; raises `over` where none are left."""
    until = _until.get()
    if math.isinf(until):
        return timeout
    if (left := until - time.monotonic()) <= 0:
        raise over("time is over")
    return left if timeout is None else min(timeout, left)
