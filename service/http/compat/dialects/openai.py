"""OpenAI's answers: embeddings, models, errors."""

import base64
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.service.http.compat.dialects.reranked import now
from polyrank.service.http.plumbing.problems import ProblemAnswer

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def embeddings(
    vectors: NDArray[np.float32], model: str, tokens: int, request_id: str, as_base64: bool
) -> dict[str, Any]:
    """Render an `EmbeddingsOut`.

    Args:
        vectors: (N, D).
        model: by the name that clients know it by.
        tokens: that the model read.
        request_id: of the request.
        as_base64: of float32, little-endian, instead of lists.
    """
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": at, "embedding": _base64(vector) if as_base64 else vector}
            for at, vector in enumerate(vectors)
        ],
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "id": f"emb-{request_id}",
        "created": now(),
    }


def _base64(vector: NDArray[np.float32]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def models(served: Iterable[tuple[str, list[str], int]]) -> dict[str, Any]:
    """Render a `ModelsOut` of (name, what it can do, loaded when)."""
    return {
        "object": "list",
        "data": [
            {"id": name, "object": "model", "owned_by": "polyrank", "created": created, "capabilities": capabilities}
            for name, capabilities, created in served
        ],
    }


def error(problem: ProblemAnswer) -> dict[str, Any]:
    """Render an `OpenAiErrorOut`."""
    status = problem.status_code
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": problem.detail, "type": kind, "param": None, "code": problem.kind.slug}}
