"""`POST /rank` and `POST /rank/batch`: from the request's body to the answer."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, Final, NamedTuple

import orjson
from fastapi import APIRouter
from pydantic import JsonValue, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from polyrank.index_builder.errors import FingerprintMismatch, GenerationError, MatrixMissing
from polyrank.model.errors import RankingError, shortage_in
from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.service.api.answers import BatchOut, RankOut, ResultOut
from polyrank.service.api.findings import MAX_ERRORS, refusal
from polyrank.service.api.requests import BatchIn, CandidateIn, ExpectIn, RankIn, RerankIn, SaidIn, Which
from polyrank.service.errors import (
    BodyInvalid,
    GenerationMismatch,
    HeaderInvalid,
    NotCalibrated,
    NotConfigured,
    NoTrial,
    RevisionNotReached,
    ShardsMissing,
    TooManyCandidates,
    TooManyForExact,
    UnknownCandidates,
)
from polyrank.service.http.native.sides import NO_SIDE, by_share
from polyrank.service.http.plumbing import bodies, problems
from polyrank.service.http.plumbing.access import RANK, ByHand
from polyrank.service.http.plumbing.openapi import DEADLINE_IN, READS, fails, header, takes
from polyrank.service.observe.labels import STAGES, Account
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.values import Given, Grouping, Ranked, RankRequest, results_of
from polyrank.service.resources import Resources
from polyrank.service.scheduling.stages import Journey
from polyrank.service.settings import Settings

X_CACHE: Final = "X-Cache"
LETTERS_A_TOKEN: Final = 4
_NO_SECONDS: Final[dict[str, float]] = dict.fromkeys(STAGES, 0.0)
_X_CACHE_OUT: Final = {
    "description": "where answers are kept: whether this one was",
    "schema": {"type": "string", "enum": ["hit", "miss"]},
}
_CACHE_CONTROL_IN: Final = header(
    "Cache-Control", "`no-cache` or `no-store`: rank anew and keep nothing, where answers are kept", {"type": "string"}
)
_ERRORS: Final = fails(
    *READS,
    UnknownCandidates,
    TooManyForExact,
    NotConfigured,
    NotCalibrated,
    GenerationMismatch,
    FingerprintMismatch,
    GenerationError,
    MatrixMissing,
    RevisionNotReached,
    NoTrial,
    ShardsMissing,
    body=True,
)

log = logging.getLogger("polyrank.request")
router = APIRouter(tags=["rank"], dependencies=[RANK], route_class=ByHand)


@router.post(
    "/rank",
    response_model=RankOut,
    response_model_exclude_none=True,
    openapi_extra=takes(RankIn, [*DEADLINE_IN, _CACHE_CONTROL_IN]),
    responses={200: {"headers": {X_CACHE: _X_CACHE_OUT}}, **_ERRORS},
)
async def rank(request: Request) -> Response:
    """Rank candidates, sent along or retrieved, against a conversation."""
    resources: Resources = request.state.resources
    body = await bodies.read(request, RankIn)
    journey = bodies.journey(request, resources.settings, body.timeout_ms)
    done = await bodies.while_connected(request, answered(request, resources, body, journey))
    request.state.account = done.account
    headers = {X_CACHE: done.cache} if done.cache else None
    return Response(completed(request, done), headers=headers, media_type="application/json")


class Answered(NamedTuple):
    """An answer of a ranking."""

    answer: bytes  # a JSON object, without what belongs to one request
    cache: str | None  # whether a cache of answers knew it, `hit` or `miss`; None: it was not asked
    account: Account
    ranking: str | None = None  # its id; None: it is not recorded


async def answered(request: Request, resources: Resources, body: RankIn, journey: Journey) -> Answered:
    """Rank what a checked body asks for, or take the answer from the cache; record it where the server does."""
    todo = await bodies.beside(request, partial(to_request, body, resources.settings), len(body.candidates or ()))
    feedback, caller, sided = resources.feedback if body.log else None, request.state.principal.name, NO_SIDE
    asked = None if feedback is None else feedback.to_record(body.conversation, caller)
    answer = partial(_answer, request, resources, body, todo)
    if body.min_revision is not None:
        done = await answer(await resources.updating.reached(body.min_revision, journey), journey)
    else:
        serving = served(resources, body.generation)
        is_free = body.expect is None and "generation" not in body.model_fields_set  # to be answered by either side
        sharing = resources.trials.sharing if is_free and asked is not None else None
        if feedback is None or asked is None or sharing is None:
            done = await answer(serving, journey)
        else:
            place = feedback.place_of(asked, caller, sharing[0].trial.generation)
            done, sided = await by_share(*sharing, serving, place, journey, answer, resources.metrics)
    if feedback is None or asked is None or not feedback.record(asked, done.answer, body.said(), *sided):
        return done
    return done._replace(ranking=asked.ranking)


async def _answer(
    request: Request, resources: Resources, body: RankIn, todo: RankRequest, serving: Serving, journey: Journey
) -> Answered:
    if body.expect is not None:
        _check_expected(body.expect, serving)
    key = None if resources.results is None else _cache_key(request, resources, serving, body)
    if resources.results is not None and key is not None:
        kept = await resources.results.get(key, journey.budget, _is_answer)
        if kept is not None:
            return Answered(kept, "hit", Account(serving.generation.id))
    ranked = await resources.engine_for(serving).rank(serving, todo, journey)
    ranked = replace(ranked, truncation=with_unread(ranked.truncation, body, todo.conversation))
    letters = sum(len(place.text) for place in ranked.places)
    answer = await bodies.beside(
        request, partial(_rendered, resources, serving, ranked), 2 * len(ranked.places) + letters // 256
    )
    if resources.results is not None and key is not None and not ranked.degraded:
        resources.results.put(key, answer)
    account = Account(serving.generation.id, ranked.degraded, ranked.seconds)
    return Answered(answer, None if key is None else "miss", account)


def served(resources: Resources, which: Which) -> Serving:
    """Return the generation that a request asks for; raises NotReady or NoTrial where there is none."""
    return resources.trials.require() if which == "trial" else resources.live.require()


def completed(request: Request, done: Answered) -> bytes:
    """Add to an answer what belongs to this request: timings, the ranking's id and its own."""
    spent = {**(done.account.seconds or _NO_SECONDS), "total": time.monotonic() - request.state.arrived}
    timings = {stage: round(value * 1000, 3) for stage, value in spent.items()}
    return _joined(done.answer, timings, request.state.request_id, done.ranking)


def _joined(answer: bytes, timings_ms: Mapping[str, float], request_id: str, ranking: str | None = None) -> bytes:
    recorded = {} if ranking is None else {"ranking_id": ranking}
    return answer[:-1] + b"," + orjson.dumps({"timings_ms": timings_ms, **recorded, "request_id": request_id})[1:]


def _is_answer(found: bytes) -> bool:
    """Whether bytes from elsewhere are an answer that can be completed and sent; call it beside the event loop."""
    try:
        told = orjson.loads(_joined(found, {**_NO_SECONDS, "total": 0.0}, ""))
        RankOut.model_validate({**told, "results": told["results"][:1]}, strict=True)
        for result in told["results"][1:]:  # 1000 at once would take 7 ms, in which the event loop could not go on
            ResultOut.model_validate(result, strict=True)
    except (LookupError, TypeError, ValueError):
        return False
    return True


def to_request(body: RankIn, settings: Settings) -> RankRequest:
    """Translate a checked body into the ranking to do.

    Raises:
        TooManyCandidates: more than the server allows.
        InvalidInput: a text is longer than the server allows.
    """
    candidates = None if body.candidates is None else checked_candidates(body.candidates, settings)
    rerank = RerankIn() if body.rerank is True else body.rerank
    return RankRequest(
        conversation=checked_conversation(body, settings),
        candidates=candidates,
        top_k=body.top_k,
        retrieve_k=body.retrieve_k,
        exact=body.exact,
        top_n=rerank.top_n if rerank else None,
        filter=body.filter,
        exclude_ids=tuple(body.exclude_ids),
        score_threshold=body.score_threshold,
        grouping=None if body.group_by is None else Grouping(body.group_by, body.limit_per_group),
        collapse=body.collapse,
        answer_if=body.answer_if,
    )


def checked_conversation(body: SaidIn, settings: Settings) -> Conversation:
    """Return what was said; turns that are longer than the server allows lose their beginning.

    Raises InvalidInput where a fact of the persona is longer.
    """
    conversation, most = body.said(), settings.max_text_chars
    bodies.check_lengths("persona", conversation.persona, settings)
    cut = (replace(turn, text=turn.text[-most:]) if len(turn.text) > most else turn for turn in conversation.turns)
    return replace(conversation, turns=tuple(cut))


def with_unread(cut: Truncation, body: SaidIn, read: Conversation) -> Truncation:
    """Return what was cut, together with what `checked_conversation` did not read; four letters count as a token."""
    pairs = zip(body.said().turns, read.turns, strict=True)
    unread = sum(len(sent.text) - len(kept.text) for sent, kept in pairs)
    return replace(cut, tokens=cut.tokens + -(-unread // LETTERS_A_TOKEN)) if unread else cut


def checked_candidates(sent: Sequence[str | CandidateIn], settings: Settings) -> tuple[Given, ...]:
    """Return the candidates that were sent; errors as `to_request`."""
    bodies.check_count(sent, settings)
    candidates = tuple(Given(None, one) if isinstance(one, str) else Given(one.id, one.text) for one in sent)
    bodies.check_lengths("candidates", [given.text for given in candidates if given.text is not None], settings)
    return candidates


def _check_expected(expect: ExpectIn, serving: Serving) -> None:
    if expect.fingerprint is not None and expect.fingerprint != serving.ranker.fingerprint:
        raise FingerprintMismatch(expect.fingerprint, serving.ranker.fingerprint)
    if expect.generation is not None and expect.generation != serving.generation.id:
        raise GenerationMismatch(expect.generation, serving.generation.id)


# Fields that are checked before an answer is looked up, or that change no part of it.
_NOT_IN_THE_ANSWER = {"timeout_ms", "expect", "min_revision", "generation", "conversation", "log"}


def _cache_key(request: Request, resources: Resources, serving: Serving, body: RankIn) -> str | None:
    """Return the key under which the answer is kept, 64 hexadecimal digits; None: it is not kept.

    Callers that may do the same, by their scopes, share answers.
    """
    told = ",".join(request.headers.getlist("cache-control")).lower().split(",")
    if not {"no-cache", "no-store"}.isdisjoint(map(str.strip, told)):
        return None
    asked = body.model_dump(mode="json", exclude=_NOT_IN_THE_ANSWER)
    # Each back-end rounds in its own way, and so does each precision, and each calibration for int8.
    used = [model for model in (serving.ranker, resources.runtime.scorer) if model is not None]
    models = [(model.fingerprint, model.backend, model.rounding) for model in used]
    # The revision counts the updates, the checksum says which they are: a log from a backup reuses the numbers.
    of = serving.generation.id, serving.snapshot.revision, serving.checksum, models
    scopes = sorted(request.state.principal.scopes)
    return sha256(orjson.dumps([scopes, of, asked], option=orjson.OPT_SORT_KEYS)).hexdigest()


def _rendered(resources: Resources, serving: Serving, ranked: Ranked) -> bytes:
    """Render the answer, except for what belongs to this request; a cache may keep it."""
    resources.metrics.observe_rank(ranked.seconds, ranked.looked_at, ranked.degraded, ranked.plan)
    if ranked.plan in ("index", "selector"):
        resources.metrics.certified.labels(str(ranked.exact).lower()).inc()
    if ranked.decision is not None:
        resources.metrics.decisions.labels(str(ranked.decision.answer).lower()).inc()
    began = time.perf_counter()
    answer = orjson.dumps(answer_of(serving, ranked))
    resources.metrics.stages["serialize"].observe(time.perf_counter() - began)
    return answer


def answer_of(serving: Serving, ranked: Ranked) -> dict[str, Any]:
    """Return the fields of a `RankOut`, except those that belong to the request (timings, id)."""
    model, cut, decision = serving.generation.manifest.model, ranked.truncation, {}
    if ranked.decision is not None:
        decision = {"decision": ranked.decision._asdict()}
        if ranked.decision.reason is None:
            del decision["decision"]["reason"]
    return {
        "results": results_of(ranked.places),
        **decision,
        "missing_ids": ranked.missing_ids,
        "generation": serving.generation.id,
        "revision": serving.snapshot.revision,
        "model": {"name": model.name, "architecture": model.architecture, "fingerprint": model.fingerprint},
        "exact": ranked.exact,
        "degraded": ranked.degraded,
        **({} if ranked.searched is None else {"searched": ranked.searched}),
        "truncated": {"turns": cut.turns, "tokens": cut.tokens, "candidates": cut.candidates},
        **({"notes": ranked.notes} if ranked.notes else {}),
    }


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
    # All are in progress at the same time, so their contexts share forward passes. Admission counts each.
    resources: Resources = request.state.resources
    batch = await bodies.read(request, BatchIn)
    journey = bodies.journey(
        request, resources.settings, batch.timeout_ms
    )  # a wrong header is not of one ranking alone
    async with journey.in_time():
        # Never on the event loop: a few values can be a hundred mistakes, and each takes its time.
        values = max(request.state.bound, bodies.INLINE_VALUES + 1)
        checked = await bodies.beside(request, partial(_all_checked, batch.requests), values)
    sent = [body for body in checked if isinstance(body, RankIn)]
    bodies.check_count([candidate for body in sent for candidate in body.candidates or ()], resources.settings)
    ranking = [partial(_entry, request, resources, body, batch.timeout_ms, at) for at, body in enumerate(checked)]
    entries = await bodies.while_connected(request, _together(ranking))
    accounts = [entry.account for entry in entries]
    generation = next((account.generation for account in accounts if account.generation), None)
    degraded = dict.fromkeys(reason for account in accounts for reason in account.degraded)
    refused = Counter(slug for account in accounts for slug in account.refused)
    request.state.account = Account(generation, list(degraded), refused=refused)
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
    request: Request, resources: Resources, body: RankIn | RankingError, timeout_ms: int | None, at: int
) -> _Entry:
    """Do one ranking; whatever goes wrong with it is its problem alone. All but the first count anew for the rate."""
    try:
        if at:
            resources.access.spend(request.state.principal)
        if isinstance(body, RankingError):
            return _refused(request, resources, body)
        allowed = [each for each in (timeout_ms, body.timeout_ms) if each is not None]
        journey = bodies.journey(request, resources.settings, min(allowed, default=None))
        done = await answered(request, resources, body, journey)
    except RankingError as error:
        return _refused(request, resources, error)
    except Exception as error:
        return _refused(request, resources, shortage_in(error) or RankingError("unexpected"), error)
    resources.metrics.series(resources.metrics.batch_entries, str(200)).inc()
    return _Entry(200, b'"answer":%s' % completed(request, done), done.account)


def _refused(request: Request, resources: Resources, error: RankingError, cause: Exception | None = None) -> _Entry:
    if error.rejected:
        resources.metrics.count_rejected(error.rejected)
    if error.status == 500:
        log.error("request %s: a ranking of several failed", request.state.request_id, exc_info=cause or error)
    problem = problems.from_error(error, request.state.request_id)
    resources.metrics.series(resources.metrics.batch_entries, str(error.status)).inc()
    retry_after = problem.headers.get("retry-after")
    more = b"" if retry_after is None else b',"retry_after":%d' % int(retry_after)
    return _Entry(error.status, b'"problem":%s%s' % (bytes(problem.body), more), Account(refused={error.slug: 1}))
