"""The app: routes, error answers and middleware around the resources that the settings describe."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial

import torch
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse

from polyrank import __version__
from polyrank.model.errors import InvalidInput
from polyrank.model.inference import choice
from polyrank.model.rankers import load as checkpoint
from polyrank.service.errors import SettingsError
from polyrank.service.http import handlers, openapi, operations
from polyrank.service.http.compat import embeddings, rerank
from polyrank.service.http.compat.error_forms import of_route
from polyrank.service.http.native import batch, candidates, classify, explain, index, rank
from polyrank.service.http.playground import routes as playground
from polyrank.service.http.plumbing.gzipped import Zip
from polyrank.service.http.plumbing.middleware import BodyBound, HeadAsGet, Requests
from polyrank.service.http.plumbing.sites import Hosts, Sites
from polyrank.service.live.models import Loaders, LoadRanker, LoadScorer
from polyrank.service.observe import tracing
from polyrank.service.observe.metrics import Metrics
from polyrank.service.resources import device_of, opened
from polyrank.service.settings import Settings

DESCRIPTION = (
    "Ranks replies, or anything else with a text, against a conversation. Errors are `application/problem+json`. "
    "In a JSON object that has a key twice, the last one counts. Bodies may be sent with `Content-Encoding: gzip`; "
    "answers of 8 KiB and more are, where the caller accepts it."
)


def create_app(settings: Settings, load: LoadRanker | None = None, load_cross: LoadScorer | None = None) -> FastAPI:
    """Make the app; its models and its generation are loaded when its lifespan begins.

    `load` and `load_cross` load a generation's model and the cross-encoder; None: from the checkpoint, onto the device
    of the settings.

    Raises:
        SettingsError: the device does not exist, or the back-end cannot run on it in the precision.
    """
    device = device_of(settings)
    _check_runner(settings, device)
    runs = (device, settings.backend, settings.precision, settings.compiled_cache())
    loaders = Loaders(
        load or (lambda name: checkpoint.load(name, *runs)),
        load_cross or (lambda name: checkpoint.load_cross(name, *runs)),
        lambda name: checkpoint.load_classifier(name, *runs),
    )
    metrics = Metrics()
    spans = tracing.exporting() if settings.tracing else tracing.OFF

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            async with opened(settings, metrics, spans, loaders) as held:
                app.state.resources = held
                yield
        finally:
            await asyncio.to_thread(spans.close)

    app = FastAPI(
        title="polyrank",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        openapi_url=None,  # `operations` has it, and the page that shows it
        redoc_url=None,
        redirect_slashes=False,  # a redirect would lead to any host that the caller names, before anything is checked
    )
    app.state.draining = False
    for routes in (rank, batch, explain, classify, rerank, embeddings, index, candidates, operations):
        app.include_router(routes.router)
    if settings.playground:
        app.include_router(playground.router)
    # FastAPI's own way to replace it. Made when it is first asked for, and once: it takes a third of a second.
    app.openapi = cache(partial(openapi.describe, app))  # type: ignore[method-assign]  # as FastAPI says to
    app.state.openapi_answer = cache(lambda: JSONResponse(app.openapi()))
    handlers.add_to(app, metrics)
    # The middleware added last is the outermost.
    app.add_middleware(BodyBound, limit=settings.max_body_bytes, metrics=metrics, in_form=of_route)
    app.add_middleware(Zip)
    app.add_middleware(HeadAsGet)
    hosts = Hosts(settings.allowed_hosts, settings.host)
    app.add_middleware(Sites, hosts=hosts, origins=settings.cors_origins, metrics=metrics, in_form=of_route)
    app.add_middleware(Requests, metrics=metrics, tracing=spans, in_form=of_route)
    if settings.cors_origins:  # outermost, so that a page can read an error, too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "HEAD", "POST", "PUT"],
            allow_headers=["*"],  # API keys among them; there are no cookies to guard
            expose_headers=["*"],
        )
    metrics.create_routes(openapi.operations(app))
    return app


def _check_runner(settings: Settings, device: str) -> None:
    """Check this before the start: a server whose model cannot be loaded would never become ready."""
    try:
        choice.candidates(settings.backend, settings.precision, torch.device(device))
    except InvalidInput as error:
        raise SettingsError(f"backend: {error}") from error
