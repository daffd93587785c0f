"""Response headers of compatible routes: TEI's timings, and which model answered."""

import time
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request

_MILLISECONDS = {"type": "number", "minimum": 0}
_HEADERS: Final = {
    "x-total-time": ("milliseconds", _MILLISECONDS),
    "x-tokenization-time": ("milliseconds", _MILLISECONDS),
    "x-queue-time": ("milliseconds", _MILLISECONDS),
    "x-inference-time": ("milliseconds", _MILLISECONDS),
    "x-truncated-texts": ("how many texts were not read to their end", {"type": "integer", "minimum": 0}),
    "x-model-fingerprint": ("of the model that answered", {"type": "string"}),
    "x-index-generation": ("whose model it is; absent for a cross-encoder", {"type": "string"}),
}
DESCRIBED: Final[dict[str, Any]] = {
    "headers": {name: {"description": meaning, "schema": schema} for name, (meaning, schema) in _HEADERS.items()}
}
INFERENCE = ("encode", "retrieve", "fetch", "score", "late", "rerank")


def of_answer(
    request: Request, seconds: Mapping[str, float], cut: int, fingerprint: str, generation: str | None
) -> dict[str, str]:
    """Return the headers of an answer: times in milliseconds, and facts that not every dialect's body has room for.

    `seconds` are by stage, `cut` counts the texts not read to their end, `generation` is None for a cross-encoder.
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
