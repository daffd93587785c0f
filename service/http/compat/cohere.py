"""Answers to clients of Cohere, Jina, vLLM and infinity: one form in which each client finds what it looks for."""

import time
from typing import Any, Literal

from pydantic import Field, JsonValue

from polyrank.service.http.compat import tei
from polyrank.service.http.compat.reranked import RankedDocument, Reranked, search_units
from polyrank.service.http.plumbing.fields import Out
from polyrank.service.http.plumbing.problems import ProblemAnswer


class UsageOut(Out):
    """How many tokens the model read."""

    prompt_tokens: int
    total_tokens: int


class DocumentOut(Out):
    """A document's text."""

    text: str


class RerankResultOut(Out):
    """A document in its place."""

    index: int = Field(description="its place in the request")
    relevance_score: float = Field(
        description="0 to 1: the probability that it is right, if the model is calibrated; with `raw_scores`, the score"
    )
    document: DocumentOut | str | None = Field(default=None, description="absent unless asked for; infinity: a string")
    id: JsonValue = Field(default=None, description="as it was sent")
    metadata: JsonValue = Field(default=None, description="as it was sent")


class ApiVersionOut(Out):
    """Which version of Cohere's interface this looks like."""

    version: str


class BilledOut(Out):
    """What Cohere would bill."""

    search_units: int


class TokensOut(Out):
    """Cohere's `usage`."""

    input_tokens: int
    output_tokens: int


class MetaOut(Out):
    """What Cohere says beside the results."""

    api_version: ApiVersionOut
    billed_units: BilledOut
    tokens: TokensOut
    warnings: list[str] = Field(description="what was cut")


class CompatRerankOut(Out):
    """The answer to clients of Cohere, Jina, vLLM and infinity."""

    id: str
    object: Literal["rerank"]
    model: str
    created: int
    results: list[RerankResultOut]
    usage: UsageOut
    meta: MetaOut


def answer(reranked: Reranked, api_version: str, plain_documents: bool = False) -> dict[str, Any]:
    """Render a `CompatRerankOut` as version "1" or "2" of Cohere's interface does.

    `document` is absent, not null, where it was not asked for; `plain_documents` makes it a string, for infinity.
    """
    return {
        "id": reranked.id,
        "object": "rerank",
        "model": reranked.model,
        "created": int(time.time()),
        "results": [_result(place, reranked.with_documents, plain_documents) for place in reranked.places],
        "usage": {"prompt_tokens": reranked.tokens, "total_tokens": reranked.tokens},
        "meta": {
            "api_version": {"version": api_version},
            "billed_units": {"search_units": search_units(reranked.sent)},
            "tokens": {"input_tokens": reranked.tokens, "output_tokens": 0},
            "warnings": reranked.warnings,
        },
    }


def _result(place: RankedDocument, with_document: bool, plain: bool) -> dict[str, Any]:
    text = place.document.text
    document = {"document": text if plain else {"text": text}} if with_document else {}
    return {"index": place.index, "relevance_score": place.score, **document, **place.document.echo}


class AnyErrorOut(Out):
    """An error, for clients of TEI, Cohere, Jina, vLLM and Voyage at once."""

    detail: str
    message: str
    error: str
    error_type: str
    code: int
    request_id: str


def error(problem: ProblemAnswer) -> AnyErrorOut:
    """Put a problem in the form that suits these clients, and any other while the dialect is not known."""
    return AnyErrorOut(
        detail=problem.detail,
        message=problem.detail,
        error=problem.detail,
        error_type=tei.error_type(problem),
        code=problem.status_code,
        request_id=problem.request_id,
    )
