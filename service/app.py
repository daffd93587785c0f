"""The app: routes, error answers and middleware around the resources that settings describe."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import torch
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from polyrank import __version__
from polyrank.model.errors import InvalidInput, RankingError
from polyrank.model.inference.choice import choose_backend
from polyrank.model.rankers import load as checkpoint
from polyrank.service.errors import (
    BodyTooLarge,
    ClientGone,
    DeadlineExceeded,
    NotReady,
    Overloaded,
    RateLimited,
    SettingsError,
    TooManyCandidates,
    TooManyValues,
)
from polyrank.service.http.compat import embeddings as routes_embeddings
from polyrank.service.http.compat import rerank as routes_rerank
from polyrank.service.http.compat.dialects import errors as dialect_errors
from polyrank.service.http.native import candidates as routes_candidates
from polyrank.service.http.native import index as routes_index
from polyrank.service.http.native import operations as routes_ops
from polyrank.service.http.native import rank as routes_rank
from polyrank.service.http.plumbing import openapi, problems
from polyrank.service.http.plumbing.methods import HeadAsGet, allowed
from polyrank.service.http.plumbing.middleware import BodyBound, Requests
from polyrank.service.live.models import LoadRanker, LoadScorer
from polyrank.service.observe import tracing
from polyrank.service.observe.metrics import Metrics
from polyrank.service.resources import device_of, opened
from polyrank.service.settings import Settings

DESCRIPTION = (
    "Ranks replies, or anything else with a text, against a conversation. Errors are `application/problem+json`. "
    "In a JSON object that has a key twice, the last one counts."
)

_REJECTED = {
    Overloaded: "queue_full",
    DeadlineExceeded: "deadline",
    TooManyCandidates: "too_large",
    TooManyValues: "too_large",
    NotReady: "not_ready",
    RateLimited: "rate",
}


def create_app(settings: Settings, load: LoadRanker | None = None, load_cross: LoadScorer | None = None) -> FastAPI:
    """Make the app; models and generation are loaded when its lifespan begins.

    Args:
        settings: everything that it depends on.
        load: loads a generation's model; None: a checkpoint, onto the device of the settings.
        load_cross: loads the cross-encoder; likewise.

    Raises:
        SettingsError: there is no such device, or the back-end cannot run on it.
    """
    device = device_of(settings)
    _check_backend(settings.backend, device)
    load_ranker = load or partial(checkpoint.load, device=device, backend=settings.backend)
    load_scorer = load_cross or partial(checkpoint.load_cross, device=device, backend=settings.backend)
    metrics = Metrics()
    spans = tracing.exporting() if settings.tracing else tracing.OFF

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            async with opened(settings, metrics, spans, load_ranker, load_scorer) as held:
                app.state.resources = held
                yield
        finally:
            await asyncio.to_thread(spans.close)

    app = FastAPI(
        title="polyrank",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        redoc_url=None,
        redirect_slashes=False,  # they would lead to whatever host the caller names, before anything is checked
    )
    app.state.draining = False
    for routes in (routes_rank, routes_rerank, routes_embeddings, routes_index, routes_candidates, routes_ops):
        app.include_router(routes.router)
    app.openapi = partial(_described_once, app)  # type: ignore[method-assign]  # FastAPI's own way to replace it
    app.add_exception_handler(RankingError, partial(_on_error, metrics))
    app.add_exception_handler(ValidationError, _on_invalid)
    app.add_exception_handler(RequestValidationError, _on_parameters)
    app.add_exception_handler(HTTPException, _on_http)
    # The last one added is the outermost.
    app.add_middleware(BodyBound, limit=settings.max_body_bytes, metrics=metrics)
    app.add_middleware(HeadAsGet)
    app.add_middleware(Requests, metrics=metrics, tracing=spans)
    if settings.cors_origins:  # around them all: a page must be able to read an error, too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "HEAD", "POST", "PUT"],
            allow_headers=["*"],  # keys among them; there are no cookies to guard
            expose_headers=["*"],
        )
    metrics.create_routes((path, method.upper()) for path, at in app.openapi()["paths"].items() for method in at)
    return app


def _check_backend(name: str, device: str) -> None:
    """Now: what is found out when a model is loaded would leave a server that never gets ready."""
    try:
        choose_backend(name, torch.device(device))
    except InvalidInput as error:
        raise SettingsError(f"backend: {error}") from error


def _described_once(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = openapi.describe(app)
    return app.openapi_schema


async def _on_error(metrics: Metrics, request: Request, error: Exception) -> Response:
    assert isinstance(error, RankingError), "registered for these"
    if isinstance(error, BodyTooLarge):
        raise error  # BodyBound answers: it counts the refusal, reads on for a while and closes
    if reason := _REJECTED.get(type(error)):
        metrics.count_rejected(reason)
    if problems.kind_of(error).generic:
        raise error  # the outermost middleware logs it with its traceback
    if isinstance(error, ClientGone):
        metrics.count_cancelled()
        return Response(status_code=problems.kind_of(error).status)
    return dialect_errors.of_route(request.scope, problems.from_error(error, request.state.request_id))


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, ValidationError), "registered for these"
    return dialect_errors.of_route(request.scope, problems.from_validation(error, request.state.request_id))


async def _on_parameters(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError), "registered for these"
    listed = [
        {"where": ".".join(str(part) for part in each["loc"]), "what": str(each["msg"])} for each in error.errors()
    ]
    detail = "; ".join(f"{each['where']}: {each['what']}" for each in listed)
    return problems.ProblemAnswer(problems.INVALID, detail, request.state.request_id, errors=listed)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for these"
    kinds = {404: ("not-found", "No such path"), 405: ("method-not-allowed", "The path has other methods")}
    slug, title = kinds.get(error.status_code, ("http-error", error.detail))
    kind = problems.Kind(error.status_code, slug, title)
    headers = dict(error.headers or {})
    if error.status_code == 405 and (methods := allowed(request.app.routes, request.scope)):
        headers["Allow"] = methods
    problem = problems.ProblemAnswer(kind, error.detail, request.state.request_id, headers)
    return dialect_errors.of_route(request.scope, problem)
