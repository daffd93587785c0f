"""What a route says of itself in docs/openapi.json, where FastAPI cannot see it.

Routes read their bodies and some headers by hand (bodies.py) and raise errors, which are listed here.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final

from pydantic import BaseModel

from polyrank.model.errors import InvalidInput, RankingError, Shortage
from polyrank.service import errors as service
from polyrank.service.http.plumbing import problems
from polyrank.service.http.plumbing.bodies import TIMEOUT_HEADERS

REFERENCE: Final = "#/components/schemas/{model}"
PROBLEM: Final = {problems.MEDIA_TYPE: {"schema": {"$ref": REFERENCE.format(model=problems.Problem.__name__)}}}
# Errors of every route that asks the models.
ASKS: Final = (
    *(service.HeaderInvalid, service.TooManyCandidates),
    *(service.NotReady, service.Overloaded, service.DeadlineExceeded),
)
# Errors of every route whose texts the models read.
READS: Final = (*ASKS, service.TimeTooShort)
# Errors of every route that ranks texts, whose vectors are kept.
RANKS: Final = (*READS, service.TextsLeft)
REFUSALS: Final = (service.Unauthenticated, service.Forbidden, service.OriginNotAllowed, service.RateLimited)
_ALWAYS = (RankingError, Shortage, service.HostNotAllowed)
_WITH_BODY = (
    *(service.BodyMalformed, service.BodyTimeout, service.TooManyValues, service.BodyTooLarge),
    *(service.MediaTypeUnsupported, InvalidInput, service.BodiesHeld, service.DeadlineExceeded),
)
_RETRY_AFTER = {
    "description": "seconds after which to come back",
    "required": True,
    "schema": {"type": "integer", "minimum": 1},
}
_RETRY_IF_KEPT = {
    "description": "where texts are left: seconds after which to send the same request again",
    "schema": {"type": "integer", "minimum": 1},
}


def header(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Describe an optional request header; a list of these goes to `takes`."""
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


DEADLINE_IN: Final = [
    header(name, "how long the answer may take; the server's maximum holds as well", {"type": "integer", "minimum": 1})
    for name in TIMEOUT_HEADERS
]


def takes(kind: type[BaseModel], headers: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Describe a JSON body and headers that a route reads by hand; pass the result as `openapi_extra`."""
    content = {"application/json": {"schema": _reference(kind)}}
    return {"requestBody": {"required": True, "content": content}, **({"parameters": [*headers]} if headers else {})}


def fails(
    *errors: type[RankingError], body: bool = False, form: type[BaseModel] | None = None
) -> dict[int | str, dict[str, Any]]:
    """Describe a route's error answers; pass the result as `responses`.

    Args:
        errors: what the route may raise, besides the errors of every route.
        body: the route reads a body, so it may raise the errors of that, too.
        form: of the errors, refused keys included, on a route for other systems' clients; None: problem details.
    """
    titles: dict[int, dict[str, None]] = {}
    for error in (*_ALWAYS, *(_WITH_BODY if body else ()), *(REFUSALS if form else ()), *errors):
        status = problems.TOO_MANY_REQUESTS if form and issubclass(error, service.Overloaded) else error.status
        titles.setdefault(status, {})[error.title] = None
    return {status: _failure(status, titles[status], form) for status in sorted(titles)}


def _failure(status: int, titles: Collection[str], form: type[BaseModel] | None) -> dict[str, Any]:
    content = PROBLEM if form is None else {"application/json": {"schema": _reference(form)}}
    described = {"description": " / ".join(titles), "content": {**content}}
    if status in (429, 503):
        described["headers"] = {"Retry-After": _RETRY_AFTER}
    elif service.TextsLeft.title in titles:
        described["headers"] = {"Retry-After": _RETRY_IF_KEPT}
    return described


def _reference(kind: type[BaseModel]) -> dict[str, str]:
    return {"$ref": REFERENCE.format(model=kind.__name__)}
