"""`POST /rank/batch`: several rankings in one call, each answered or refused on its own.

All of them are in progress at the same time, so their contexts share forward passes. Admission counts each.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson
from fastapi import APIRouter
from pydantic import JsonValue, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from polyrank.model.errors import RankingError, shortage_in
from polyrank.service.errors import BodyInvalid, HeaderInvalid, TooManyCandidates
from polyrank.service.http.native.rank import answered, completed
from polyrank.service.http.native.requests import BatchIn, RankIn
from polyrank.service.http.native.responses import BatchOut
from polyrank.service.http.plumbing import bodies, problems
from polyrank.service.http.plumbing.described import DEADLINE_IN, fails, takes
from polyrank.service.http.plumbing.findings import MAX_ERRORS, refusal
from polyrank.service.http.plumbing.guards import RANK
from polyrank.service.observe.account import Account
from polyrank.service.resources import Resources, resources

log = logging.getLogger("polyrank.request")

router = APIRouter(tags=["rank"], dependencies=[RANK])


class _Entry(NamedTuple):
    """One ranking: its status, the rest of its part of the answer as JSON, and what the log says of it."""

    status: int
    rest: bytes
    account: Account


@router.post(
    "/rank/batch",
    response_model=BatchOut,
    response_model_exclude_none=True,
    openapi_extra=takes(BatchIn, DEADLINE_IN),
    responses=fails(HeaderInvalid, TooManyCandidates, body=True),
)
async def rank_batch(request: Request) -> Response:
    """Rank several times in one call; `answers` has for each an answer of `POST /rank` or its problem."""
    held = resources(request)
    batch = await bodies.read(request, BatchIn)
    journey = bodies.journey(request, held.settings, batch.timeout_ms)  # a wrong header is not of one ranking alone
    async with journey.in_time():
        # Never on the event loop: a few values can be a hundred mistakes, and each takes its time.
        values = max(request.state.bound, bodies.INLINE_VALUES + 1)
        checked = await bodies.beside(request, partial(_all_checked, batch.requests), values)
    sent = [body for body in checked if isinstance(body, RankIn)]
    bodies.check_count([candidate for body in sent for candidate in body.candidates or ()], held.settings)
    ranking = [partial(_entry, request, held, body, batch.timeout_ms, at) for at, body in enumerate(checked)]
    entries = await bodies.while_connected(request, _together(ranking))
    request.state.account = _account(entries)
    parts = (b'{"status":%d,%s}' % (entry.status, entry.rest) for entry in entries)
    own = orjson.dumps({"request_id": request.state.request_id})
    return Response(b'{"answers":[%s],%s' % (b",".join(parts), own[1:]), media_type="application/json")


async def _together(ranking: Sequence[Callable[[], Coroutine[Any, Any, _Entry]]]) -> list[_Entry]:
    turns = asyncio.Lock()

    async def in_turn(rank: Callable[[], Coroutine[Any, Any, _Entry]]) -> _Entry:
        async with turns:
            await asyncio.sleep(0)  # others have the event loop between the beginnings of two
        return await rank()

    return await asyncio.gather(*map(in_turn, ranking))


def _all_checked(sent: Sequence[JsonValue]) -> list[RankIn | RankingError]:
    """Check each; all wrong ones together have as many mistakes named as one, and one each."""
    checked: list[RankIn | RankingError] = []
    left = MAX_ERRORS
    for one in sent:
        checked.append(body := _checked(one, max(left, 1)))
        left -= len(body.found) if isinstance(body, BodyInvalid) else 0
    return checked


def _checked(sent: JsonValue, most: int) -> RankIn | RankingError:
    try:
        return RankIn.model_validate(sent)
    except ValidationError as error:
        return refusal(error, RankIn, most)


async def _entry(
    request: Request, held: Resources, body: RankIn | RankingError, timeout_ms: int | None, at: int
) -> _Entry:
    """Do one ranking; whatever goes wrong with it is its problem alone. All but the first count anew for the rate."""
    try:
        if at:
            held.access.spend(request.state.principal)
        if isinstance(body, RankingError):
            return _refused(request, held, body)
        allowed = [each for each in (timeout_ms, body.timeout_ms) if each is not None]
        journey = bodies.journey(request, held.settings, min(allowed, default=None))
        done = await answered(request, held, body, journey)
    except RankingError as error:
        return _refused(request, held, error)
    except Exception as error:
        return _refused(request, held, shortage_in(error) or RankingError("unexpected"), error)
    held.metrics.count_batch_entry(200)
    return _Entry(200, b'"answer":%s' % completed(request, done), done.account)


def _refused(request: Request, held: Resources, error: RankingError, cause: Exception | None = None) -> _Entry:
    if error.rejected:
        held.metrics.count_rejected(error.rejected)
    if error.status == 500:
        log.error("request %s: a ranking of several failed", request.state.request_id, exc_info=cause or error)
    problem = problems.from_error(error, request.state.request_id)
    held.metrics.count_batch_entry(error.status)
    retry_after = problem.headers.get("retry-after")
    more = b"" if retry_after is None else b',"retry_after":%d' % int(retry_after)
    return _Entry(error.status, b'"problem":%s%s' % (bytes(problem.body), more), Account(refused={error.slug: 1}))


def _account(entries: Sequence[_Entry]) -> Account:
    """Return what the log says of all rankings together."""
    generation = next((entry.account.generation for entry in entries if entry.account.generation), None)
    degraded = dict.fromkeys(reason for entry in entries for reason in entry.account.degraded)
    refused = Counter(slug for entry in entries for slug in entry.account.refused)
    return Account(generation, list(degraded), refused=refused)
