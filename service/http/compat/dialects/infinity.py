"""Infinity's answers: Cohere's, with strings for documents; its errors are OpenAI's."""

from typing import Any

from polyrank.service.http.compat.dialects import cohere
from polyrank.service.http.compat.dialects.openai import error
from polyrank.service.http.compat.dialects.reranked import Reranked

__all__ = ["answer", "error"]


def answer(reranked: Reranked) -> dict[str, Any]:
    """Render a `CompatRerankOut` with strings for documents."""
    rendered = cohere.answer(reranked, "1")
    for result in rendered["results"]:
        if "document" in result:
            result["document"] = result["document"]["text"]
    return rendered
