"""POST /rank."""

import time

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from index_builder.errors import FingerprintMismatch
from service import bodies
from service.account import Account
from service.errors import GenerationMismatch
from service.guards import RANK
from service.openapi import DEADLINE_IN, fails, takes
from service.resources import Resources, resources
from service.responses import RankOut, answer_of
from service.schemas import ExpectIn, RankIn
from service.serving import Serving
from service.values import Ranked

router = APIRouter(tags=["rank"], dependencies=[RANK])


@router.post(
    "/rank",
    response_model=RankOut,
    response_model_exclude_none=True,
    openapi_extra=takes(RankIn, DEADLINE_IN),
    responses=fails(409, 503, 504, body=True),
)
async def rank(request: Request) -> Response:
    """Rank candidates, sent along or retrieved, against a conversation."""
    held = resources(request)
    body = await bodies.read_rank(request, held.settings)
    deadline = bodies.deadline(request, held.settings, body.timeout_ms)
    todo = bodies.to_request(body, held.settings, deadline)
    serving = await _serving(held, body.min_revision, todo.deadline)
    _check_expected(body.expect, serving)
    ranked = await bodies.while_connected(request, held.engine.rank(serving, todo))
    return _answer(request, held, serving, ranked)


async def _serving(held: Resources, revision: int | None, deadline: float) -> Serving:
    if revision is None:
        return held.live.require()
    return await held.updating.reached(revision, deadline)


def _check_expected(expect: ExpectIn | None, serving: Serving) -> None:
    if expect is None:
        return
    if expect.fingerprint is not None and expect.fingerprint != serving.ranker.fingerprint:
        raise FingerprintMismatch(expect.fingerprint, serving.ranker.fingerprint)
    if expect.generation is not None and expect.generation != serving.generation.id:
        raise GenerationMismatch(expect.generation, serving.generation.id)


def _answer(request: Request, held: Resources, serving: Serving, ranked: Ranked) -> Response:
    seconds = ranked.seconds
    request.state.account = Account(serving.generation.id, ranked.degraded, seconds)
    held.metrics.observe_rank(seconds, ranked.scored, ranked.degraded, ranked.plan)
    if ranked.plan in ("index", "selector"):
        held.metrics.count_certified(ranked.exact)
    began = time.perf_counter()
    total = time.monotonic() - request.state.arrived
    body = orjson.dumps(
        {
            **answer_of(serving, ranked),
            "timings_ms": {stage: round(value * 1000, 3) for stage, value in {**seconds, "total": total}.items()},
            "request_id": request.state.request_id,
        }
    )
    held.metrics.observe_serialize(time.perf_counter() - began)
    return Response(body, media_type="application/json")
