"""The API's description. Bodies are read by hand (bodies.py), so what FastAPI cannot see is added here."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from polyrank.model.errors import InvalidInput, RankingError
from polyrank.service.errors import (
    BodyMalformed,
    BodyTimeout,
    BodyTooLarge,
    DeadlineExceeded,
    Forbidden,
    HeaderInvalid,
    MediaTypeUnsupported,
    NotReady,
    Overloaded,
    RateLimited,
    TooManyCandidates,
    TooManyValues,
    Unauthenticated,
)
from polyrank.service.http.compat.dialects import choice
from polyrank.service.http.compat.dialects.errors import TOO_MANY_REQUESTS
from polyrank.service.http.compat.responses import OpenAiErrorOut, RerankErrorOut, TeiErrorOut
from polyrank.service.http.compat.schemas import CompatRerankIn, EmbeddingsIn, EmbedIn, SimilarityIn, TokenizeIn
from polyrank.service.http.native.responses import Problem
from polyrank.service.http.native.schemas import ActivateIn, DeleteIn, IndexIn, RankIn, UpsertIn
from polyrank.service.http.plumbing import problems
from polyrank.service.http.plumbing.bodies import TIMEOUT_HEADERS
from polyrank.service.http.plumbing.guards import Needs, rules

_REF = "#/components/schemas/{model}"
PROBLEM: Final = {problems.MEDIA_TYPE: {"schema": {"$ref": _REF.format(model="Problem")}}}
# What a route that asks the models may answer besides.
ASKS: Final = (HeaderInvalid, TooManyCandidates, NotReady, Overloaded, DeadlineExceeded)
_WITH_BODY = (BodyMalformed, BodyTimeout, TooManyValues, BodyTooLarge, MediaTypeUnsupported, InvalidInput)
_WITH_KEY = (Unauthenticated, Forbidden, RateLimited)
_REQUEST_ID = {"description": "the caller's, or one made for it", "required": True, "schema": {"type": "string"}}
_RETRY_AFTER = {
    "description": "seconds after which to come back",
    "required": True,
    "schema": {"type": "integer", "minimum": 1},
}
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "where the server has a keys file"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "the same key"},
    "api-key": {"type": "apiKey", "in": "header", "name": "api-key", "description": "the same key"},
}


def _header(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


DEADLINE_IN: Final = [
    _header(name, "how long the answer may take; the server's maximum holds as well", {"type": "integer", "minimum": 1})
    for name in TIMEOUT_HEADERS
]
CACHE_CONTROL_IN: Final = _header(
    "Cache-Control", "`no-cache` or `no-store`: rank anew and keep nothing, where answers are kept", {"type": "string"}
)
DIALECT_IN: Final = _header(
    choice.HEADER, "the form of the answer; absent: told by the body", {"enum": [*choice.DIALECTS]}
)


def takes(kind: type[BaseModel], headers: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Describe a JSON body, and headers, for a route that reads them by hand; pass as `openapi_extra`."""
    content = {"application/json": {"schema": _reference(kind)}}
    return {"requestBody": {"required": True, "content": content}, **({"parameters": [*headers]} if headers else {})}


def fails(
    *errors: type[RankingError], body: bool = False, form: type[BaseModel] | None = None
) -> dict[int | str, dict[str, Any]]:
    """Describe a route's error answers; pass as `responses`.

    Args:
        errors: that it may raise, besides those that every route may.
        body: whether it reads one.
        form: of the errors of a compatible route, which tells of refused keys in it, too; None: problem details.
    """
    titles: dict[int, dict[str, None]] = {}
    for error in (RankingError, *(_WITH_BODY if body else ()), *(_WITH_KEY if form else ()), *errors):
        kind = next(problems.TABLE[each] for each in error.__mro__ if each in problems.TABLE)
        status = TOO_MANY_REQUESTS if form and issubclass(error, Overloaded) else kind.status
        titles.setdefault(status, {})[kind.title] = None
    return {status: _failure(status, titles[status], form) for status in sorted(titles)}


def _failure(status: int, titles: Iterable[str], form: type[BaseModel] | None) -> dict[str, Any]:
    content = PROBLEM if form is None else {"application/json": {"schema": _reference(form)}}
    headers = {"headers": {"Retry-After": _RETRY_AFTER}} if status in (429, 503) else {}
    return {"description": " / ".join(titles), "content": {**content}, **headers}


def _reference(kind: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=kind.__name__)}


_NATIVE = (RankIn, IndexIn, ActivateIn, UpsertIn, DeleteIn)
_COMPATIBLE = (CompatRerankIn, EmbeddingsIn, EmbedIn, SimilarityIn, TokenizeIn)
_ERRORS = (Problem, RerankErrorOut, OpenAiErrorOut, TeiErrorOut)


def describe(app: FastAPI) -> dict[str, Any]:
    """Build the OpenAPI document of an app."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    taken = [(kind, "validation") for kind in (*_NATIVE, *_COMPATIBLE)]
    told = [(kind, "serialization") for kind in _ERRORS]
    _, ours = models_json_schema([*taken, *told], ref_template=_REF)  # type: ignore[list-item]  # mixed modes
    schemas = {**document["components"]["schemas"], **ours["$defs"]}
    _describe_access(app, document["paths"])
    for operation in (each for at in document["paths"].values() for each in at.values()):
        # FastAPI assumes its own 422 wherever there is a parameter; ours are declared where they can happen.
        if "HTTPValidationError" in str(operation["responses"].get("422")):
            del operation["responses"]["422"]
        for answer in operation["responses"].values():
            answer["headers"] = {**answer.get("headers", {}), "X-Request-ID": _REQUEST_ID}
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    document["components"].update(schemas=dict(sorted(schemas.items())), securitySchemes=_SCHEMES)
    return document


def _describe_access(app: FastAPI, paths: dict[str, Any]) -> None:
    """Say of each operation that needs a key what kind, and how it refuses; a route may describe refusals itself."""
    for route in iter_route_contexts(app.routes):
        scope = next((rule.scope for rule in rules(route) if isinstance(rule, Needs)), None)
        for method in route.methods or () if scope else ():
            operation = paths.get(route.path_format or "", {}).get(method.lower())
            if operation is None:
                continue  # an alias that is not described
            operation["security"] = [{scheme: []} for scheme in _SCHEMES]
            told = operation.get("description", "")
            operation["description"] = f"{told} Where the server has keys: with the scope `{scope}`.".strip()
            for status, refusal in fails(*_WITH_KEY).items():
                operation["responses"].setdefault(str(status), refusal)


def write(app: FastAPI, path: Path) -> None:
    """Write the document as it is kept in the repository."""
    path.write_text(json.dumps(describe(app), indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
