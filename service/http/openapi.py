"""The OpenAPI document: what FastAPI finds out, and what routes read or raise by themselves."""

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import iter_route_contexts
from pydantic.json_schema import models_json_schema

from polyrank.model.architectures.late import Unexplained
from polyrank.model.lexical.features import FEATURES
from polyrank.model.registry import ARCHITECTURES
from polyrank.service.http.plumbing.described import NAMED, REFERENCE, REFUSALS, Needs, fails, rules

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
            operation["description"] = f"{described} Where the server has keys: with the scope `{scope}`.".strip()
            for status, refusal in fails(*REFUSALS).items():
                operation["responses"].setdefault(str(status), refusal)


def write(app: FastAPI, path: Path) -> None:
    """Write the document as it is kept in the repository."""
    path.write_text(json.dumps(describe(app), indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
