"""What a call of the server can end with, besides its answer."""

from collections.abc import Mapping
from typing import Any, NamedTuple

TYPE_PREFIX = "urn:polyrank:problem:"


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
        status: of HTTP.
        kind: the end of the problem's `type`, such as "invalid-input"; "" where the answer names none.
        title, detail: what is wrong.
        request_id: under which the server's log has it.
        findings: with status 422, each thing that is wrong.
        retry_after: seconds after which to come back; None: the server did not say.
        job: with the kind "job-conflict", the path of the job that runs.
    """

    def __init__(self, status: int, headers: Mapping[str, str], body: Any) -> None:
        told: dict[str, Any] = body if isinstance(body, dict) else {}
        inner = told.get("error") if isinstance(told.get("error"), dict) else {}
        assert isinstance(inner, dict)
        self.status = status
        self.kind = str(told.get("type") or inner.get("code") or "").removeprefix(TYPE_PREFIX)
        self.title = str(told.get("title") or "")
        self.detail = str(told.get("detail") or inner.get("message") or f"status {status}")
        self.request_id = str(told.get("request_id") or headers.get("x-request-id", ""))
        self.findings = _findings(told.get("errors"))
        self.retry_after = _seconds(headers.get("retry-after"))
        self.job: str | None = told.get("job")
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


def _findings(errors: Any) -> list[WrongField]:
    """Read what is wrong; something else than the server may answer by a list of another kind, which says nothing."""
    listed = errors if isinstance(errors, list) else []
    named = [one for one in listed if isinstance(one, dict) and {"where", "what"} <= one.keys()]
    return [WrongField(str(one["where"]), str(one["what"])) for one in named]


def _seconds(value: str | None) -> float | None:
    """Read Retry-After; a date, which this server never sends, counts as nothing said."""
    return float(value) if value is not None and value.isascii() and value.isdigit() else None
