"""POST /rank."""

import time
from collections.abc import Mapping
from typing import Final

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from polyrank.index_builder.errors import FingerprintMismatch, GenerationError, MatrixMissing
from polyrank.service.errors import GenerationMismatch, NotConfigured, RevisionNotReached, UnknownCandidates
from polyrank.service.http.native.responses import RankOut, answer_of
from polyrank.service.http.native.schemas import ExpectIn, RankIn
from polyrank.service.http.plumbing import bodies
from polyrank.service.http.plumbing.guards import RANK
from polyrank.service.http.plumbing.openapi import ASKS, CACHE_CONTROL_IN, DEADLINE_IN, fails, takes
from polyrank.service.live.serving import Serving
from polyrank.service.observe.account import Account
from polyrank.service.observe.labels import STAGES
from polyrank.service.ranking import result_cache
from polyrank.service.ranking.values import Ranked
from polyrank.service.resources import Resources, resources

X_CACHE: Final = "X-Cache"
_CACHED: Final = {
    "headers": {
        X_CACHE: {
            "description": "where answers are kept: whether this one was",
            "schema": {"type": "string", "enum": ["hit", "miss"]},
        }
    }
}

_ERRORS: Final = fails(
    *ASKS,
    UnknownCandidates,
    NotConfigured,
    GenerationMismatch,
    FingerprintMismatch,
    GenerationError,
    MatrixMissing,
    RevisionNotReached,
    body=True,
)

router = APIRouter(tags=["rank"], dependencies=[RANK])


@router.post(
    "/rank",
    response_model=RankOut,
    response_model_exclude_none=True,
    openapi_extra=takes(RankIn, [*DEADLINE_IN, CACHE_CONTROL_IN]),
    responses={200: _CACHED, **_ERRORS},
)
async def rank(request: Request) -> Response:
    """Rank candidates, sent along or retrieved, against a conversation."""
    held = resources(request)
    body = await bodies.read_rank(request, held.settings)
    deadline = bodies.deadline(request, held.settings, body.timeout_ms)
    todo = bodies.to_request(body, held.settings, deadline)
    serving = await _serving(held, body.min_revision, todo.deadline)
    _check_expected(body.expect, serving)
    key = _cache_key(request, held, serving, body)
    if held.results is not None and key is not None and (kept := await held.results.get(key, todo.budget)) is not None:
        request.state.account = Account(serving.generation.id)
        return _response(request, kept, dict.fromkeys(STAGES, 0.0), "hit")
    ranked = await bodies.while_connected(request, held.engine.rank(serving, todo))
    answer = _rendered(request, held, serving, ranked)
    if held.results is not None and key is not None and not ranked.degraded:
        held.results.put(key, answer)
    return _response(request, answer, ranked.seconds, None if key is None else "miss")


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


# Fields that are checked before an answer is looked up, or that change no part of it.
_NOT_IN_THE_ANSWER = {"timeout_ms", "expect", "min_revision"}


def _cache_key(request: Request, held: Resources, serving: Serving, body: RankIn) -> str | None:
    """Under which the answer is kept; None: it is not."""
    if held.results is None or bodies.refuses_caches(request):
        return None
    asked = body.model_dump(mode="json", exclude=_NOT_IN_THE_ANSWER)
    return result_cache.key_of(request.state.principal.scopes, serving, held.engine.scorer, asked)


def _rendered(request: Request, held: Resources, serving: Serving, ranked: Ranked) -> bytes:
    """The answer, but for what belongs to this request."""
    request.state.account = Account(serving.generation.id, ranked.degraded, ranked.seconds)
    held.metrics.observe_rank(ranked.seconds, ranked.scored, ranked.degraded, ranked.plan)
    if ranked.plan in ("index", "selector"):
        held.metrics.count_certified(ranked.exact)
    began = time.perf_counter()
    answer = orjson.dumps(answer_of(serving, ranked))
    held.metrics.observe_serialize(time.perf_counter() - began)
    return answer


def _response(request: Request, answer: bytes, seconds: Mapping[str, float], cache: str | None) -> Response:
    """The answer, with what belongs to this request."""
    total = time.monotonic() - request.state.arrived
    own = {
        "timings_ms": {stage: round(value * 1000, 3) for stage, value in {**seconds, "total": total}.items()},
        "request_id": request.state.request_id,
    }
    body = answer[:-1] + b"," + orjson.dumps(own)[1:]
    return Response(body, headers={X_CACHE: cache} if cache else None, media_type="application/json")
