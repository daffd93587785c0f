"""Health, facts and metrics: for operators, and under the paths where other systems' clients look for them."""

import asyncio
import base64
import hashlib
from dataclasses import asdict
from importlib.resources import files
from typing import Any, Literal

from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from polyrank import __version__
from polyrank.model.representations import LateRows
from polyrank.service.api.answers import ModelOut, Out
from polyrank.service.api.generations import LateRowsOut, PoolOut, PoolsOut
from polyrank.service.errors import Draining, NotReady
from polyrank.service.http.compat import served_models, tei
from polyrank.service.http.playground import page as playground
from polyrank.service.http.plumbing.access import METRICS, OPEN, RANK, RANK_ANY
from polyrank.service.http.plumbing.middleware import base_of
from polyrank.service.http.plumbing.openapi import fails
from polyrank.service.live.models import PairScorer, VectorScorer
from polyrank.service.observe.labels import Searched
from polyrank.service.ranking.parts import Serving
from polyrank.service.resources import Resources

# Swagger UI, which shows the API and tries it out. Its files come with the package fastapi-swagger, so the page asks no
# other host. Its policy, which browsers enforce, lets it run these files and its own lines, and call this server.
# Nothing else, and no frame around it.
_TYPES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "favicon-32x32.png": "image/png"}
_SCRIPT, _STYLE, _ICON = (f"docs/{name}" for name in _TYPES)  # relative: the page stands below each pool, too
_A_DAY = {"Cache-Control": "public, max-age=86400"}

_PAGE = get_swagger_ui_html(
    openapi_url="openapi.json",
    title="polyrank",
    swagger_js_url=_SCRIPT,
    swagger_css_url=_STYLE,
    swagger_favicon_url=_ICON,
)
_OWN_LINES = bytes(_PAGE.body).partition(b"<script>")[2].partition(b"</script>")[0]
_DIGEST = base64.b64encode(hashlib.sha256(_OWN_LINES).digest()).decode()
_PAGE.headers["Content-Security-Policy"] = (
    f"default-src 'none'; script-src 'sha256-{_DIGEST}' 'self'; style-src 'unsafe-inline' 'self'; "
    "img-src data: 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

router = APIRouter(tags=["operations"])


class StatusOut(Out):
    """A health check's answer."""

    status: Literal["ok", "ready"]
    generation: str | None = None


class LiveOut(Out):
    """Open Inference Protocol: alive."""

    live: bool


class ReadyOut(Out):
    """Open Inference Protocol: ready."""

    ready: bool


class LimitsOut(Out):
    """Bounds of a request."""

    max_body_bytes: int
    max_candidates: int
    max_text_chars: int
    max_timeout_ms: int


class ChoiceOut(Out):
    """How `auto` chose."""

    milliseconds: dict[str, float] = Field(description="of a usual batch, by back-end and precision")
    refused: dict[str, str] = Field(description="why something does not run, by back-end, precision and part")


class LoadedModelOut(ModelOut):
    """A model that is loaded, and what runs it."""

    backend: str
    precision: str
    counts_words: bool = Field(
        description="whether words count in its scores; a reranker's only count where those of the model do"
    )
    second_stage: LateRowsOut | None = Field(description="what it keeps of each candidate, null if it has none")
    relevance_prior: float | None = Field(
        description="relevance scores are probabilities if such a share of the texts is right; null: not calibrated"
    )
    choice: ChoiceOut | None = Field(description="null where back-end and precision left no choice")
    languages: list[str] = Field(description="those that it learnt, ISO 639-1; empty: that is not known")


class ScanOut(Out):
    """How candidates are found, unless a request asks for `exact` or has a filter.

    `why` is the reason. `fallback` says that a faster scan was asked for or is usual on such a machine, and failed. A
    small pool in bytes answers contexts of few vectors by its stored rows.
    """

    kind: Searched
    why: str
    fallback: bool


class LanguagesOut(Out):
    """Languages, ISO 639-1."""

    model: list[str] = Field(description="those that the model learnt; empty: that is not known")
    pool: dict[str, int] = Field(
        description="how many texts of a sample of the pool look to be in each; empty where the model names none"
    )


class InfoOut(tei.TeiInfoOut):
    """What this server is, and what TEI's clients look for."""

    name: Literal["polyrank"]
    version: str
    generation: str | None
    model: LoadedModelOut | None
    reranker: LoadedModelOut | None
    classifier: LoadedModelOut | None
    labels: list[str] | None = Field(description="the classifier's classes")
    languages: LanguagesOut | None
    scan: ScanOut | None
    vectors: Literal["local", "redis"]
    open: bool = Field(description="whether callers on other machines need no key and may do everything")
    limits: LimitsOut


_ALIVE: dict[str, Any] = {"responses": fails(NotReady), "dependencies": [OPEN], "response_model_exclude_unset": True}
_READY: dict[str, Any] = {**_ALIVE, "responses": fails(NotReady, Draining)}


_LEADS: dict[int | str, dict[str, Any]] = {
    307: {"description": "The page", "headers": {"Location": {"schema": {"type": "string"}}}},
    500: fails(form=tei.TeiErrorOut)[500],  # the path is TEI's, too
}


@router.get("/", status_code=307, response_class=Response, responses=_LEADS, dependencies=[OPEN])
async def root(request: Request) -> Response:
    """Lead to the playground, or, where it is switched off, to the documentation; from no pool to the first one's."""
    resources: Resources = request.state.resources
    base = base_of(request.scope)
    if not resources.has_pool and resources.settings.store:
        base = f"/pools/{next(iter(resources.settings.store))}"
    return RedirectResponse(base + (playground.PATH if resources.settings.playground else "/docs"))


@router.get("/docs/{name}", include_in_schema=False, dependencies=[OPEN])
async def documentation_file(name: str) -> Response:
    """Return a file of the documentation's page."""
    if name not in _TYPES:
        raise HTTPException(404)
    content = await asyncio.to_thread(files("fastapi_swagger").joinpath("resources", name).read_bytes)
    return Response(content, media_type=_TYPES[name], headers=_A_DAY)


@router.get("/docs", include_in_schema=False, dependencies=[OPEN])
async def documentation() -> Response:
    """Show the API's documentation."""
    return _PAGE


@router.get("/openapi.json", include_in_schema=False, dependencies=[OPEN])
async def description(request: Request) -> Response:
    """Describe the API."""
    answer: Response = await asyncio.to_thread(request.app.state.openapi_answer, base_of(request.scope))
    return answer


@router.get("/livez", **_ALIVE)
@router.get("/healthz", **_ALIVE)
async def alive(request: Request) -> StatusOut:
    """The process and its model's thread answer; if they do not, only a restart helps."""
    resources: Resources = request.state.resources
    runtime = resources.runtime
    if runtime.stuck:
        raise NotReady(runtime.failed or "")
    return StatusOut(status="ok")


@router.get("/readyz", **_READY)
@router.get("/health", **_READY)
@router.get("/ping", **_READY)
async def ready(request: Request) -> StatusOut:
    """A verified generation and its model are loaded, and the server is not about to stop. Redis is not asked.

    A server without a store is ready with its reranker or classifier, one with several pools when all of them are.
    """
    serving = _ready(request)
    return StatusOut(status="ready", generation=serving.generation.id if serving else None)


def _ready(request: Request) -> Serving | None:
    """Return what is served; None: the server has no store, and its other models are loaded."""
    if request.app.state.draining:
        raise Draining
    resources: Resources = request.state.resources
    of_pools = request.app.state.pools.values() if resources.pool == "" else [resources]
    missing = [(one, one.live.reason()) for one in of_pools if one.has_pool and one.live.current is None]
    if missing:
        raise NotReady("; ".join(f"pool {one.pool}: {why}" if one.pool else why for one, why in missing))
    serving = resources.live.current
    if failed := resources.runtime.failed:
        raise NotReady(failed)
    return serving


@router.get("/pools", responses=fails(), dependencies=[RANK_ANY])
async def pools(request: Request) -> PoolsOut:
    """The pools of this server: every path also stands below the path of each, for that pool."""
    allowed = request.state.principal.pools
    return PoolsOut(
        pools=[
            PoolOut(
                name=resources.pool,
                path=f"/pools/{resources.pool}" if resources.pool else "",
                generation=None if (serving := resources.live.current) is None else serving.generation.id,
                candidates=None if serving is None else serving.snapshot.count,
                why=None if serving else resources.live.reason(),
            )
            for resources in request.app.state.pools.values()
            if resources.has_pool and (allowed is None or resources.pool in allowed)
        ]
    )


@router.get("/v2/health/live", **_ALIVE)
async def protocol_live(request: Request) -> LiveOut:
    """Open Inference Protocol: as `/livez`."""
    await alive(request)
    return LiveOut(live=True)


@router.get("/v2/health/ready", **_READY)
async def protocol_ready(request: Request) -> ReadyOut:
    """Open Inference Protocol: as `/readyz`."""
    _ready(request)
    return ReadyOut(ready=True)


@router.get("/info", response_model=InfoOut, response_model_exclude_unset=True, responses=fails(), dependencies=[RANK])
async def info(request: Request) -> dict[str, Any]:
    """What this server is, what it serves, its bounds, and what TEI's clients look for."""
    resources: Resources = request.state.resources
    serving, scorer, settings = resources.live.current, resources.runtime.scorer, resources.settings
    classifier = resources.runtime.classifier
    has_words = serving is not None and serving.generation.words is not None
    return {
        **tei.info(
            served_models.announced(resources),
            settings.info_model_type,
            resources.runtime.settings.batch_tokens,
            settings,
        ),
        "name": "polyrank",
        "version": __version__,
        "generation": serving and serving.generation.id,
        "model": serving
        and _loaded(serving.ranker, serving.generation.manifest.model.name, has_words, serving.ranker.late_rows),
        "reranker": scorer and _loaded(scorer, scorer.name, bool(scorer.evidence and has_words), None),
        "classifier": classifier and _loaded(classifier.network, classifier.name, False, None),
        "labels": classifier and [*classifier.labels],
        "languages": serving
        and LanguagesOut(model=list(serving.ranker.languages), pool=serving.generation.manifest.languages),
        "scan": serving and serving.search_status,  # FastAPI reads the fields of this and of `limits` by attribute
        "vectors": settings.vectors,
        "open": settings.is_open,
        "limits": settings,
    }


def _loaded(model: VectorScorer | PairScorer, name: str, counts_words: bool, late: LateRows | None) -> LoadedModelOut:
    return LoadedModelOut(
        name=name,
        architecture=model.architecture,
        fingerprint=model.fingerprint,
        backend=model.backend,
        precision=model.precision,
        counts_words=counts_words,
        second_stage=None if late is None else LateRowsOut(dim=late.dim, count=late.count),
        relevance_prior=model.calibration.prior if model.calibration else None,
        choice=ChoiceOut(**asdict(model.choice)) if model.choice else None,
        languages=list(model.languages),
    )


@router.get("/metrics", include_in_schema=False, dependencies=[METRICS])
async def metrics(request: Request) -> Response:
    """Everything counted, for Prometheus."""
    resources: Resources = request.state.resources
    rendered = await asyncio.to_thread(resources.metrics.render)
    return Response(rendered, media_type="text/plain; version=0.0.4; charset=utf-8")
