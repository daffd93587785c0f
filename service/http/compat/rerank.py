"""Reranking in the dialects of other systems; docs/how-to/other-clients.md says which client needs what."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from fastapi import APIRouter
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.service.errors import DialectUnknown, InferenceFailed, ModelNotServed, NoTexts
from polyrank.service.http.compat.dialects import choice, cohere, headers, infinity, tei, voyage
from polyrank.service.http.compat.dialects.reranked import Document, Reranked, document_of, placed
from polyrank.service.http.compat.responses import AnyRerankOut, RerankErrorOut
from polyrank.service.http.compat.schemas import CompatRerankIn
from polyrank.service.http.plumbing import bodies, served_models
from polyrank.service.http.plumbing.guards import RANK
from polyrank.service.http.plumbing.openapi import ASKS, DEADLINE_IN, DIALECT_IN, PROBLEM, fails, takes
from polyrank.service.http.plumbing.served_models import Served
from polyrank.service.observe.account import Account
from polyrank.service.observe.labels import Degraded
from polyrank.service.ranking.values import Given, RankRequest
from polyrank.service.resources import Resources, resources

router = APIRouter(tags=["compatible"], dependencies=[RANK])


@dataclass(frozen=True, slots=True)
class _Scored:
    """Scores (N,) of texts; tokens that were read, what was cut, seconds by stage, what they do without."""

    scores: NDArray[np.float32]
    tokens: int
    cut: Truncation
    seconds: dict[str, float]
    degraded: Sequence[Degraded] = ()


_ERRORS = fails(*ASKS, NoTexts, DialectUnknown, ModelNotServed, body=True, form=RerankErrorOut)
_ERRORS[422]["content"] |= PROBLEM  # where not even the dialect can be told
_DESCRIBED: dict[str, Any] = {
    "response_model": AnyRerankOut,
    "openapi_extra": takes(CompatRerankIn, [DIALECT_IN, *DEADLINE_IN]),
    "responses": {200: headers.DESCRIBED, **_ERRORS},
}


@router.post("/rerank", **_DESCRIBED)
@router.post("/v1/rerank", **_DESCRIBED)
@router.post("/v2/rerank", **_DESCRIBED)
async def rerank(request: Request) -> Response:
    """Rank documents against a query, as the rerankers of TEI, Cohere, Jina, vLLM, infinity and Voyage do."""
    held = resources(request)
    named = choice.of_header(request.headers.get(choice.HEADER))
    deadline = bodies.deadline(request, held.settings)
    body = await bodies.read_compat(request, CompatRerankIn, held.settings)
    request.state.dialect = dialect = choice.of_body(body, named, held.settings.rerank_dialect)
    bodies.check_texts("query", [body.query], held.settings)
    sent, longest = body.sent or [], held.settings.max_text_chars
    bodies.check_count(sent, held.settings)
    fields = tuple(dict.fromkeys(body.rank_fields or ()))
    documents = [document_of(each, at, fields, longest) for at, each in enumerate(sent)]
    texts = [each.text for each in documents]
    bodies.check_texts("documents", texts, held.settings)
    if not texts and dialect == "tei":
        raise NoTexts("texts: is empty; send at least one")
    served = served_models.reranker(held, body.model, body.strict_model)
    scored = await bodies.while_connected(request, _score(held, served, body.query, texts, deadline))
    held.metrics.observe_rank(scored.seconds, len(texts), scored.degraded, None)
    return _answer(request, dialect, body, documents, served, scored)


async def _score(held: Resources, served: Served, query: str, texts: Sequence[str], deadline: float) -> _Scored:
    """Scores by the cross-encoder, or by the generation's own model."""
    if not texts:
        return _Scored(np.empty(0, np.float32), 0, Truncation(), {})
    conversation = Conversation.of(query)
    if served.serving is None:
        read = await held.engine.score_pairs(conversation, texts, deadline)
        scored = _Scored(read.scores, read.tokens, read.truncation, read.seconds)
    else:
        todo = RankRequest(
            conversation=conversation,
            deadline=deadline,
            candidates=tuple(Given(None, text) for text in texts),
            top_k=len(texts),
        )
        ranked = await held.engine.rank(served.serving, todo)
        scores = np.empty(len(texts), np.float32)
        for place in ranked.places:
            assert place.index is not None, "every candidate was sent"
            scores[place.index] = place.late
        scored = _Scored(scores, ranked.tokens, ranked.truncation, ranked.seconds, ranked.degraded)
    if not np.isfinite(scored.scores).all():
        raise InferenceFailed("a score is not finite")
    return scored


def _answer(
    request: Request,
    dialect: choice.Dialect,
    body: CompatRerankIn,
    documents: list[Document],
    served: Served,
    scored: _Scored,
) -> Response:
    reranked = Reranked(
        model=served.name,
        places=placed(documents, scored.scores, body.limit, bool(body.raw_scores)),
        sent=len(documents),
        tokens=scored.tokens,
        cut=scored.cut,
        with_documents=bool(body.return_documents or body.return_text),
        request_id=request.state.request_id,
    )
    generation = None if served.serving is None else served.serving.generation.id
    request.state.account = Account(generation, scored.degraded, scored.seconds)
    told = headers.of_answer(request, scored.seconds, scored.cut.candidates, served.fingerprint, generation)
    return Response(orjson.dumps(_rendered(dialect, reranked, request)), headers=told, media_type="application/json")


def _rendered(dialect: choice.Dialect, reranked: Reranked, request: Request) -> Any:
    match dialect:
        case "tei":
            return tei.answer(reranked)
        case "voyage":
            return voyage.answer(reranked)
        case "infinity":
            return infinity.answer(reranked)
        case "cohere" | "jina":
            return cohere.answer(reranked, "1" if request.url.path == "/v1/rerank" else "2")
