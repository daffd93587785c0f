"""The models that are served, by the names that other systems' clients give them, and what headers say of them."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

from polyrank.service.errors import ModelNotServed
from polyrank.service.live.models import PairScorer, VectorScorer
from polyrank.service.ranking import parts
from polyrank.service.resources import Resources


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that answers requests; without `serving`, the generation it belongs to, it is the cross-encoder.

    `name` is that of answers: the setting `served_model_name`, or its own.
    """

    name: str
    own_name: str
    scorer: VectorScorer | PairScorer
    serving: parts.Serving | None = None


def every(resources: Resources) -> list[ServedModel]:
    """Return all models that are loaded, the one that reranks first."""
    scorer, serving, name = resources.runtime.scorer, resources.live.current, resources.settings.served_model_name
    cross = [] if scorer is None else [ServedModel(name or scorer.name, scorer.name, scorer)]
    return [*cross, *([] if serving is None else [_of_generation(resources, serving)])]


def _of_generation(resources: Resources, serving: parts.Serving) -> ServedModel:
    own_name = serving.generation.manifest.model.name
    return ServedModel(resources.settings.served_model_name or own_name, own_name, serving.ranker, serving)


def reranker(resources: Resources, name: str | None, strict: bool | None) -> ServedModel:
    """Return the model that the request names; if it names none or an unknown one, the model that reranks.

    Raises ModelNotServed if the name is unknown, and `strict` (None: the setting `strict_model`) makes that an error.
    """
    return _named(resources, every(resources) or [_of_generation(resources, resources.live.require())], name, strict)


def embedder(resources: Resources, name: str | None, strict: bool | None) -> tuple[ServedModel, parts.Serving]:
    """Return the model that embeds, by the rules and with the errors of `reranker`."""
    serving = resources.live.require()
    return _named(resources, [_of_generation(resources, serving)], name, strict), serving


def _named(resources: Resources, served: list[ServedModel], name: str | None, strict: bool | None) -> ServedModel:
    if name is None:
        return served[0]
    for model in served:  # its own name may be that on a hub, of which clients may leave out the owner
        if name in (model.name, model.own_name, model.own_name.rpartition("/")[2], model.scorer.fingerprint):
            return model
    if resources.settings.strict_model if strict is None else strict:
        raise ModelNotServed(name, [model.name for model in served])
    return served[0]


def announced(resources: Resources) -> ServedModel | None:
    """Return the model that `/info` shows to TEI's clients; None where it is not loaded."""
    embeds = resources.settings.info_model_type == "embedding"
    return next((model for model in every(resources) if model.serving is not None or not embeds), None)


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
HEADERS_OUT: Final[dict[str, Any]] = {
    "headers": {name: {"description": meaning, "schema": schema} for name, (meaning, schema) in _HEADERS.items()}
}
INFERENCE = ("encode", "retrieve", "fetch", "score", "late", "rerank")


def headers_of(
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
