"""The attempts of one call: what is sent, whether to try again, and after how long."""

import ipaddress
import json
import random
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import httpx2

from polyrank.service.client.calls import Call
from polyrank.service.client.failures import CallFailed, NoAnswer, NotAnAnswer, refused

T = TypeVar("T")

# The server's own 504 arrives a little after the deadline; without it the caller would only know that time is over.
ANSWER_SECONDS = 1.0
FIRST_PAUSE_SECONDS = 0.1
# Refused before anything was done, so even a change may be asked for again.
AT_THE_DOOR = frozenset({"overloaded", "rate-limited", "bodies-held", "draining", "not-ready", "store-busy"})


class Attempts(Generic[T]):
    """The attempts of a call.

    A call that only asks, or that the server recognises, is tried again when the server is busy, the connection breaks,
    or the server says that the same request goes on. A change is tried again only if it was surely not made: there was
    no connection, or the server refused at the door.
    """

    def __init__(
        self, call: Call[T], timeout_s: float, max_retries: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._call, self._left, self._clock = call, max_retries, clock
        self._tried = 0
        self._deadline = clock() + (timeout_s if call.timeout_ms is None else call.timeout_ms / 1000)

    def next(self) -> dict[str, Any]:
        """Return the arguments of the HTTP client's `request` for the next attempt."""
        call, left = self._call, max(0.001, self._deadline - self._clock())
        body, headers, wait = call.body, {**(call.headers or {})}, left
        if call.timeout_ms is not None:
            wait = left + ANSWER_SECONDS
            if call.deadline_in == "body":
                body = {**body, "timeout_ms": _milliseconds(left)}
            else:
                headers["X-Request-Timeout-Ms"] = str(_milliseconds(left))
        content = None
        if body is not None:
            content = json.dumps(body, allow_nan=False).encode()
            headers["Content-Type"] = "application/json"
        return {"method": call.method, "url": call.path, "content": content, "headers": headers, "timeout": wait}

    def read(self, response: httpx2.Response) -> T:
        """Return the answer as an object; raises NotAnAnswer where it is none."""
        try:
            return self._call.read(response.json())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NotAnAnswer(f"{response.url} answers, but not as polyrank serve does") from error

    def after_failure(self, error: httpx2.RequestError) -> float:
        """Return how many seconds to wait before another attempt; raises NoAnswer where there is none."""
        never_arrived = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
        may_be_done = "" if self._call.may_repeat or never_arrived else "; the change may have been made"
        failed = NoAnswer(f"no answer ({str(error) or type(error).__name__}); is polyrank serve running?{may_be_done}")
        if not (self._call.may_repeat or never_arrived):
            raise failed from error
        return self._pause(failed, None)

    def after_refusal(self, response: httpx2.Response) -> float:
        """Return how many seconds to wait before another attempt; raises the answer's error where there is none."""
        try:
            body = response.json()
        except ValueError:
            body = None
        failed = refused(response.status_code, response.headers, body)
        may_repeat = self._call.may_repeat or failed.kind in AT_THE_DOOR
        is_for_now = failed.status in (429, 503) or (failed.status == 504 and failed.retry_after is not None)
        if not (may_repeat and is_for_now):
            raise failed
        return self._pause(failed, failed.retry_after)

    def _pause(self, failed: CallFailed, told: float | None) -> float:
        """Count an attempt; returns the pause, which is at least what the server told, or raises what failed."""
        growing = FIRST_PAUSE_SECONDS * 2**self._tried * random.uniform(1, 1.5)  # not all clients at once
        pause = growing if told is None else told
        self._tried, self._left = self._tried + 1, self._left - 1
        if self._left < 0 or self._clock() + pause >= self._deadline:
            raise failed
        return pause


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))


def options(url: str, api_key: str | None) -> dict[str, Any]:
    """Return the options of the HTTP client for a server; proxies are for other machines, not for this one."""
    host = httpx2.URL(url).host
    try:
        is_here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_here = host == "localhost"
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return {"base_url": url, "headers": headers, "trust_env": not is_here}
