"""Errors as RFC 9457 problem details.

A new error is a class in the `errors.py` of its package, which has a status, a slug and a title or those of its parent.
Routes that raise it name it in `fails(...)`, which describes it in the OpenAPI document.
"""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Scope

from polyrank.index_builder import errors as index
from polyrank.model.errors import RankingError
from polyrank.service import errors as service
from polyrank.service.api.answers import TYPE_PREFIX, ErrorOut, Problem
from polyrank.service.api.findings import encodable

MEDIA_TYPE = "application/problem+json"
TOO_MANY_REQUESTS = 429


@dataclass(frozen=True, slots=True)
class Kind:
    """What is answered where no error of ours was raised; see `RankingError`."""

    status: int
    slug: str
    title: str


class ProblemAnswer(Response):
    """A `Problem` as a response; `kind`, `detail` and `request_id` are kept for routes with other forms of
    errors, `where`, the fields that are wrong, for the log.

    Text that is not valid Unicode is replaced, so that answering never fails.
    """

    media_type = MEDIA_TYPE

    def __init__(
        self,
        kind: Kind | type[RankingError],
        detail: str,
        request_id: str,
        errors: list[ErrorOut] | None = None,
        job: str | None = None,
    ) -> None:
        self.kind = kind
        self.where = [error.where for error in errors or () if error.where]
        self.detail = encodable(detail)
        self.request_id = request_id
        problem = Problem(
            type=TYPE_PREFIX + kind.slug,
            title=kind.title,
            status=kind.status,
            detail=self.detail,
            request_id=request_id,
            errors=errors,
            job=job,
        )
        super().__init__(problem.model_dump_json(exclude_none=True), kind.status)


# Puts a problem in the form that the clients of a route expect.
InForm = Callable[[Scope, ProblemAnswer], Response]


def from_error(error: RankingError, request_id: str, base: str = "") -> ProblemAnswer:
    """Render a domain error; `base` is the path of the pool, below which its jobs are."""
    job = None
    if isinstance(error, index.JobConflict):
        job = f"{error.base if isinstance(error, service.OtherPoolBuilt) else base}/index/jobs/{error.job_id}"
    mistakes = error.found if isinstance(error, service.BodyInvalid) else [("", str(error))]
    errors = [ErrorOut(where=where, what=encodable(what)) for where, what in mistakes] if error.status == 422 else None
    detail = "the server's log has the details under this request id" if error.status == 500 else str(error)
    answer = ProblemAnswer(type(error), detail, request_id, errors, job)
    retry_after = getattr(error, "retry_after_seconds", 5 if error.status == 503 else None)
    if retry_after is not None:
        answer.headers["Retry-After"] = str(retry_after)
    if isinstance(error, service.MethodNotAllowed):
        answer.headers["Allow"] = ", ".join(error.allowed)
    if isinstance(error, service.Unauthenticated):
        answer.headers["WWW-Authenticate"] = "Bearer"
    if job is not None:
        answer.headers["Link"] = f'<{job}>; rel="related"'
    return answer
