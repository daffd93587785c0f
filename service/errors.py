"""What can go wrong while serving; no error here knows of HTTP (problems.py maps them).

RankingError
  InvalidInput
    UnknownCandidates     none of the ids sent is in the generation
    TooManyCandidates     more candidates than one request may carry
    TooManyValues         more values of any kind in one body than anybody needs
    NotConfigured         the request needs something this server was started without
    IdempotencyMismatch   the same Idempotency-Key came with another body
    ModelNotServed        the model that is named is not served, and no other may answer
    NoTexts               nothing to embed or to rank
    DialectUnknown        neither `texts` nor `documents`
  ServiceError
    SettingsError         a setting is unknown or has a bad value
    BodyMalformed         not JSON in UTF-8
    BodyTooLarge          more bytes than one request may carry
    BodyTimeout           the body did not arrive in time
    MediaTypeUnsupported  not application/json, or compressed
    HeaderInvalid         a request header cannot be used
    Unauthenticated       no API key that is in force
    Forbidden             the API key is not for this
    RateLimited           the caller's calls are used up for now
    NotReady              nothing to serve yet
    Draining              the server is about to stop
    ServerFailed          the server cannot start
    Overloaded            too many requests wait already
    DeadlineExceeded      the request's time was over before it was answered
    GenerationMismatch    the caller expects another generation than the one served
    RevisionNotReached    the update that the caller asks for has not arrived here
    StoreReadOnly         the store cannot be written to
    InferenceFailed       the model produced something that is not a score
    ClientGone            the caller hung up before the answer
    ServiceUnreachable    (command line) no service answers, or it refuses
"""

from collections.abc import Sequence

from polyrank.model.errors import InvalidInput, RankingError

SHOWN_IDS = 20


class UnknownCandidates(InvalidInput):
    """The generation holds none of the ids that were sent."""

    def __init__(self, ids: Sequence[str]) -> None:
        shown = ", ".join(repr(i[:64]) for i in ids[:SHOWN_IDS])
        more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
        super().__init__(f"the generation holds none of the candidates: {shown}{more}")
        self.ids = tuple(ids)


class TooManyCandidates(InvalidInput):
    """More candidates in one request than the server allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"at most {limit} candidates a request")
        self.limit = limit


class TooManyValues(InvalidInput):
    """More values in one body than any request needs."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"at most {limit} values a body, those in lists and objects counted")
        self.limit = limit


class NotConfigured(InvalidInput):
    """The request needs something the server was started without; the message names the setting."""


class IdempotencyMismatch(InvalidInput):
    """An Idempotency-Key was used again with another body."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"this Idempotency-Key belongs to job {job_id}, which was started with another body")
        self.job_id = job_id


class ModelNotServed(InvalidInput):
    """The request names a model that is not served, and lets no other answer."""

    def __init__(self, name: str, served: Sequence[str]) -> None:
        super().__init__(f"model {name[:128]!r} is not served; served: {', '.join(served)}")
        self.name = name


class NoTexts(InvalidInput):
    """There is nothing to embed or to rank."""


class DialectUnknown(InvalidInput):
    """The body is in none of the dialects of reranking."""


class ServiceError(RankingError):
    """The service cannot do what was asked."""


class SettingsError(ServiceError):
    """A setting is unknown, missing or has a bad value; the message is one line."""


class BodyMalformed(ServiceError):
    """The body is not JSON in UTF-8."""


class BodyTooLarge(ServiceError):
    """The body has more bytes than the server allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"at most {limit} bytes a request")
        self.limit = limit


class BodyTimeout(ServiceError):
    """The body did not arrive in time."""


class MediaTypeUnsupported(ServiceError):
    """The body is not plain application/json."""


class HeaderInvalid(ServiceError):
    """A request header has a value that cannot be used."""


class Unauthenticated(ServiceError):
    """The caller sent no API key that is in force."""


class Forbidden(ServiceError):
    """The caller's API key is not for this."""

    def __init__(self, scope: str) -> None:
        super().__init__(f"this needs an API key with the scope {scope}")
        self.scope = scope


class RateLimited(ServiceError):
    """The caller's calls are used up for now."""

    def __init__(self, retry_after_seconds: int) -> None:
        super().__init__(f"too many calls; try again in {retry_after_seconds} s")
        self.retry_after_seconds = retry_after_seconds


class NotReady(ServiceError):
    """There is nothing to answer from; the message says why."""

    retry_after_seconds = 5


class Draining(ServiceError):
    """The server is about to stop; requests that come nevertheless are still answered for some seconds."""

    retry_after_seconds = 5

    def __init__(self) -> None:
        super().__init__("the server is about to stop; send requests elsewhere")


class ServerFailed(ServiceError):
    """A serving process could not be started."""


class Overloaded(ServiceError):
    """There is more to do already than can be waited for.

    Args:
        waiting: requests that are there already.
        retry_after_seconds: when there will be room, as far as can be told.
    """

    def __init__(self, waiting: int, retry_after_seconds: int = 1) -> None:
        super().__init__(f"{waiting} requests are waiting already; try again in {retry_after_seconds} s")
        self.retry_after_seconds = retry_after_seconds


class DeadlineExceeded(ServiceError):
    """The request's time was over before its answer was there."""

    def __init__(self, stage: str) -> None:
        super().__init__(f"the time allowed for the request was over ({stage})")
        self.stage = stage


class GenerationMismatch(ServiceError):
    """The caller expects another generation than the one that is served."""

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(f"expected generation {expected[:128]}, serving {actual}")
        self.expected = expected
        self.actual = actual


class RevisionNotReached(ServiceError):
    """The update that the caller wants to see has not arrived here."""

    def __init__(self, wanted: int, served: int) -> None:
        super().__init__(f"revision {wanted} was asked for, but {served} is served")
        self.wanted = wanted
        self.served = served


class StoreReadOnly(ServiceError):
    """The store cannot be written to: it is served from, and changed from elsewhere."""

    def __init__(self) -> None:
        super().__init__("this server may not write to its store; change it from where it can be written")


class InferenceFailed(ServiceError):
    """The model produced something that is not a finite score."""


class ClientGone(ServiceError):
    """The caller hung up before the answer was there."""


class ServiceUnreachable(ServiceError):
    """A client found no service at the URL, or one that refused."""
