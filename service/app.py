"""The app: routes, error answers and middleware around the resources that the settings describe."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from difflib import get_close_matches
from functools import cache, partial

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from polyrank import __version__
from polyrank.model.errors import InvalidInput, RankingError
from polyrank.model.inference import auto
from polyrank.model.inference.disk_cache import cache_of
from polyrank.model.rankers import load as checkpoint
from polyrank.service.api.findings import findings_in
from polyrank.service.auth.buckets import SharedBuckets
from polyrank.service.errors import BodyInvalid, BodyTooLarge, ClientGone, MethodNotAllowed, NoSuchPath, SettingsError
from polyrank.service.http import operations
from polyrank.service.http.compat import embeddings, rerank
from polyrank.service.http.compat.rerank import of_route
from polyrank.service.http.native import candidates, classify, explain, feedback, index, rank
from polyrank.service.http.playground import page as playground
from polyrank.service.http.plumbing import openapi, problems
from polyrank.service.http.plumbing.middleware import Answers, BodyBound, Hosts, Requests, Sites, base_of, path_of
from polyrank.service.http.plumbing.problems import Kind, ProblemAnswer
from polyrank.service.live.models import Loaders, LoadRanker, LoadScorer
from polyrank.service.observe import tracing
from polyrank.service.observe.metrics import Metrics
from polyrank.service.resources import device_of, opened
from polyrank.service.settings import Settings

MAX_PATH_CHARS = 128  # of the one asked for, in the answer that there is no such path
DESCRIPTION = (
    "Ranks replies, or anything else with a text, against a conversation. Errors are `application/problem+json`. "
    "In a JSON object that has a key twice, the last one counts. Bodies may be sent with `Content-Encoding: gzip`; "
    "answers of 8 KiB and more are, where the caller accepts it. On a server with named pools every path also stands "
    "under `/pools/{name}`, for the pool of that name; where there is no such pool, any path is 404 `pool-not-found`."
)


def create_app(
    settings: Settings,
    load: LoadRanker | None = None,
    load_cross: LoadScorer | None = None,
    shared: SharedBuckets | None = None,
) -> FastAPI:
    """Make the app; its models and its generation are loaded when its lifespan begins.

    `load` and `load_cross` load a generation's model and the cross-encoder; None: from the checkpoint, onto the device
    of the settings. `shared` counts the calls of a key if other processes serve beside this one. Raises SettingsError
    if the device does not exist, or the back-end cannot run on it in the precision.
    """
    device = device_of(settings)
    try:  # before the start: a server whose model cannot be loaded would never become ready
        auto.candidates(settings.backend, settings.precision, device)
    except InvalidInput as error:
        raise SettingsError(f"backend: {error}") from error
    disk = cache_of(settings.compiled_cache_dir, settings.compiled_cache_mb)
    runs = (device, settings.backend, settings.precision, disk)
    loaders = Loaders(
        load or (lambda name: checkpoint.load(name, *runs)),
        load_cross or (lambda name: checkpoint.load_reranker(name, *runs)),
        lambda name: checkpoint.load_classifier(name, *runs),
    )
    metrics = Metrics([*settings.store])
    spans = tracing.exporting() if settings.tracing else tracing.OFF

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            async with opened(settings, metrics, spans, loaders, shared) as pools:
                app.state.pools, app.state.resources = pools, pools[""]
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
        telemetry={"tracing": False, "metrics": False, "logs": False},  # `Requests` has its own
        redirect_slashes=False,  # a redirect would lead to any host that the caller names, before anything is checked
    )
    app.state.draining, app.state.pools = False, {}
    for routes in (rank, feedback, explain, classify, rerank, embeddings, index, candidates, operations):
        app.include_router(routes.router)
    if settings.playground:
        app.include_router(playground.router)
    # FastAPI's own way to replace it. Made when it is first asked for, and once: it takes a third of a second.
    app.openapi = cache(partial(openapi.describe, app))  # type: ignore[method-assign]  # as FastAPI says to
    # As the pool shows it whose routes' paths begin with `base`.
    app.state.openapi_answer = cache(
        lambda base: JSONResponse({**app.openapi(), **({"servers": [{"url": base}]} if base else {})})
    )
    app.state.paths = cache(partial(_paths, app))  # with the first 404: by then all routes are there
    app.exception_handler(RankingError)(partial(_on_error, metrics))
    app.exception_handler(RequestValidationError)(_on_parameters)
    app.exception_handler(HTTPException)(_on_http)
    # The middleware added last is the outermost.
    app.add_middleware(BodyBound, limit=settings.max_body_bytes, metrics=metrics, in_form=of_route)
    app.add_middleware(Answers)
    sites = Sites(Hosts(settings.allowed_hosts, settings.host), settings.cors_origins)
    app.add_middleware(Requests, sites=sites, metrics=metrics, tracing=spans, in_form=of_route)
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
        metrics.cancelled.inc()
        return Response(status_code=error.status)
    problem = problems.from_error(error, request.state.request_id, base_of(request.scope))
    return of_route(request.scope, problem)


async def _on_parameters(request: Request, error: RequestValidationError) -> Response:
    dependant = getattr(request.scope.get("route"), "dependant", None)
    kinds = [field.field_info.annotation for field in dependant.query_params] if dependant else []
    model = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
    refused = BodyInvalid(findings_in(error.errors(), model))
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
    asked = path_of(request.scope)[:MAX_PATH_CHARS]
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
