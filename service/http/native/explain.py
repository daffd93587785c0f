"""`POST /explain`: what tokens, codes and words add to the scores of candidates."""

import math
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from polyrank.model.explanation import CodeContributions, relative
from polyrank.model.lexical.score import Term
from polyrank.model.text.assembly import Conversation
from polyrank.service.api.answers import ExplainOut
from polyrank.service.api.requests import ExplainIn
from polyrank.service.errors import GenerationMismatch, NotConfigured, NoTrial, ShardsMissing, UnknownCandidates
from polyrank.service.http.native.rank import checked_candidates, checked_conversation, with_unread
from polyrank.service.http.plumbing import bodies
from polyrank.service.http.plumbing.access import RANK
from polyrank.service.http.plumbing.openapi import DEADLINE_IN, READS, fails, takes
from polyrank.service.observe.labels import Account
from polyrank.service.ranking import explaining
from polyrank.service.ranking.explaining import Explained, ExplainedCandidate, ExplainedPair, Scores
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.values import ExplainRequest, RankRequest
from polyrank.service.resources import Resources
from polyrank.service.settings import Settings

router = APIRouter(tags=["rank"], dependencies=[RANK])


@router.post(
    "/explain",
    response_model=ExplainOut,
    openapi_extra=takes(ExplainIn, DEADLINE_IN),
    responses=fails(*READS, UnknownCandidates, NotConfigured, NoTrial, GenerationMismatch, ShardsMissing, body=True),
)
async def explain(request: Request) -> Response:
    """Tell what each token of a conversation, each code, each token of a reply and each word adds to scores."""
    resources: Resources = request.state.resources
    body = await bodies.read(request, ExplainIn)
    journey = bodies.journey(request, resources.settings, body.timeout_ms)
    todo = to_request(body, resources.settings)
    serving = _served(resources, body.generation)
    explained = await bodies.while_connected(request, explaining.explain(resources.runtime, serving, todo, journey))
    request.state.account = Account(serving.generation.id, [], explained.seconds)
    numbers = len(explained.tokens) * len(explained.candidates) * (10 + body.codes)
    answer = await bodies.beside(
        request, partial(_rendered, request, serving, explained, body, todo.ranking.conversation), numbers
    )
    return Response(answer, media_type="application/json")


def _served(resources: Resources, which: str) -> Serving:
    """Return the generation that a request names; raises NotReady, NoTrial or GenerationMismatch."""
    if which == "trial":
        return resources.trials.require()
    live, trial = resources.live.require(), resources.trials.current
    if which in ("live", live.generation.id):
        return live
    if trial is None or trial.generation.id != which:
        raise GenerationMismatch(which, live.generation.id)
    return trial


def _rendered(
    request: Request, serving: Serving, explained: Explained, body: ExplainIn, conversation: Conversation
) -> bytes:
    answer = answer_of(serving, explained, body, conversation)
    stages = {**explained.seconds, "total": time.monotonic() - request.state.arrived}
    answer["timings_ms"] = {stage: round(seconds * 1000, 3) for stage, seconds in stages.items()}
    answer["request_id"] = request.state.request_id
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def to_request(body: ExplainIn, settings: Settings) -> ExplainRequest:
    """Translate a checked body into the scores to explain; errors as of `POST /rank`."""
    ranking = RankRequest(
        conversation=checked_conversation(body, settings),
        candidates=checked_candidates(body.candidates, settings),
        top_k=len(body.candidates),
    )
    return ExplainRequest(ranking=ranking, occlusion=body.occlusion, cross=body.cross)


def answer_of(serving: Serving, explained: Explained, body: ExplainIn, conversation: Conversation) -> dict[str, Any]:
    """Return the fields of an `ExplainOut`, except those that belong to the request (timings, id).

    conversation: what was explained of the one that was sent.
    """
    model, cut = serving.generation.manifest.model, with_unread(explained.truncation, body, conversation)
    placed = _placing(body, conversation)
    against = _relatives(explained, body.rival())
    return {
        "context": {
            "tokens": [
                {
                    "text": token.text,
                    "turn": token.turn,
                    "persona": token.persona,
                    **placed(token.turn, token.start, token.end),
                    "word": token.word,
                }
                for token in explained.tokens
            ],
            "truncated": {"turns": cut.turns, "tokens": cut.tokens, "candidates": cut.candidates},
        },
        "candidates": [
            _candidate(explained, each, beside, body, placed)
            for each, beside in zip(explained.candidates, against, strict=True)
        ],
        "unexplained": [{"part": part, "why": why} for part, why in explained.unexplained.items()],
        "missing_ids": explained.missing_ids,
        "generation": serving.generation.id,
        "revision": serving.snapshot.revision,
        "model": {"name": model.name, "architecture": model.architecture, "fingerprint": model.fingerprint},
    }


Placed = Callable[[int | None, int | None, int | None], dict[str, int | None]]


def _placing(body: ExplainIn, conversation: Conversation) -> Placed:
    """Return what tells where a span of a turn that was read stands in the text that was sent."""
    turns = body.said().turns

    @cache
    def places(turn: int) -> list[int]:
        return body.places(turn)[len(turns[turn].text) - len(conversation.turns[turn].text) :]

    def placed(turn: int | None, start: int | None, end: int | None) -> dict[str, int | None]:
        if turn is None or start is None or end is None:
            return {"start": start, "end": end}
        return {"start": places(turn)[start], "end": places(turn)[end]}

    return placed


def _relatives(explained: Explained, rival: int | None) -> Sequence[Scores | None]:
    """Return what speaks for each candidate beside the others, (T,) each.

    None where contributions are not told, or where the rival is missing: nothing can be compared with it.
    """
    tokens = [each.explanation.tokens for each in explained.candidates]
    contributions = [each for each in tokens if each is not None]
    positions = [each.place.index for each in explained.candidates]
    if not contributions or len(contributions) < len(tokens) or (rival is not None and rival not in positions):
        return [None] * len(tokens)
    against = None if rival is None else positions.index(rival)
    return [*(explained.late_weight * relative(np.stack(contributions), against))]


def _candidate(
    explained: Explained, each: ExplainedCandidate, beside: Scores | None, body: ExplainIn, placed: Placed
) -> dict[str, Any]:
    weight, explanation = explained.late_weight, each.explanation
    words = sum(term.value for term in each.terms or ())
    tokens = None if explanation.tokens is None else weight * explanation.tokens
    pairs = None if explanation.pairs is None else weight * explanation.pairs
    by_tokens = 0.0 if tokens is None else float(tokens.sum())
    return {
        "index": each.place.index,
        "id": each.place.id,
        "text": each.place.text,
        "score": each.place.score,
        "explained": by_tokens + words,
        "rest": None if pairs is None else by_tokens - float(pairs.sum()),
        "effective_codes": None if explanation.codes is None else explanation.codes.effective,
        "tokens": None if tokens is None else tokens,
        "relative": None if beside is None else beside,
        **_codes(explanation.codes, weight, words, body.codes),
        "reply_tokens": None if pairs is None else pairs.sum(axis=0),
        "reply": {
            "tokens": [
                {"text": token.text, "start": token.start, "end": token.end, "word": token.word} for token in each.reply
            ]
        },
        "pairs": pairs.astype(np.float32) if body.pairs and pairs is not None else None,
        "occlusion": None if each.occlusion is None else [_number(n) for n in (weight * each.occlusion).tolist()],
        "words": _words(each.terms),
        "cross": None if each.pair is None else _pair(each.pair, placed),
    }


def _codes(codes: CodeContributions | None, weight: float, words: float, count: int) -> dict[str, Any]:
    if codes is None:
        return {"codes": None, "others": None}
    order = (-codes.weights).argsort(kind="stable")
    rest, without = order[count:], codes.without_each()
    contributions = weight * codes.contributions
    rows = [
        {
            "code": at,
            "weight": float(codes.weights[at]),
            "score": float(codes.scores[at]),
            "contribution": float(contributions[at].sum()),
            "without": _number(weight * float(without[at]) + words),
            "attention": codes.attention[at],
            "tokens": contributions[at],
        }
        for at in order[:count].tolist()
    ]
    others = {
        "count": len(rest),
        "weight": float(codes.weights[rest].sum()),
        "contribution": float(contributions[rest].sum()),
    }
    return {"codes": rows, "others": others}


def _pair(pair: ExplainedPair, placed: Placed) -> dict[str, Any]:
    units = [
        {"turn": unit.turn, "persona": unit.persona, **placed(unit.turn, unit.start, unit.end), "drop": drop}
        for unit, drop in zip(pair.units, pair.drops.tolist(), strict=True)
    ]
    return {"score": pair.score, "base": pair.base, "units": units, "words": _words(pair.terms)}


def _words(terms: Sequence[Term] | None) -> dict[str, Any] | None:
    if terms is None:
        return None
    return {"value": sum(term.value for term in terms), "terms": [term._asdict() for term in terms]}


def _number(number: float) -> float | None:
    return number if math.isfinite(number) else None
