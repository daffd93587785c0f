"""`/rerank` in the dialects of other systems; docs/how-to/other-clients.md says which client needs what."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import orjson
from fastapi import APIRouter
from numpy.typing import NDArray
from pydantic import RootModel
from starlette.requests import Request
from starlette.responses import Response

from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.service.errors import DialectUnknown, InferenceFailed, ModelNotServed, NoTexts
from polyrank.service.http.compat import cohere, headers, served_models, tei, voyage
from polyrank.service.http.compat.error_forms import RerankErrorOut
from polyrank.service.http.compat.rerank_request import (
    DIALECTS,
    HEADER,
    CompatRerankIn,
    Dialect,
    dialect_of,
    dialect_of_header,
)
from polyrank.service.http.compat.reranked import AS_IT_IS, Document, Line, Reranked, document_of, placed
from polyrank.service.http.compat.served_models import ServedModel
from polyrank.service.http.plumbing import bodies
from polyrank.service.http.plumbing.described import DEADLINE_IN, PROBLEM, RANKS, fails, header, takes
from polyrank.service.http.plumbing.guards import RANK
from polyrank.service.observe.account import Account
from polyrank.service.observe.labels import Degraded
from polyrank.service.ranking.rescoring import score_pairs
from polyrank.service.ranking.stages import Journey
from polyrank.service.ranking.values import Given, RankRequest
from polyrank.service.resources import Resources, resources

router = APIRouter(tags=["compatible"], dependencies=[RANK])


class AnyRerankOut(RootModel[cohere.CompatRerankOut | tei.TeiRerankOut | voyage.VoyageRerankOut]):
    """The dialect's answer."""


_DIALECT_IN = header(HEADER, "the form of the answer; absent: the body decides", {"enum": [*DIALECTS]})
_ERRORS = fails(*RANKS, NoTexts, DialectUnknown, ModelNotServed, body=True, form=RerankErrorOut)
_ERRORS[422]["content"] |= PROBLEM  # where not even the dialect is known
_DESCRIBED: dict[str, Any] = {
    "response_model": AnyRerankOut,
    "openapi_extra": takes(CompatRerankIn, [_DIALECT_IN, *DEADLINE_IN]),
    "responses": {200: headers.DESCRIBED, **_ERRORS},
}


@router.post("/rerank", **_DESCRIBED)
@router.post("/v1/rerank", **_DESCRIBED)
@router.post("/v2/rerank", **_DESCRIBED)
async def rerank(request: Request) -> Response:
    """Rank documents against a query, as the rerankers of TEI, Cohere, Jina, vLLM, infinity and Voyage do."""
    held = resources(request)
    named = dialect_of_header(request.headers.get(HEADER))
    journey = bodies.journey(request, held.settings)
    body = await bodies.read(request, CompatRerankIn)
    request.state.dialect = dialect = dialect_of(body, named, held.settings.rerank_dialect)
    bodies.check_lengths("query", [body.query], held.settings)
    sent, longest = body.sent or [], held.settings.max_text_chars
    bodies.check_count(sent, held.settings)
    fields = tuple(dict.fromkeys(body.rank_fields or ()))
    many = sum(1 if isinstance(one, str) else len(one) for one in sent)
    documents = await bodies.beside(
        request, lambda: [document_of(one, at, fields, longest) for at, one in enumerate(sent)], many
    )
    texts = [document.text for document in documents]
    bodies.check_lengths("documents", texts, held.settings)
    if not texts and dialect == "tei":
        raise NoTexts("texts: is empty; send at least one")
    served = served_models.reranker(held, body.model, body.strict_model)
    body.check_documents(texts, served.max_input_tokens)
    scored = await bodies.while_connected(request, _score(held, served, body.query, texts, journey))
    body.check_truncation(scored.cut, served.max_input_tokens)
    held.metrics.observe_rank(scored.seconds, len(texts), scored.degraded, None)
    answer = partial(_answer, request, dialect, body, documents, served, scored)
    return await bodies.beside(request, answer, len(documents))


@dataclass(frozen=True, slots=True)
class _Scored:
    """Scores (N,) of texts, with how many tokens were read, what was cut, seconds by stage, and what they say."""

    scores: NDArray[np.float32]
    tokens: int
    cut: Truncation
    seconds: dict[str, float]
    degraded: Sequence[Degraded] = ()
    line: Line = AS_IT_IS


async def _score(held: Resources, served: ServedModel, query: str, texts: Sequence[str], journey: Journey) -> _Scored:
    """Score the texts by the cross-encoder, or by the generation's own model; words count as in the generation."""
    if not texts:
        return _Scored(np.empty(0, np.float32), 0, Truncation(), {})
    conversation = Conversation.of(query)
    if served.serving is None:
        words = None if held.live.current is None else held.live.current.generation.words
        read = await score_pairs(held.runtime, words, conversation, texts, journey)
        line = _line(served, counts_words=words is not None)
        scored = _Scored(read.scores, read.tokens, read.truncation, read.seconds, line=line)
    else:
        todo = RankRequest(
            conversation=conversation,
            candidates=tuple(Given(None, text) for text in texts),
            top_k=len(texts),
        )
        ranked = await held.engine.rank(served.serving, todo, journey)
        scores = np.empty(len(texts), np.float32)
        for place in ranked.places:
            assert place.index is not None, "every candidate was sent"
            scores[place.index] = place.score
        scored = _Scored(scores, ranked.tokens, ranked.truncation, ranked.seconds, ranked.degraded, _line(served))
    if not np.isfinite(scored.scores).all():
        raise InferenceFailed("a score is not finite")
    return scored


def _line(served: ServedModel, counts_words: bool = True) -> Line:
    """Return what the scores of a model say; words that it has may not count, for lack of a pool."""
    return AS_IT_IS if served.calibration is None else Line(*served.calibration.line(counts_words))


def _answer(
    request: Request,
    dialect: Dialect,
    body: CompatRerankIn,
    documents: list[Document],
    served: ServedModel,
    scored: _Scored,
) -> Response:
    reranked = Reranked(
        model=served.name,
        places=placed(documents, scored.scores, body.limit, body.wants_raw, scored.line),
        sent=len(documents),
        tokens=scored.tokens,
        cut=scored.cut,
        with_documents=bool(body.return_documents or body.return_text) and not _is_either(request, dialect),
        request_id=request.state.request_id,
    )
    generation = None if served.serving is None else served.serving.generation.id
    request.state.account = Account(generation, scored.degraded, scored.seconds)
    facts = headers.of_answer(request, scored.seconds, scored.cut.candidates, served.fingerprint, generation)
    content = orjson.dumps(_rendered(dialect, reranked, request.url.path))
    return Response(content, headers=facts, media_type="application/json")


def _is_either(request: Request, dialect: Dialect) -> bool:
    """Whether LiteLLM may call as infinity's or as vLLM's client, by one body.

    As either it fails on the other's form of `document`, and takes an answer without.
    """
    agent = request.headers.get("user-agent", "")
    return dialect == "cohere" and request.url.path == "/rerank" and agent.startswith("litellm/")


def _rendered(dialect: Dialect, reranked: Reranked, path: str) -> Any:
    match dialect:
        case "tei":
            return tei.answer(reranked)
        case "voyage":
            return voyage.answer(reranked)
        case "infinity":
            return cohere.answer(reranked, "1", plain_documents=True)
        case "cohere" | "jina":
            return cohere.answer(reranked, "1" if path == "/v1/rerank" else "2")
