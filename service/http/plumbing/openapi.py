"""What a route says of itself, what it takes and how it fails; and the OpenAPI document of all routes.

Routes read their bodies and some headers by hand (bodies.py) and raise errors. FastAPI does not see these.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, get_args

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from polyrank.model.architectures.sums import Unexplained
from polyrank.model.errors import InvalidInput, RankingError, Shortage
from polyrank.model.lexical.score import FEATURES
from polyrank.model.registry import ARCHITECTURES
from polyrank.service import errors as service
from polyrank.service.api.answers import Problem
from polyrank.service.http.plumbing import problems
from polyrank.service.http.plumbing.access import Needs, rules
from polyrank.service.http.plumbing.bodies import TIMEOUT_HEADERS

REFERENCE: Final = "#/components/schemas/{model}"
NAMED: Final[dict[type[BaseModel], Literal["validation", "serialization"]]] = {}
"""The models of requests and errors that routes name by `takes` and `fails`: FastAPI does not see them."""


def _reference(kind: type[BaseModel], mode: Literal["validation", "serialization"]) -> dict[str, str]:
    NAMED[kind] = mode
    return {"$ref": REFERENCE.format(model=kind.__name__)}


KEYS = " Where the server has keys: with the scope "  # ends the description of a route that needs one
PROBLEM: Final = {problems.MEDIA_TYPE: {"schema": _reference(Problem, "serialization")}}
# Errors of every route that asks the models.
ASKS: Final = (
    *(service.HeaderInvalid, service.TooManyCandidates),
    *(service.NotReady, service.Overloaded, service.DeadlineExceeded),
)
# Errors of every route whose texts the models read.
READS: Final = (*ASKS, service.TimeTooShort)
REFUSALS: Final = (
    *(service.HeaderInvalid, service.Unauthenticated, service.Forbidden),
    *(service.OriginNotAllowed, service.RateLimited),
)
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


def header(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Describe an optional request header; a list of these goes to `takes`."""
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


DEADLINE_IN: Final = [
    header(name, "how long the answer may take; the server's maximum holds as well", {"type": "integer", "minimum": 1})
    for name in TIMEOUT_HEADERS
]


def takes(kind: type[BaseModel], headers: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Describe a JSON body and headers that a route reads by hand; pass the result as `openapi_extra`."""
    content = {"application/json": {"schema": _reference(kind, "validation")}}
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
    content = PROBLEM if form is None else {"application/json": {"schema": _reference(form, "serialization")}}
    described = {"description": " / ".join(titles), "content": {**content}}
    if status in (429, 503):
        described["headers"] = {"Retry-After": _RETRY_AFTER}
    return described


# Names that `service/api` cannot list, because the clients, which read answers by it, import no models.
_NAMES: dict[tuple[str, str], Iterable[str]] = {
    ("ModelOut", "architecture"): ARCHITECTURES,
    ("LoadedModelOut", "architecture"): ARCHITECTURES,
    ("TermOut", "feature"): FEATURES,
    ("UnexplainedOut", "part"): get_args(Unexplained),
}
_REQUEST_ID = {"description": "the caller's, or one made for it", "required": True, "schema": {"type": "string"}}
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "where the server has a keys file"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "the same key"},
    "api-key": {"type": "apiKey", "in": "header", "name": "api-key", "description": "the same key"},
}


def describe(app: FastAPI) -> dict[str, Any]:
    """Build the OpenAPI document of an app."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    _, ours = models_json_schema([*NAMED.items()], ref_template=REFERENCE)
    schemas = {**document["components"]["schemas"], **ours["$defs"]}
    _describe_access(app, document["paths"])
    for operation in chain.from_iterable(methods.values() for methods in document["paths"].values()):
        # FastAPI assumes its own 422 wherever there is a parameter; routes declare theirs where it can happen.
        if "HTTPValidationError" in str(operation["responses"].get("422")):
            del operation["responses"]["422"]
        for answer in operation["responses"].values():
            answer["headers"] = {**answer.get("headers", {}), "X-Request-ID": _REQUEST_ID}
    for (schema, field), names in _NAMES.items():
        schemas[schema]["properties"][field]["enum"] = [*names]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    document["components"].update(schemas=dict(sorted(schemas.items())), securitySchemes=_SCHEMES)
    return document


def operations(app: FastAPI) -> Iterator[tuple[str, str]]:
    """The path template and the method of each operation that the document has."""
    for route in iter_route_contexts(app.routes):
        if route.include_in_schema and route.path_format:
            yield from ((route.path_format, method) for method in sorted(route.methods or ()))


def _describe_access(app: FastAPI, paths: dict[str, Any]) -> None:
    """Say of each operation what key it needs and how it refuses others; a route may describe refusals itself."""
    for route in iter_route_contexts(app.routes):
        scope = next((rule.scope for rule in rules(route) if isinstance(rule, Needs)), None)
        for method in route.methods or () if scope else ():
            operation = paths.get(route.path_format or "", {}).get(method.lower())
            if operation is None:
                continue  # an alias that is not described
            operation["security"] = [{scheme: []} for scheme in _SCHEMES]
            described = operation.get("description", "")
            operation["description"] = f"{described}{KEYS}`{scope}`.".strip()
            for status, refusal in fails(*REFUSALS).items():
                operation["responses"].setdefault(str(status), refusal)


def write(app: FastAPI, path: Path) -> None:
    """Write the document as it is kept in the repository."""
    path.write_text(json.dumps(describe(app), indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
