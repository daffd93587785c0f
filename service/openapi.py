"""The API's description. Bodies are read by hand (bodies.py), so what FastAPI cannot see is added here."""

import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from service import problems
from service.guards import Needs, rules
from service.responses import Problem
from service.schemas import ActivateIn, DeleteIn, IndexIn, RankIn, UpsertIn

_REF = "#/components/schemas/{model}"
_PROBLEM = {"schema": {"$ref": _REF.format(model="Problem")}}
_EVERYWHERE = (500,)
_WITH_BODY = (400, 408, 413, 415, 422)
_WITH_KEY = (401, 403, 429)
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "where the server has a keys file"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "the same key"},
    "api-key": {"type": "apiKey", "in": "header", "name": "api-key", "description": "the same key"},
}


def takes(kind: type[BaseModel]) -> dict[str, Any]:
    """Describe a JSON body for a route that reads it by hand; pass as `openapi_extra`."""
    schema = {"$ref": _REF.format(model=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def fails(*statuses: int, body: bool = False) -> dict[int | str, dict[str, Any]]:
    """Describe a route's error answers; pass as `responses`."""
    every = sorted({*statuses, *_EVERYWHERE, *(_WITH_BODY if body else ())})
    return {status: _failure(status) for status in every}


def _failure(status: int) -> dict[str, Any]:
    return {"description": _titles(status), "content": {problems.MEDIA_TYPE: _PROBLEM}}


def _titles(status: int) -> str:
    return " / ".join(dict.fromkeys(kind.title for kind in problems.TABLE.values() if kind.status == status))


def describe(app: FastAPI) -> dict[str, Any]:
    """Build the OpenAPI document of an app."""
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    bodies = [(kind, "validation") for kind in (RankIn, IndexIn, ActivateIn, UpsertIn, DeleteIn)]
    _, ours = models_json_schema([*bodies, (Problem, "serialization")], ref_template=_REF)  # type: ignore[list-item]  # mixed modes
    schemas = {**document["components"]["schemas"], **ours["$defs"]}
    for operation in (each for at in document["paths"].values() for each in at.values()):
        # FastAPI assumes its own 422 wherever there is a parameter; ours are declared where they can happen.
        if "application/json" in operation["responses"].get("422", {}).get("content", {}):
            del operation["responses"]["422"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    _describe_access(app, document["paths"])
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
            for status in _WITH_KEY:
                operation["responses"].setdefault(str(status), _failure(status))


def write(app: FastAPI, path: Path) -> None:
    """Write the document as it is kept in the repository."""
    path.write_text(json.dumps(describe(app), indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
