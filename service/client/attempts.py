"""The attempts of one call: what is sent, whether to try again, after how long, and what it ends with but an answer."""

import ipaddress
import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import httpx2
from pydantic_core import from_json
from tenacity import RetryCallState, retry_if_exception, stop_after_attempt, stop_before_delay

from polyrank.service.api.answers import TYPE_PREFIX


class CallFailed(Exception):
    """A call has no answer; every error of the clients is one."""


class NoAnswer(CallFailed):
    """The server could not be reached, or the connection broke; a change may have been made nevertheless."""


class NotAnAnswer(CallFailed):
    """Something answered, but not as a polyrank server does."""


class WrongField(NamedTuple):
    """One thing that is wrong with a request: where in its body, and what."""

    where: str
    what: str


class Refused(CallFailed):
    """The server answered with an error.

    Attributes:
        kind: the end of the problem's `type`, such as "invalid-input"; "" where the answer names none.
        title, detail: what is wrong.
        request_id: under which the server's log has it.
        findings: with status 422, each thing that is wrong.
        retry_after: seconds after which to come back; None: the server did not say.
        job: with the kind "job-conflict", the path of the job that runs.
    """

    def __init__(self, status: int, headers: Mapping[str, str], body: Any) -> None:
        problem: dict[str, Any] = body if isinstance(body, dict) else {}
        inner = problem.get("error") if isinstance(problem.get("error"), dict) else {}
        assert isinstance(inner, dict)
        self.status = status
        self.kind = str(problem.get("type") or inner.get("code") or "").removeprefix(TYPE_PREFIX)
        self.title = str(problem.get("title") or "")
        moved = f", moved to {headers['location']}" if "location" in headers else ""
        self.detail = str(problem.get("detail") or inner.get("message") or f"status {status}{moved}")
        self.request_id = str(problem.get("request_id") or headers.get("x-request-id", ""))
        # Something else than the server may answer by errors of another kind, which say nothing.
        errors = problem["errors"] if isinstance(problem.get("errors"), list) else []
        wrong_fields = [one for one in errors if isinstance(one, dict) and {"where", "what"} <= one.keys()]
        self.findings = [WrongField(str(one["where"]), str(one["what"])) for one in wrong_fields]
        after = headers.get("retry-after", "")  # a date, which this server never sends, counts as nothing said
        self.retry_after = float(after) if after.isascii() and after.isdigit() else None
        self.job: str | None = problem["job"] if isinstance(problem.get("job"), str) else None
        super().__init__(f"{self.detail} (status {status}, request {self.request_id})")


class RequestWrong(Refused):
    """The request cannot be used as it is: statuses 400, 413, 415, 422 and others of the kind."""


class KeyRefused(Refused):
    """No key, an unknown one, or one that is not for this: statuses 401 and 403."""


class NotThere(Refused):
    """There is no such route, job, generation or candidate: status 404."""


class Conflicting(Refused):
    """What is served or running does not go together with the request: status 409."""


class Busy(Refused):
    """The server has too much to do or is not ready, or the key asks too often: statuses 429 and 503."""


class TimeOver(Refused):
    """The time of the request was over before the answer: status 504."""


class ServerFailed(Refused):
    """The server failed: the other statuses from 500."""


class JobEnded(CallFailed):
    """A job failed or was cancelled; its id, state and error are in the message."""


_BY_STATUS: dict[int, type[Refused]] = {
    401: KeyRefused,
    403: KeyRefused,
    404: NotThere,
    409: Conflicting,
    429: Busy,
    503: Busy,
    504: TimeOver,
}


def refused(status: int, headers: Mapping[str, str], body: Any) -> Refused:
    """Make the error of an answer; `headers` by names in lower case."""
    kind = _BY_STATUS.get(status, ServerFailed if status >= 500 else RequestWrong)
    return kind(status, headers, body)


T = TypeVar("T")

# The server's own 504 arrives a little after the deadline; without it the caller would only know that time is over.
ANSWER_SECONDS = 1.0
FIRST_PAUSE_SECONDS = 0.1
MOST_REDIRECTS = 5
ANSWER_BYTES = 64 << 20  # unfolded
# Refused before anything was done, so even a change may be asked for again.
AT_THE_DOOR = frozenset({"overloaded", "rate-limited", "bodies-held", "draining", "not-ready", "store-busy"})


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request, and what reads its answer."""

    method: str
    path: str
    read: Callable[[Any], T]
    body: Any = None
    headers: Mapping[str, str] | None = None
    may_repeat: bool = True  # asking twice changes no more than asking once
    timeout_ms: int | None = None  # how long all attempts may take together; None: as long as the client says
    deadline_in: Literal["body", "header"] = "header"  # where the server is told how much of that is left


class Received:
    """What an attempt got from `url`: `status`, `headers`, and the body as far as it has arrived."""

    def __init__(self, response: httpx2.Response, url: str, until: float) -> None:
        self.status, self.headers = response.status_code, response.headers
        self._url, self._until, self._body = url, until, bytearray()

    def add(self, part: bytes) -> None:
        """Add a part of the body; raises ReadTimeout when time is over, NotAnAnswer beyond `ANSWER_BYTES`."""
        if time.monotonic() > self._until:
            raise httpx2.ReadTimeout("the answer did not end in time")
        if len(self._body) + len(part) > ANSWER_BYTES:
            raise NotAnAnswer(f"{self._url}: the answer is larger than {ANSWER_BYTES >> 20} MiB; ask for less at once")
        self._body += part

    def value(self) -> Any:
        """Return what the body holds; raises ValueError where it is no JSON, or nested more than 200 deep."""
        return from_json(self._body, allow_inf_nan=False)


class Attempts(Generic[T]):
    """The attempts of a call.

    A call that only asks, or that the server recognises, is tried again if the server is busy or the connection
    breaks. A change is tried again only if it was surely not made: there was no connection, or the server refused at
    the door. What only reads (GET) goes where the same server redirects it to.
    Errors that are not the server's own name its `url`.

    Attributes:
        until: when the attempt ends, by `time.monotonic`.
        policy: of tenacity, for what makes an attempt.
    """

    def __init__(self, call: Call[T], url: str, timeout_s: float, max_retries: int) -> None:
        self._call, self._url, self._redirects = call, url.rstrip("/"), 0
        seconds = timeout_s if call.timeout_ms is None else call.timeout_ms / 1000
        self.until = self._deadline = time.monotonic() + seconds
        self.policy: dict[str, Any] = {
            "retry": retry_if_exception(self._may_go),
            "wait": _pause,
            "stop": stop_after_attempt(max_retries + 1) | stop_before_delay(seconds),
            "reraise": True,
        }

    def next(self) -> dict[str, Any]:
        """Return the arguments of the HTTP client's `build_request` for the next attempt; raises as `in_json`."""
        now = time.monotonic()
        call, left = self._call, max(0.001, self._deadline - now)
        left_ms = max(1, int(left * 1000))
        body, headers, wait = call.body, {**(call.headers or {})}, left
        if call.timeout_ms is not None:
            wait = left + ANSWER_SECONDS
            if call.deadline_in == "body":
                body = {**body, "timeout_ms": left_ms}
            else:
                headers["X-Request-Timeout-Ms"] = str(left_ms)
        content = None
        if body is not None:
            content = in_json(body).encode()
            headers["Content-Type"] = "application/json"
        self.until = now + wait
        return {"method": call.method, "url": call.path, "content": content, "headers": headers, "timeout": wait}

    def begun(self, response: httpx2.Response) -> Received:
        """Return what takes the body of a response to the attempt."""
        return Received(response, self._url, self.until)

    def redirected(self, response: httpx2.Response) -> httpx2.Request | None:
        """Return the request that an answer leads to, if no key can come to another server with it."""
        to, old = response.next_request, response.request.url
        if to is None or self._call.method != "GET" or self._redirects == MOST_REDIRECTS:
            return None
        self._redirects += 1
        schemes = ((old.scheme, old.port), (to.url.scheme, to.url.port))
        is_same = old.host == to.url.host and (schemes[0] == schemes[1] or schemes == (("http", None), ("https", None)))
        return to if is_same else None

    def read(self, answer: Received) -> T:
        """Return the answer as an object; raises NotAnAnswer where it is none, or the error that it tells."""
        try:
            value = answer.value()
            if 200 <= answer.status < 300:
                return self._call.read(value)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if 200 <= answer.status < 300:
                raise NotAnAnswer(f"{self._url}: something answers, but not as polyrank serve does") from error
            value = None
        raise refused(answer.status, answer.headers, value)

    def unanswered(self, error: httpx2.RequestError | UnicodeError) -> NoAnswer:
        """Return what to raise from an error; a UnicodeError is of a host whose name cannot be looked up."""
        is_safe = self._call.may_repeat or isinstance(error, _BEFORE_IT)
        may_be_done, why = "" if is_safe else "; the change may have been made", str(error) or type(error).__name__
        return NoAnswer(f"{self._url}: no answer ({why}); is polyrank serve running?{may_be_done}")

    def _may_go(self, error: BaseException) -> bool:
        """Whether an attempt that ended so may be followed by another."""
        if isinstance(error, NoAnswer):
            return self._call.may_repeat or isinstance(error.__cause__, _BEFORE_IT)
        return isinstance(error, Busy) and (self._call.may_repeat or error.kind in AT_THE_DOOR)


# The request never arrived: no connection was made, to the server or a proxy.
_BEFORE_IT = httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout | UnicodeError


def _pause(state: RetryCallState) -> float:
    """Return the seconds before the next attempt: as the server told, or growing, and not the same for all clients."""
    after: float | None = getattr(state.outcome and state.outcome.exception(), "retry_after", None)
    return FIRST_PAUSE_SECONDS * 2 ** (state.attempt_number - 1) * random.uniform(1, 1.5) if after is None else after


def in_json(value: Any) -> str:
    """Return a value as JSON; raises ValueError for numbers that JSON has not."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise ValueError("NaN, infinite numbers, and a list or object within itself cannot be sent") from error


def options(url: str, api_key: str | None) -> dict[str, Any]:
    """Return the options of the HTTP client for a server; proxies are for other machines, not for this one.

    Raises ValueError if the URL is none.
    """
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise ValueError(f"this is no URL ({error})") from None
    if (parsed.port or 0) > 65_535:  # the socket would take it modulo 65,536
        raise ValueError("this is no URL (a port is at most 65535)")
    if parsed.query or parsed.fragment:
        raise ValueError("this is no URL of a server: leave out what begins with ? or #")
    host = parsed.host
    try:
        is_here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_here = host == "localhost"
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return {"base_url": url, "headers": headers, "trust_env": not is_here}
