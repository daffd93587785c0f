"""Response headers of compatible routes: TEI's, and what the answer was made with."""

import time
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request

_MILLISECONDS = {"type": "number", "minimum": 0}
_TOLD: Final = {
    "x-total-time": ("milliseconds", _MILLISECONDS),
    "x-tokenization-time": ("milliseconds", _MILLISECONDS),
    "x-queue-time": ("milliseconds", _MILLISECONDS),
    "x-inference-time": ("milliseconds", _MILLISECONDS),
    "x-truncated-texts": ("how many texts were not read to their end", {"type": "integer", "minimum": 0}),
    "x-model-fingerprint": ("of the model that answered", {"type": "string"}),
    "x-index-generation": ("whose model it is; absent for a cross-encoder", {"type": "string"}),
}
DESCRIBED: Final[dict[str, Any]] = {
    "headers": {name: {"description": told, "schema": schema} for name, (told, schema) in _TOLD.items()}
}
INFERENCE = ("encode", "retrieve", "fetch", "score", "rerank")


def of_answer(
    request: Request, seconds: Mapping[str, float], cut: int, fingerprint: str, generation: str | None
) -> dict[str, str]:
    """Tell times in milliseconds, and what cannot be told in every dialect's body.

    Args:
        request: answered.
        seconds: by stage; empty where there was nothing to do.
        cut: how many texts were not read to their end.
        fingerprint: of the model.
        generation: whose model it is; None where it belongs to none.
    """
    ms = {
        "x-total-time": time.monotonic() - request.state.arrived,
        "x-tokenization-time": seconds.get("tokenize", 0.0),
        "x-queue-time": seconds.get("queue", 0.0),
        "x-inference-time": sum(seconds.get(stage, 0.0) for stage in INFERENCE),
    }
    return {
        **{name: f"{value * 1000:.3f}" for name, value in ms.items()},
        "x-truncated-texts": str(cut),
        "x-model-fingerprint": fingerprint,
        **({} if generation is None else {"x-index-generation": generation}),
    }
