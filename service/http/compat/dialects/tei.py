"""The answers of Hugging Face's text-embeddings-inference."""

from typing import Any

from polyrank.service.http.compat.dialects.reranked import Reranked
from polyrank.service.http.plumbing.problems import ProblemAnswer
from polyrank.service.http.plumbing.served_models import Served
from polyrank.service.settings import Settings

# Its own words, in its own spelling; all other errors are of the request ("Validation").
_ERROR_TYPES = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    429: "Overloaded",
    500: "Backend",
    503: "Unhealthy",
    504: "Backend",
}


def answer(reranked: Reranked) -> list[dict[str, Any]]:
    """Render a bare array of `TeiRankOut`."""
    return [
        {
            "index": place.index,
            "score": place.score,
            **({"text": place.document.text} if reranked.with_documents else {}),
        }
        for place in reranked.places
    ]


def info(model: Served | None, model_type: str, batch_tokens: int, settings: Settings) -> dict[str, Any]:
    """Render a `TeiInfoOut`.

    Args:
        model: that does what `model_type` says; None where none is loaded.
        model_type: "reranker" or "embedding".
        batch_tokens: of what the model reads at a time.
        settings: the bounds.
    """
    kinds = {
        "reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}},
        "embedding": {"pooling": "mean"},  # of the kinds TEI knows; the checkpoint's own may be another
    }
    return {
        "model_id": model and model.name,
        "model_sha": model and model.fingerprint,
        "model_dtype": "float32",
        "served_model_name": model and model.name,
        "model_type": {model_type: kinds[model_type]},
        "max_input_length": model and model.max_input_tokens,
        "max_batch_tokens": batch_tokens,
        "max_batch_requests": None,
        "max_concurrent_requests": None,
        "max_client_batch_size": settings.max_candidates,
        "auto_truncate": True,
        "tokenization_workers": 1,
        "sha": None,
        "docker_label": None,
    }


def error(problem: ProblemAnswer) -> dict[str, Any]:
    """Render a `TeiErrorOut`."""
    return {"error": problem.detail, "error_type": error_type(problem)}


def error_type(problem: ProblemAnswer) -> str:
    """TEI's word for a problem."""
    return "Empty" if problem.kind.slug == "no-texts" else _ERROR_TYPES.get(problem.status_code, "Validation")
