"""Answers to Voyage's clients."""

from typing import Any, Literal

from pydantic import JsonValue

from polyrank.service.http.compat.reranked import RankedDocument, Reranked
from polyrank.service.http.plumbing.fields import Out
from polyrank.service.http.plumbing.problems import ProblemAnswer


class VoyageResultOut(Out):
    """A document in its place, as Voyage writes it."""

    index: int
    relevance_score: float
    document: str | None = None
    id: JsonValue = None
    metadata: JsonValue = None


class VoyageUsageOut(Out):
    """How many tokens the model read."""

    total_tokens: int


class VoyageRerankOut(Out):
    """Voyage's answer."""

    object: Literal["list"]
    data: list[VoyageResultOut]
    model: str
    usage: VoyageUsageOut


def answer(reranked: Reranked) -> dict[str, Any]:
    """Render a `VoyageRerankOut`; a document is a string."""
    return {
        "object": "list",
        "data": [_result(place, reranked.with_documents) for place in reranked.places],
        "model": reranked.model,
        "usage": {"total_tokens": reranked.tokens},
    }


def _result(place: RankedDocument, with_document: bool) -> dict[str, Any]:
    document = {"document": place.document.text} if with_document else {}
    return {"index": place.index, "relevance_score": place.score, **document, **place.document.echo}


class DetailErrorOut(Out):
    """An error, as Voyage writes it."""

    detail: str


def error(problem: ProblemAnswer) -> DetailErrorOut:
    """Put a problem in Voyage's form."""
    return DetailErrorOut(detail=problem.detail)
