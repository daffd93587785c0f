"""Cohere's, Jina's and vLLM's answers in one: each of their clients finds what it looks for."""

from typing import Any

from polyrank.service.http.compat.dialects import tei
from polyrank.service.http.compat.dialects.reranked import Place, Reranked, now, search_units
from polyrank.service.http.plumbing.problems import ProblemAnswer


def answer(reranked: Reranked, api_version: str) -> dict[str, Any]:
    """Render a `CompatRerankOut`; `document` is absent, not null, where it was not asked for."""
    return {
        "id": reranked.id,
        "object": "rerank",
        "model": reranked.model,
        "created": now(),
        "results": [_result(each, reranked.with_documents) for each in reranked.places],
        "usage": {"prompt_tokens": reranked.tokens, "total_tokens": reranked.tokens},
        "meta": {
            "api_version": {"version": api_version},
            "billed_units": {"search_units": search_units(reranked.sent)},
            "tokens": {"input_tokens": reranked.tokens, "output_tokens": 0},
            "warnings": reranked.warnings,
        },
    }


def _result(place: Place, with_document: bool) -> dict[str, Any]:
    document = {"document": {"text": place.document.text}} if with_document else {}
    return {"index": place.index, "relevance_score": place.score, **document, **place.document.echo}


def error(problem: ProblemAnswer) -> dict[str, Any]:
    """Render an `AnyErrorOut`: what a client of TEI, Cohere, Jina, vLLM or Voyage looks for, all of it."""
    return {
        "detail": problem.detail,
        "message": problem.detail,
        "error": problem.detail,
        "error_type": tei.error_type(problem),
        "code": problem.status_code,
        "request_id": problem.request_id,
    }
