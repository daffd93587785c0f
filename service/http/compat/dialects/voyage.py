"""Voyage's answers."""

from typing import Any

from polyrank.service.http.compat.dialects.reranked import Place, Reranked
from polyrank.service.http.plumbing.problems import ProblemAnswer


def answer(reranked: Reranked) -> dict[str, Any]:
    """Render a `VoyageRerankOut`; a document is a string."""
    return {
        "object": "list",
        "data": [_result(each, reranked.with_documents) for each in reranked.places],
        "model": reranked.model,
        "usage": {"total_tokens": reranked.tokens},
    }


def _result(place: Place, with_document: bool) -> dict[str, Any]:
    document = {"document": place.document.text} if with_document else {}
    return {"index": place.index, "relevance_score": place.score, **document, **place.document.echo}


def error(problem: ProblemAnswer) -> dict[str, Any]:
    """Render a `DetailErrorOut`."""
    return {"detail": problem.detail}
