"""Health, facts and metrics."""

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from polyrank import __version__
from polyrank.service.errors import Draining, NotReady
from polyrank.service.http.compat.dialects import tei
from polyrank.service.http.compat.responses import LiveOut, ReadyOut
from polyrank.service.http.native.responses import InfoOut, StatusOut
from polyrank.service.http.plumbing import served_models
from polyrank.service.http.plumbing.guards import METRICS, OPEN, RANK
from polyrank.service.http.plumbing.openapi import fails
from polyrank.service.live.models import LateScorer, PairScorer
from polyrank.service.live.serving import Serving
from polyrank.service.resources import resources

router = APIRouter(tags=["operations"])


@router.get("/", include_in_schema=False, dependencies=[OPEN])
async def root() -> Response:
    """Lead to the API's documentation."""
    return RedirectResponse("/docs")


@router.get("/livez", response_model=StatusOut, responses=fails(NotReady), dependencies=[OPEN])
@router.get("/healthz", response_model=StatusOut, responses=fails(NotReady), dependencies=[OPEN])
async def alive(request: Request) -> Response:
    """The process answers, and so does its model's thread; where not, only a restart helps."""
    engine = resources(request).engine
    if engine.stuck:
        raise NotReady(engine.failed or "")
    return Response(orjson.dumps({"status": "ok"}), media_type="application/json")


@router.get("/readyz", response_model=StatusOut, responses=fails(NotReady, Draining), dependencies=[OPEN])
@router.get("/health", response_model=StatusOut, responses=fails(NotReady, Draining), dependencies=[OPEN])
@router.get("/ping", response_model=StatusOut, responses=fails(NotReady, Draining), dependencies=[OPEN])
async def ready(request: Request) -> Response:
    """A verified generation and its model are loaded, and the server does not drain. Redis has no say in it."""
    body = {"status": "ready", "generation": _ready(request).generation.id}
    return Response(orjson.dumps(body), media_type="application/json")


def _ready(request: Request) -> Serving:
    if request.app.state.draining:
        raise Draining
    held = resources(request)
    serving = held.live.require()
    if failed := held.engine.failed:
        raise NotReady(failed)
    return serving


@router.get("/v2/health/live", response_model=LiveOut, responses=fails(NotReady), dependencies=[OPEN])
async def protocol_live(request: Request) -> Response:
    """Open Inference Protocol: as `/livez`."""
    await alive(request)
    return Response(orjson.dumps({"live": True}), media_type="application/json")


@router.get("/v2/health/ready", response_model=ReadyOut, responses=fails(NotReady, Draining), dependencies=[OPEN])
async def protocol_ready(request: Request) -> Response:
    """Open Inference Protocol: as `/readyz`."""
    _ready(request)
    return Response(orjson.dumps({"ready": True}), media_type="application/json")


@router.get("/info", response_model=InfoOut, responses=fails(), dependencies=[RANK])
async def info(request: Request) -> Response:
    """What this server is, what it serves, its bounds, and what TEI's clients look for."""
    held = resources(request)
    serving, scorer, settings = held.live.current, held.engine.scorer, held.settings
    body = {
        **tei.info(served_models.announced(held), settings.info_model_type, held.engine.batch_tokens, settings),
        "name": "polyrank",
        "version": __version__,
        "generation": serving and serving.generation.id,
        "model": serving and {**_model(serving.ranker), "name": serving.generation.manifest.model.name},
        "reranker": scorer and _model(scorer),
        "vectors": settings.vectors,
        "limits": {
            "max_body_bytes": settings.max_body_bytes,
            "max_candidates": settings.max_candidates,
            "max_text_chars": settings.max_text_chars,
            "max_timeout_ms": settings.max_timeout_ms,
        },
    }
    return Response(orjson.dumps(body), media_type="application/json")


def _model(scorer: LateScorer | PairScorer) -> dict[str, str]:
    return {
        "name": scorer.name,
        "architecture": scorer.architecture,
        "fingerprint": scorer.fingerprint,
        "backend": scorer.backend,
    }


@router.get("/metrics", include_in_schema=False, dependencies=[METRICS])
async def metrics(request: Request) -> Response:
    """Everything counted, for Prometheus."""
    return Response(resources(request).metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")
