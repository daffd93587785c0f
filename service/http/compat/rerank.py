"""`/rerank` in the dialects of other systems; docs/how-to/other-clients.md says which client needs what."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import orjson
from fastapi import APIRouter
from numpy.typing import NDArray
from pydantic import BaseModel, RootModel
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.service.errors import DialectUnknown, HeaderInvalid, InferenceFailed, ModelNotServed, NoTexts
from polyrank.service.http.compat import cohere, openai, served_models, tei
from polyrank.service.http.compat.reranked import (
    DIALECTS,
    HEADER,
    CompatRerankIn,
    Dialect,
    Document,
    Reranked,
    dialect_of,
    dialect_of_header,
    document_of,
    placed,
)
from polyrank.service.http.compat.served_models import ServedModel
from polyrank.service.http.plumbing import bodies
from polyrank.service.http.plumbing.access import RANK
from polyrank.service.http.plumbing.middleware import path_of
from polyrank.service.http.plumbing.openapi import DEADLINE_IN, PROBLEM, READS, fails, header, takes
from polyrank.service.http.plumbing.problems import TOO_MANY_REQUESTS, ProblemAnswer
from polyrank.service.observe.labels import Account, Degraded
from polyrank.service.ranking.rescoring import score_pairs
from polyrank.service.ranking.selection import AS_IT_IS, Line, line_of
from polyrank.service.ranking.values import RankRequest, SentCandidate
from polyrank.service.resources import Resources
from polyrank.service.scheduling.stages import Journey

Form = Callable[[ProblemAnswer], BaseModel]

RERANK_PATHS: Final = ("/rerank", "/v1/rerank", "/v2/rerank")
OF_PATH: Final[dict[str, Form]] = {
    **dict.fromkeys(RERANK_PATHS, cohere.error),  # until the dialect is known
    **dict.fromkeys(("/v1/embeddings", "/embeddings", "/v1/models", "/models"), openai.error),
    **dict.fromkeys(("/", "/embed", "/similarity", "/tokenize"), tei.error),
    **dict.fromkeys(("/v1/embed", "/v2/embed"), cohere.error),
}
OF_DIALECT: Final[dict[Dialect, Form]] = {
    "tei": tei.error,
    "cohere": cohere.error,
    "jina": cohere.error,
    "infinity": openai.error,
    "voyage": lambda problem: cohere.DetailErrorOut(detail=problem.detail),
}


class RerankErrorOut(RootModel[cohere.AnyErrorOut | tei.TeiErrorOut | cohere.DetailErrorOut | openai.OpenAiErrorOut]):
    """An error in the dialect's form; the first one where the dialect is not known yet."""


def of_route(scope: Scope, problem: ProblemAnswer) -> Response:
    """Put a problem in the form that the route's clients expect; on all other routes it stays as it is.

    A full queue is status 429 there, not 503: on 429 their clients wait and try again. The problem is kept for the log.
    """
    scope.setdefault("state", {})["problem"] = problem
    form = _form(scope)
    if form is None or problem.kind.slug == "dialect-unknown":
        return problem
    if problem.kind.slug == "overloaded":
        problem.status_code = TOO_MANY_REQUESTS
    headers = {name: value for name, value in problem.headers.items() if not name.startswith("content-")}
    body = form(problem).model_dump_json()
    return Response(body, problem.status_code, headers, media_type="application/json")


def _form(scope: Scope) -> Form | None:
    path = path_of(scope)
    if path not in RERANK_PATHS:
        return OF_PATH.get(path)
    dialect: Dialect | None = scope.get("state", {}).get("dialect")
    if dialect is None:  # the body was not read: the header or the setting may name one
        with suppress(HeaderInvalid):
            dialect = dialect_of_header(Headers(scope=scope).get(HEADER))
        resources = getattr(scope["app"].state, "resources", None)
        dialect = dialect or (resources and resources.settings.rerank_dialect)
    return OF_PATH[path] if dialect is None else OF_DIALECT[dialect]


router = APIRouter(tags=["compatible"], dependencies=[RANK])


class AnyRerankOut(RootModel[cohere.CompatRerankOut | tei.TeiRerankOut | cohere.VoyageRerankOut]):
    """The dialect's answer."""


_DIALECT_IN = header(HEADER, "the form of the answer; absent: the body decides", {"enum": [*DIALECTS]})
_ERRORS = fails(*READS, NoTexts, DialectUnknown, ModelNotServed, body=True, form=RerankErrorOut)
_ERRORS[422]["content"] |= PROBLEM  # where not even the dialect is known
_DESCRIBED: dict[str, Any] = {
    "response_model": AnyRerankOut,
    "openapi_extra": takes(CompatRerankIn, [_DIALECT_IN, *DEADLINE_IN]),
    "responses": {200: served_models.HEADERS_OUT, **_ERRORS},
}


@router.post("/rerank", **_DESCRIBED)
@router.post("/v1/rerank", **_DESCRIBED)
@router.post("/v2/rerank", **_DESCRIBED)
async def rerank(request: Request) -> Response:
    """Rank documents against a query, as the rerankers of TEI, Cohere, Jina, vLLM, infinity and Voyage do."""
    resources: Resources = request.state.resources
    from_header = dialect_of_header(request.headers.get(HEADER))
    journey = bodies.journey(request, resources.settings)
    body = await bodies.read(request, CompatRerankIn)
    request.state.dialect = dialect = dialect_of(body, from_header, resources.settings.rerank_dialect)
    bodies.check_lengths("query", [body.query], resources.settings)
    sent, longest = body.sent or [], resources.settings.max_text_chars
    bodies.check_count(sent, resources.settings)
    fields = tuple(dict.fromkeys(body.rank_fields or ()))
    many = sum(1 if isinstance(one, str) else len(one) for one in sent)
    documents = await bodies.beside(
        request, lambda: [document_of(one, at, fields, longest) for at, one in enumerate(sent)], many
    )
    texts = [document.text for document in documents]
    bodies.check_lengths("documents", texts, resources.settings)
    if not texts and dialect == "tei":
        raise NoTexts("texts: is empty; send at least one")
    served = served_models.reranker(resources, body.model, body.strict_model)
    body.check_documents(texts, served.scorer.max_input_tokens)
    scored = await bodies.while_connected(request, _score(resources, served, body.query, texts, journey))
    body.check_truncation(scored.cut, served.scorer.max_input_tokens)
    resources.metrics.observe_rank(scored.seconds, len(texts), scored.degraded, None)
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


async def _score(
    resources: Resources, served: ServedModel, query: str, texts: Sequence[str], journey: Journey
) -> _Scored:
    """Score the texts by the cross-encoder, or by the generation's own model; words count as in the generation."""
    if not texts:
        return _Scored(np.empty(0, np.float32), 0, Truncation(), {})
    conversation = Conversation.of(query)
    if served.serving is None:
        words = None if resources.live.current is None else resources.live.current.generation.words
        pairs = await score_pairs(resources.runtime, words, conversation, texts, journey)
        line = line_of(served.scorer, counts_words=words is not None)
        scored = _Scored(pairs.scores, pairs.tokens, pairs.truncation, pairs.seconds, line=line)
    else:
        candidates = tuple(SentCandidate(None, text) for text in texts)
        todo = RankRequest(conversation=conversation, candidates=candidates, top_k=len(texts))
        ranked = await resources.engine.rank(served.serving, todo, journey)
        scores = np.empty(len(texts), np.float32)
        for place in ranked.places:
            assert place.index is not None, "every candidate was sent"
            scores[place.index] = place.score
        line = line_of(served.scorer)
        scored = _Scored(scores, ranked.tokens, ranked.truncation, ranked.seconds, ranked.degraded, line)
    if not np.isfinite(scored.scores).all():
        raise InferenceFailed("a score is not finite")
    return scored


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
        with_documents=bool(body.return_documents or body.return_text),
        request_id=request.state.request_id,
    )
    generation = None if served.serving is None else served.serving.generation.id
    request.state.account = Account(generation, scored.degraded, scored.seconds)
    facts = served_models.headers_of(
        request, scored.seconds, scored.cut.candidates, served.scorer.fingerprint, generation
    )
    content = orjson.dumps(_rendered(dialect, reranked, path_of(request.scope)))
    return Response(content, headers=facts, media_type="application/json")


def _rendered(dialect: Dialect, reranked: Reranked, path: str) -> Any:
    match dialect:
        case "tei":
            return tei.answer(reranked)
        case "voyage":
            return cohere.voyage_answer(reranked)
        case "infinity":
            return cohere.answer(reranked, "1", plain_documents=True)
        case "cohere" | "jina":
            return cohere.answer(reranked, "1" if path == "/v1/rerank" else "2")
