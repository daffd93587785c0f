"""Turns what routes raise into answers. What each error is answered with, its class says."""

from difflib import get_close_matches
from functools import cache, partial

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from polyrank.model.errors import RankingError
from polyrank.service.errors import BodyInvalid, BodyTooLarge, ClientGone, MethodNotAllowed, NoSuchPath
from polyrank.service.http.compat.error_forms import of_route
from polyrank.service.http.plumbing import problems
from polyrank.service.http.plumbing.findings import found_in
from polyrank.service.http.plumbing.problems import Kind, ProblemAnswer
from polyrank.service.observe.metrics import Metrics

MAX_PATH_CHARS = 128


def add_to(app: FastAPI, metrics: Metrics) -> None:
    """Register the handlers; the metrics count refused requests and hung-up clients."""
    app.state.paths = cache(partial(_paths, app))  # with the first 404: by then all routes are there
    app.exception_handler(RankingError)(partial(_on_error, metrics))
    app.exception_handler(RequestValidationError)(_on_parameters)
    app.exception_handler(HTTPException)(_on_http)


async def _on_error(metrics: Metrics, request: Request, error: RankingError) -> Response:
    is_large = isinstance(error, BodyTooLarge)  # BodyBound counts and answers: it reads on for a while and closes
    if error.rejected and not is_large:
        metrics.count_rejected(error.rejected)
    if error.status == 500 or is_large:
        try:
            raise error  # the outermost middleware logs it with its traceback
        finally:
            del error  # it holds this frame: in a circle, what was read of the body would stay for long
    if isinstance(error, ClientGone):
        metrics.count_cancelled()
        return Response(status_code=error.status)
    return of_route(request.scope, problems.from_error(error, request.state.request_id))


async def _on_parameters(request: Request, error: RequestValidationError) -> Response:
    dependant = getattr(request.scope.get("route"), "dependant", None)
    kinds = [field.field_info.annotation for field in dependant.query_params] if dependant else []
    model = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
    refused = BodyInvalid(found_in(error.errors(), model))
    return of_route(request.scope, problems.from_error(refused, request.state.request_id))


async def _on_http(request: Request, error: HTTPException) -> Response:
    if error.status_code == 404:
        problem = problems.from_error(NoSuchPath(_no_such_path(request)), request.state.request_id)
    elif error.status_code == 405:
        refused = MethodNotAllowed(request.method[:16], request.url.path[:MAX_PATH_CHARS], _methods(request))
        problem = problems.from_error(refused, request.state.request_id)
    else:
        kind = Kind(error.status_code, "http-error", error.detail)
        problem = ProblemAnswer(kind, error.detail, request.state.request_id)
    problem.headers.update(error.headers or {} if error.status_code != 405 else {})
    return of_route(request.scope, problem)


def _paths(app: FastAPI) -> dict[str, str]:
    """Return all paths that are described, with their methods before them."""
    methods: dict[str, list[str]] = {}
    for route in iter_route_contexts(app.routes):
        if getattr(route, "include_in_schema", True) and route.path_format:
            methods.setdefault(route.path_format, []).extend(sorted(route.methods or ()))
    return {path: f"{'|'.join(methods[path])} {path}" for path in sorted(methods)}


def _no_such_path(request: Request) -> str:
    """Name the paths that are like the one asked for, or all of them."""
    paths = request.app.state.paths()
    asked = request.url.path[:MAX_PATH_CHARS]
    like = get_close_matches(asked.rstrip("/"), paths, 3, cutoff=0.75)
    if like:
        return f"there is no {asked}; did you mean {' or '.join(paths[path] for path in like)}?"
    return f"there is no {asked}; there are {', '.join(paths.values())}"


def _methods(request: Request) -> list[str]:
    """Return all methods of the request's path; a route knows only its own."""
    path = getattr(request.scope.get("route"), "path_format", None)
    here = [route for route in iter_route_contexts(request.app.routes) if route.path_format == path]
    methods = {method for route in here for method in route.methods or ()}
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)
