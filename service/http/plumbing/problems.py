"""Errors as RFC 9457 problem details, and the table that maps each error to its status, slug and title.

A new error is a class in the `errors.py` of its package and a row in TABLE here; without a row it takes that of its
nearest ancestor. Routes that raise it name it in `fails(...)`, which describes it in the OpenAPI document.
"""

from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, Field
from starlette.responses import Response

from polyrank.index_builder import errors as index
from polyrank.model.errors import InvalidInput, RankingError, Shortage
from polyrank.service import errors as service
from polyrank.service.http.plumbing.fields import Out

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:polyrank:problem:"
TOO_MANY_REQUESTS = 429


@dataclass(frozen=True, slots=True)
class Kind:
    """How one sort of error is answered.

    Attributes:
        generic: the client gets no message of its own; the log has it.
        rejected: the reason under which the metric of refused requests counts it; None: it is not counted.
    """

    status: int
    slug: str
    title: str
    generic: bool = False
    rejected: str | None = None


INTERNAL: Final = Kind(500, "internal", "The server failed", generic=True)
INVALID: Final = Kind(422, "invalid-input", "The request cannot be used")

TABLE: Final[dict[type[Exception], Kind]] = {
    RankingError: INTERNAL,
    Shortage: Kind(503, "shortage", "The system lacks something at the moment"),
    InvalidInput: INVALID,
    service.NoSuchPath: Kind(404, "not-found", "No such path"),
    service.MethodNotAllowed: Kind(405, "method-not-allowed", "The path has other methods"),
    service.UnknownCandidates: Kind(422, "unknown-candidates", "No candidate is known"),
    service.TooManyCandidates: Kind(413, "too-many-candidates", "Too many candidates", rejected="too_large"),
    service.TooManyValues: Kind(413, "too-many-values", "The body holds too many values", rejected="too_large"),
    service.NotConfigured: Kind(422, "not-configured", "The server was started without this"),
    service.IdempotencyMismatch: Kind(422, "idempotency-mismatch", "The Idempotency-Key was used with another body"),
    service.ModelNotServed: Kind(404, "model-not-served", "No such model"),
    service.NoTexts: Kind(400, "no-texts", "There is no text"),
    service.DialectUnknown: Kind(422, "dialect-unknown", "There is nothing to rank"),
    service.BodyMalformed: Kind(400, "malformed-body", "The body is not JSON"),
    service.HeaderInvalid: Kind(400, "invalid-header", "A header cannot be used"),
    service.BodyTimeout: Kind(408, "body-timeout", "The body came too slowly"),
    service.BodyTooLarge: Kind(413, "payload-too-large", "The body is too large", rejected="too_large"),
    service.MediaTypeUnsupported: Kind(415, "unsupported-media-type", "The body is not plain JSON"),
    service.Unauthenticated: Kind(401, "unauthenticated", "An API key is needed"),
    service.Forbidden: Kind(403, "forbidden", "The API key is not for this"),
    service.HostNotAllowed: Kind(421, "host-not-allowed", "The server has another name", rejected="host"),
    service.OriginNotAllowed: Kind(403, "origin-not-allowed", "The page is of another site", rejected="origin"),
    service.RateLimited: Kind(TOO_MANY_REQUESTS, "rate-limited", "Too many calls", rejected="rate"),
    service.ClientGone: Kind(499, "client-gone", "The client hung up"),
    service.NotReady: Kind(503, "not-ready", "Nothing is served yet", rejected="not_ready"),
    service.ShardsMissing: Kind(503, "shards-missing", "Too many shards do not answer", rejected="shards"),
    service.NoTrial: Kind(409, "no-trial", "No generation is on trial"),
    service.Draining: Kind(503, "draining", "The server is about to stop"),
    service.Overloaded: Kind(503, "overloaded", "Too many requests are waiting", rejected="queue_full"),
    service.BodiesHeld: Kind(503, "bodies-held", "Too many large requests", rejected="bodies"),
    service.DeadlineExceeded: Kind(504, "deadline-exceeded", "The time was over", rejected="deadline"),
    service.TextsLeft: Kind(504, "texts-left", "The time was over before all texts were encoded", rejected="deadline"),
    service.TimeTooShort: Kind(413, "time-too-short", "More texts than the time allows", rejected="too_large"),
    service.TooManyForExact: Kind(422, "too-many-for-exact", "Too many candidates to score them all"),
    service.GenerationMismatch: Kind(409, "generation-mismatch", "Another generation is served"),
    service.CandidateNotFound: Kind(404, "candidate-not-found", "No such candidate"),
    service.RevisionNotReached: Kind(409, "revision-not-reached", "The update has not arrived here"),
    service.StoreReadOnly: Kind(409, "store-read-only", "The store cannot be changed from here"),
    service.InferenceFailed: Kind(500, "inference-failed", "The model failed", generic=True),
    index.FingerprintMismatch: Kind(409, "encoder-mismatch", "Another model is served"),
    index.PoolError: INVALID,
    index.GenerationError: Kind(409, "generation-invalid", "The generation cannot be served"),
    index.MatrixMissing: Kind(409, "matrix-missing", "This replica does not hold the matrix"),
    index.GenerationNotFound: Kind(404, "generation-not-found", "No such generation"),
    index.StoreUnavailable: Kind(503, "store-unavailable", "The store does not answer"),
    index.StoreBusy: Kind(503, "store-busy", "Others are changing the store"),
    index.BuildBusy: Kind(409, "build-busy", "Another build is running"),
    index.NothingToCompact: Kind(409, "nothing-to-compact", "There are no updates to compact"),
    index.CompactionOvertaken: Kind(409, "compaction-overtaken", "Another generation became active"),
    index.DiskFull: Kind(507, "disk-full", "No room on the disk"),
    index.JobNotFound: Kind(404, "job-not-found", "No such job"),
    index.JobConflict: Kind(409, "job-conflict", "Another job is running"),
}


def kind_of(error: Exception) -> Kind:
    """Return the row of an error's type, or of its nearest ancestor in the table."""
    return next((TABLE[base] for base in type(error).__mro__ if base in TABLE), INTERNAL)


class ErrorOut(Out):
    """One thing that is wrong with a request."""

    where: str
    what: str


class Problem(BaseModel):
    """An error (RFC 9457)."""

    type: str = Field(examples=["urn:polyrank:problem:invalid-input"])
    title: str
    status: int
    detail: str
    request_id: str
    errors: list[ErrorOut] | None = Field(default=None, description="with 422: where and what, never the values sent")
    job: str | None = Field(default=None, description="with job-conflict: the job that is running")


class ProblemAnswer(Response):
    """A `Problem` as a response; `kind`, `detail` and `request_id` are kept for routes with other forms of
    errors, `where`, the fields that are wrong, for the log.

    Text that is not valid Unicode is replaced, so that answering never fails.
    """

    media_type = MEDIA_TYPE

    def __init__(
        self, kind: Kind, detail: str, request_id: str, errors: list[ErrorOut] | None = None, job: str | None = None
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


def from_error(error: RankingError, request_id: str) -> ProblemAnswer:
    """Render a domain error."""
    kind = kind_of(error)
    job = f"/index/jobs/{error.job_id}" if isinstance(error, index.JobConflict) else None
    found = error.found if isinstance(error, service.BodyInvalid) else [("", str(error))]
    errors = [ErrorOut(where=where, what=encodable(what)) for where, what in found] if kind.status == 422 else None
    detail = "the server's log has the details under this request id" if kind.generic else str(error)
    answer = ProblemAnswer(kind, detail, request_id, errors, job)
    retry_after = getattr(error, "retry_after_seconds", 5 if kind.status == 503 else None)
    if retry_after is not None:
        answer.headers["Retry-After"] = str(retry_after)
    if isinstance(error, service.MethodNotAllowed):
        answer.headers["Allow"] = ", ".join(error.allowed)
    if isinstance(error, service.Unauthenticated):
        answer.headers["WWW-Authenticate"] = "Bearer"
    if job is not None:
        answer.headers["Link"] = f'<{job}>; rel="related"'
    return answer


def encodable(text: str) -> str:
    """Replace what is no valid Unicode."""
    return text.encode("utf-8", "replace").decode()
