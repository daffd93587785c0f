"""What can go wrong while serving.

To add an error, write its class here, with status, slug and title if its answer differs from its parent's
(`RankingError` says what they are). The docstring of a class says when it is raised; errors of the other packages are
in `model/errors.py` and `index_builder/errors.py`.
"""

from collections.abc import Sequence

from polyrank.index_builder.errors import JobConflict
from polyrank.model.errors import InvalidInput, RankingError

SHOWN_IDS = 20


class BodyInvalid(InvalidInput):
    """A body or its parameters are not what the route takes; `found` says where and what, without the values sent."""

    def __init__(self, found: Sequence[tuple[str, str]]) -> None:
        self.found = found
        super().__init__("; ".join(f"{where}: {what}" if where else what for where, what in found[:3]))


class UnknownCandidates(InvalidInput):
    """The generation holds none of the ids that were sent."""

    status, slug, title = 422, "unknown-candidates", "No candidate is known"

    def __init__(self, ids: Sequence[str]) -> None:
        shown = ", ".join(repr(candidate_id[:64]) for candidate_id in ids[:SHOWN_IDS])
        more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
        super().__init__(f"the generation holds none of the candidates: {shown}{more}")


class TooManyCandidates(InvalidInput):
    """More candidates in one request than the server allows."""

    status, slug, title = 413, "too-many-candidates", "Too many candidates"
    rejected = "too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"at most {limit} candidates a request (the setting max_candidates); send fewer at a time")


class TooManyValues(InvalidInput):
    """More values in one body than any request needs."""

    status, slug, title = 413, "too-many-values", "The body holds too many values"
    rejected = "too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"at most {limit} values a body, at any depth; a list or an object counts as three")


class NotConfigured(InvalidInput):
    """The request needs something that the server was started without; the message names the setting."""

    status, slug, title = 422, "not-configured", "The server was started without this"


class NotCalibrated(InvalidInput):
    """A decision is asked for, and it is not known what the scores say."""

    status, slug, title = 422, "not-calibrated", "The scores are not calibrated"

    def __init__(self, model: str, then: str) -> None:
        super().__init__(
            f"answer_if: {model} has no calibration, so its scores say no probability; "
            f"fit one with polyrank train --only-calibration, and {then}"
        )


class IdempotencyMismatch(InvalidInput):
    """An Idempotency-Key was used again with another body."""

    status, slug, title = 422, "idempotency-mismatch", "The Idempotency-Key was used with another body"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"this Idempotency-Key belongs to job {job_id}, which was started with another body")


class ModelNotServed(InvalidInput):
    """The request names a model that is not served, and no other may answer."""

    status, slug, title = 404, "model-not-served", "No such model"

    def __init__(self, name: str, served: Sequence[str]) -> None:
        super().__init__(f"model {name[:128]!r} is not served; served: {', '.join(served)}")


class NoTexts(InvalidInput):
    """There is nothing to embed or to rank."""

    status, slug, title = 400, "no-texts", "There is no text"


class DialectUnknown(InvalidInput):
    """The body has neither `texts` nor `documents`, so its dialect is unknown."""

    status, slug, title = 422, "dialect-unknown", "There is nothing to rank"


class ServiceError(RankingError):
    """The service cannot do what was asked."""


class SettingsError(ServiceError):
    """A setting is unknown, missing or has a bad value; the message is one line."""


class NoSuchPath(ServiceError):
    """The server has no such path; the message names those it has."""

    status, slug, title = 404, "not-found", "No such path"


class PoolNotFound(ServiceError):
    """The path leads to no pool: the server has none of the name, or none without a name."""

    status, slug, title = 404, "pool-not-found", "No such pool"

    def __init__(self, name: str) -> None:
        what = f"no pool {name[:64]!r}" if name else "no pool without a name; ask under /pools/{name}"
        super().__init__(f"there is {what}; GET /pools lists those there are")


class MethodNotAllowed(ServiceError):
    """The path has other methods: `allowed`, as the header Allow lists them."""

    status, slug, title = 405, "method-not-allowed", "The path has other methods"

    def __init__(self, method: str, path: str, allowed: Sequence[str]) -> None:
        super().__init__(f"there is no {method} {path}; the path takes {', '.join(allowed)}")
        self.allowed = allowed


class BodyMalformed(ServiceError):
    """The body is not JSON in UTF-8, UTF-16 or UTF-32."""

    status, slug, title = 400, "malformed-body", "The body is not JSON"


class BodyTooLarge(ServiceError):
    """The body has more bytes than the server allows."""

    status, slug, title = 413, "payload-too-large", "The body is too large"
    rejected = "too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"at most {limit} bytes a request")


class BodyTimeout(ServiceError):
    """The body did not arrive in time."""

    status, slug, title = 408, "body-timeout", "The body came too slowly"


class MediaTypeUnsupported(ServiceError):
    """The body is not plain application/json."""

    status, slug, title = 415, "unsupported-media-type", "The body is not plain JSON"


class HeaderInvalid(ServiceError):
    """A request header has a value that cannot be used."""

    status, slug, title = 400, "invalid-header", "A header cannot be used"


class Unauthenticated(ServiceError):
    """The caller sent no API key that is in force."""

    status, slug, title = 401, "unauthenticated", "An API key is needed"


class Forbidden(ServiceError):
    """The caller's API key lacks the scope."""

    status, slug, title = 403, "forbidden", "The API key is not for this"

    def __init__(self, scope: str) -> None:
        super().__init__(f"this needs an API key with the scope {scope}")


class OtherPools(Forbidden):
    """The caller's API key is for other pools."""

    def __init__(self, pools: Sequence[str]) -> None:
        shown = ", ".join(f"/pools/{name}" for name in pools[:SHOWN_IDS])
        ServiceError.__init__(self, f"the API key is for some pools alone; ask under {shown}")


class HostNotAllowed(ServiceError):
    """The request names a host as which this server may not be called."""

    status, slug, title = 421, "host-not-allowed", "The server has another name"
    rejected = "host"

    def __init__(self, host: str) -> None:
        super().__init__(
            f"the server may not be called as {host[:128]!r}: whoever runs it can name that host in the setting "
            "allowed_hosts (POLYRANK_ALLOWED_HOSTS)"
        )


class OriginNotAllowed(ServiceError):
    """A page of another site wants to change or compute something; its browser may have told no origin."""

    status, slug, title = 403, "origin-not-allowed", "The page is of another site"
    rejected = "origin"

    def __init__(self, origin: str | None) -> None:
        site, named = ("other sites", "their") if origin is None else (repr(origin[:128]), "that")
        super().__init__(
            f"pages of {site} may not call this server: whoever runs it can name {named} origin in the setting "
            "cors_origins (POLYRANK_CORS_ORIGINS)"
        )


class RateLimited(ServiceError):
    """The caller has used up its rate for now."""

    status, slug, title = 429, "rate-limited", "Too many calls"
    rejected = "rate"

    def __init__(self, retry_after_seconds: int) -> None:
        super().__init__(f"too many calls; try again in {retry_after_seconds} s")
        self.retry_after_seconds = retry_after_seconds


class NotReady(ServiceError):
    """Nothing can be answered yet, or any more; the message says why."""

    status, slug, title = 503, "not-ready", "Nothing is served yet"
    rejected = "not_ready"
    retry_after_seconds = 5


class ShardsMissing(ServiceError):
    """Too much of the pool is on shards that do not answer."""

    status, slug, title = 503, "shards-missing", "Too many shards do not answer"
    rejected = "shards"
    retry_after_seconds = 5

    def __init__(self, parts: Sequence[str], searched: float) -> None:
        super().__init__(
            f"the shards of {len(parts)} parts do not answer ({', '.join(parts[:SHOWN_IDS])}), so only {searched:.0%} "
            "of the pool could be searched; try again"
        )
        self.searched = searched


class NoTrial(ServiceError):
    """A request asks for the generation on trial, and there is none; the message says why."""

    status, slug, title = 409, "no-trial", "No generation is on trial"


class Draining(ServiceError):
    """The server is about to stop. `/readyz` says so; requests are still answered for some seconds."""

    status, slug, title = 503, "draining", "The server is about to stop"
    retry_after_seconds = 5

    def __init__(self) -> None:
        super().__init__("the server is about to stop; send requests elsewhere")


class WorkerFailed(ServiceError):
    """A serving process could not be started (the parent of several ends with it)."""


class Overloaded(ServiceError):
    """So many requests wait that another one is refused; `retry_after_seconds` estimates when there will be room."""

    status, slug, title = 503, "overloaded", "Too many requests are waiting"
    rejected = "queue_full"

    def __init__(self, waiting: int, retry_after_seconds: int = 1) -> None:
        super().__init__(f"{waiting} requests are waiting already; try again in {retry_after_seconds} s")
        self.retry_after_seconds = retry_after_seconds


class BodiesHeld(ServiceError):
    """The large bodies of all requests in progress take more room than they may."""

    status, slug, title = 503, "bodies-held", "Too many large requests"
    rejected = "bodies"
    retry_after_seconds = 1

    def __init__(self, limit: int) -> None:
        super().__init__(f"other large requests hold the {limit} bytes that there are for bodies; try again in 1 s")


class DeadlineExceeded(ServiceError):
    """The request's time was over before the answer was there; `stage` is how far it came."""

    status, slug, title = 504, "deadline-exceeded", "The time was over"
    rejected = "deadline"

    def __init__(self, stage: str) -> None:
        super().__init__(f"the time allowed for the request was over ({stage})")


class TimeTooShort(ServiceError):
    """The request sends more texts than can be read in its time."""

    status, slug, title = 413, "time-too-short", "More texts than the time allows"
    rejected = "too_large"

    def __init__(self, sent: int, fitting: int) -> None:
        super().__init__(
            f"{sent} texts take longer than the time allowed for the request; about {fitting} fit at the present "
            "speed: send fewer at a time, or allow more time"
        )
        self.fitting = fitting


class TooMuchToExplain(TimeTooShort):
    """An explanation asks for more forward passes than fit into its time."""

    def __init__(self, passes: int, fitting: int) -> None:
        ServiceError.__init__(
            self,
            f"the explanation reads {passes} sequences, and about {fitting} fit into its time at the present speed: "
            "explain fewer candidates, leave out turns instead of words, do without occlusion, or allow more time",
        )
        self.fitting = fitting


class TooManyForExact(ServiceError):
    """The second stage cannot score every candidate in reasonable time."""

    status, slug, title = 422, "too-many-for-exact", "Too many candidates to score them all"

    def __init__(self, candidates: int, most: int) -> None:
        super().__init__(
            f"exact: the model's second stage would score {candidates} candidates, and {most} are the most here; leave "
            "exact out, so that it scores the best retrieve_k, or let fewer through by a filter"
        )


class GenerationMismatch(ServiceError):
    """The caller expects another generation than the one that is served."""

    status, slug, title = 409, "generation-mismatch", "Another generation is served"

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(f"generation {expected[:128]} was expected, but {actual} is served")


class ListOutdated(GenerationMismatch):
    """A list of candidates goes on where a page of another generation ended."""

    def __init__(self, begun: str, actual: str) -> None:
        ServiceError.__init__(
            self,
            f"after: the list was begun in generation {begun[:128]}, and {actual} is served now; begin it anew, "
            "without `after`",
        )


class CandidateNotFound(ServiceError):
    """The generation does not hold the candidate."""

    status, slug, title = 404, "candidate-not-found", "No such candidate"

    def __init__(self, candidate_id: str) -> None:
        super().__init__(f"the generation holds no candidate {candidate_id[:64]!r}")


class RevisionNotReached(ServiceError):
    """The update that the caller wants to see has not arrived at this server in time."""

    status, slug, title = 409, "revision-not-reached", "The update has not arrived here"

    def __init__(self, wanted: int, served: int) -> None:
        super().__init__(
            f"revision {wanted} was asked for, but {served} is served; ask again if an update has returned it"
        )
        self.wanted = wanted
        self.served = served


class StoreReadOnly(ServiceError):
    """This server may not write to the store; it only serves from it."""

    status, slug, title = 409, "store-read-only", "The store cannot be changed from here"

    def __init__(self) -> None:
        super().__init__("this server may not write to its store; change it from where it can be written")


class OtherPoolBuilt(JobConflict):
    """A build of another pool has not finished; `base` is the path of that pool."""

    def __init__(self, job_id: str, pool: str) -> None:
        name = f"the pool {pool}" if pool else "the pool without a name"
        RankingError.__init__(
            self, f"job {job_id} of {name} has not finished; one pool is built at a time, so try again when it has"
        )
        self.job_id, self.base = job_id, f"/pools/{pool}" if pool else ""


class InferenceFailed(ServiceError):
    """The model failed, or produced a score that is not finite."""

    status, slug, title = 500, "inference-failed", "The model failed"


class ClientGone(ServiceError):
    """The client hung up before the answer was there."""

    status, slug, title = 499, "client-gone", "The client hung up"


class FeedbackUnusable(ServiceError):
    """The store's log of feedback cannot be used; the message says what to do."""


class UnknownRanking(ServiceError):
    """No server on this store gave the id of this ranking."""

    status, slug, title = 404, "unknown-ranking", "No such ranking"

    def __init__(self, ranking_id: str) -> None:
        super().__init__(f"no ranking here has the id {ranking_id[:64]!r}; take it from `ranking_id` of an answer")


class FeedbackTooOld(ServiceError):
    """The ranking was answered so long ago that nothing of it is kept."""

    status, slug, title = 410, "feedback-too-old", "The ranking is no longer kept"

    def __init__(self, ranking_id: str, days: int) -> None:
        super().__init__(f"the ranking {ranking_id} is older than {days} days (the setting feedback_days)")


class TooMuchFeedback(InvalidInput):
    """So much was said of one ranking that no more is taken."""

    status, slug, title = 422, "too-much-feedback", "Too much feedback on one ranking"

    def __init__(self, ranking_id: str, events: int, letters: int) -> None:
        super().__init__(
            f"of the ranking {ranking_id} at most {events} events are taken, with {letters} letters of text in all"
        )


class EraseUnfinished(ServiceError):
    """Something was not erased everywhere; the message says what holds already, and what to do."""


class LoopBusy(ServiceError):
    """Another process runs the loop of this store."""


class LoopFailed(ServiceError):
    """A stage of the loop has failed, or what a run has left cannot be used; the message says what to do."""


class ServiceUnreachable(ServiceError):
    """Raised by the command line: no service answers at the URL, or it refuses."""
