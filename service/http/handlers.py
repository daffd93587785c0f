"""Turns what routes raise into answers. The table of errors is in `plumbing/problems.py`."""

from functools import partial

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from polyrank.model.errors import RankingError
from polyrank.service.errors import BodyTooLarge, ClientGone
from polyrank.service.http.compat.error_forms import of_route
from polyrank.service.http.plumbing import problems
from polyrank.service.http.plumbing.problems import ErrorOut, Kind, ProblemAnswer
from polyrank.service.observe.metrics import Metrics


def add_to(app: FastAPI, metrics: Metrics) -> None:
    """Register the handlers; the metrics count refused requests and hung-up clients."""
    app.exception_handler(RankingError)(partial(_on_error, metrics))
    app.exception_handler(ValidationError)(_on_body)
    app.exception_handler(RequestValidationError)(_on_parameters)
    app.exception_handler(HTTPException)(_on_http)


async def _on_error(metrics: Metrics, request: Request, error: RankingError) -> Response:
    if isinstance(error, BodyTooLarge):
        raise error  # BodyBound answers: it counts the refusal, reads on for a while and closes
    kind = problems.kind_of(error)
    if kind.rejected:
        metrics.count_rejected(kind.rejected)
    if kind.generic:
        raise error  # the outermost middleware logs it with its traceback
    if isinstance(error, ClientGone):
        metrics.count_cancelled()
        return Response(status_code=kind.status)
    return of_route(request.scope, problems.from_error(error, request.state.request_id))


async def _on_body(request: Request, error: ValidationError) -> Response:
    return of_route(request.scope, problems.from_validation(error, request.state.request_id))


async def _on_parameters(request: Request, error: RequestValidationError) -> Response:
    found = [ErrorOut(where=".".join(map(str, one["loc"])), what=str(one["msg"])) for one in error.errors()]
    return problems.invalid(found, request.state.request_id)


async def _on_http(request: Request, error: HTTPException) -> Response:
    kinds = {404: ("not-found", "No such path"), 405: ("method-not-allowed", "The path has other methods")}
    slug, title = kinds.get(error.status_code, ("http-error", error.detail))
    problem = ProblemAnswer(Kind(error.status_code, slug, title), error.detail, request.state.request_id)
    problem.headers.update(error.headers or {})
    if error.status_code == 405:
        problem.headers["Allow"] = _methods(request)
    return of_route(request.scope, problem)


def _methods(request: Request) -> str:
    """Return all methods of the request's path, as the header Allow lists them; a route knows only its own."""
    path = getattr(request.scope.get("route"), "path", None)
    here = [route for route in iter_route_contexts(request.app.routes) if route.path_format == path]
    methods = {method for route in here for method in route.methods or ()}
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))
