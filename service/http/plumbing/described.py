"""What a route says of itself, who may call it, what it takes and how it fails; and the OpenAPI document of all routes.

Routes read their bodies and some headers by hand (bodies.py) and raise errors. FastAPI does not see these.
"""

import json
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, get_args

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from polyrank.model.architectures.sums import Unexplained
from polyrank.model.errors import InvalidInput, RankingError, Shortage
from polyrank.model.lexical.features import FEATURES
from polyrank.model.registry import ARCHITECTURES
from polyrank.service import errors as service
from polyrank.service.api.answers import Problem
from polyrank.service.auth.keys import ANYBODY, Scope
from polyrank.service.http.plumbing import problems
from polyrank.service.http.plumbing.bodies import TIMEOUT_HEADERS
from polyrank.service.resources import resources


@dataclass(frozen=True, slots=True)
class Needs:
    """Lets requests through whose key has the scope; puts the caller into `request.state.principal`.

    A request that `counts` spends from its key's rate. A key for some pools must be for that of the path; it is for
    none of them where a route is `of` the server, and for any where it is of every pool. Raises Unauthenticated,
    Forbidden or RateLimited.
    """

    scope: Scope
    counts: bool = True
    of: Literal["pool", "server", "any pool"] = "pool"

    async def __call__(self, request: Request) -> None:
        """Check one request."""
        held = resources(request)
        access, pool = held.access, "" if self.of == "server" else held.pool
        request.state.principal = principal = access.identify(credentials(request.headers))
        access.require(principal, self.scope, None if self.of == "any pool" else pool)
        if self.counts:
            access.spend(principal)


async def anybody(request: Request) -> None:
    """Let every request through."""
    request.state.principal = ANYBODY


async def pool_needed(request: Request) -> None:
    """Refuse a request whose path names none of the server's pools; raises PoolNotFound."""
    held = resources(request)
    if held.settings.store and held.live.absent is not None:
        raise held.live.absent()


async def scraper(request: Request) -> None:
    """Let those through who may read the metrics; their calls do not count against a rate."""
    if resources(request).settings.metrics_access == "admin":
        await Needs("admin", counts=False, of="server")(request)
    else:
        await anybody(request)


RANK = Depends(Needs("rank"))
RANK_ANY = Depends(Needs("rank", of="any pool"))
ADMIN = Depends(Needs("admin"))
OPEN = Depends(anybody)
IN_POOL = Depends(pool_needed)
METRICS = Depends(scraper)
KEYS = " Where the server has keys: with the scope "  # ends the description of a route that needs one


class ByHand(APIRoute):
    """A route that reads the request by hand: FastAPI need not look for parameters, only describe it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the endpoint behind its access rules."""
        rules = [each.dependency for each in self.dependencies if each.dependency is not None]

        async def answered(request: Request) -> Response:
            for rule in rules:
                await rule(request)
            response: Response = await self.endpoint(request)
            return response

        return answered


def credentials(headers: Headers) -> list[bytes]:
    """Return what may be keys: of each `Authorization`, with or without `Bearer`, each `X-API-Key` and `api-key`."""
    sent = [*headers.getlist("x-api-key"), *headers.getlist("api-key")]
    for authorization in headers.getlist("authorization"):
        scheme, *rest = authorization.split(None, 1) or [""]
        sent.append("".join(rest) if scheme.lower() == "bearer" else authorization)
    return [key.strip().encode("latin-1") for key in sent if key.strip()]


def rules(route: RouteContext) -> list[Callable[..., Any]]:
    """Return the access rules that a route declares. A list without any means that the rule was forgotten."""
    dependant = getattr(route, "dependant", None)
    called = [dependency.call for dependency in dependant.dependencies] if dependant else []
    return [call for call in called if isinstance(call, Needs) or call in (anybody, scraper)]


REFERENCE: Final = "#/components/schemas/{model}"
NAMED: Final[dict[type[BaseModel], Literal["validation", "serialization"]]] = {}
"""The models of requests and errors that routes name by `takes` and `fails`: FastAPI does not see them."""


def _reference(kind: type[BaseModel], mode: Literal["validation", "serialization"]) -> dict[str, str]:
    NAMED[kind] = mode
    return {"$ref": REFERENCE.format(model=kind.__name__)}


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
