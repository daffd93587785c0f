"""The models that are served, by the names that other systems' clients give them."""

from dataclasses import dataclass
from pathlib import PurePath

from polyrank.service.errors import ModelNotServed
from polyrank.service.live.serving import Serving
from polyrank.service.resources import Resources


@dataclass(frozen=True, slots=True)
class Served:
    """A model that answers requests.

    Attributes:
        name: the one that clients know it by.
        max_input_tokens: how many tokens of a text it reads; the rest is cut.
        serving: the generation that it belongs to; None for the cross-encoder.
        loaded_at: seconds since the epoch; 0 where it was loaded with the server.
    """

    name: str
    fingerprint: str
    max_input_tokens: int
    serving: Serving | None = None
    loaded_at: float = 0.0

    def is_named(self, name: str) -> bool:
        """Whether a client means this model: by its name, the last part of the name, or the fingerprint."""
        return name in (self.name, PurePath(self.name).name, self.fingerprint)


def every(held: Resources) -> list[Served]:
    """Return all models that are loaded, the one that reranks first."""
    scorer, serving = held.engine.scorer, held.live.current
    cross = [Served(scorer.name, scorer.fingerprint, scorer.max_input_tokens)] if scorer is not None else []
    return [*cross, *([] if serving is None else [_late(serving)])]


def _late(serving: Serving) -> Served:
    model = serving.generation.manifest.model
    return Served(model.name, model.fingerprint, serving.ranker.max_input_tokens, serving, serving.loaded_at)


def reranker(held: Resources, name: str | None, strict: bool | None) -> Served:
    """Return the model that the request names; without a name, or a known one, the model that reranks.

    Args:
        held: the app's resources.
        name: what the request names.
        strict: an unknown name is an error; None: as the setting `strict_model` says.

    Raises:
        ModelNotServed: the name is unknown, and that is an error.
        NotReady: no model is loaded.
    """
    return _named(every(held) or [_late(held.live.require())], name, _is_strict(held, strict))


def embedder(held: Resources, name: str | None, strict: bool | None) -> tuple[Served, Serving]:
    """Return the model that embeds, by the rules and with the errors of `reranker`."""
    serving = held.live.require()
    return _named([_late(serving)], name, _is_strict(held, strict)), serving


def _is_strict(held: Resources, asked: bool | None) -> bool:
    return held.settings.strict_model if asked is None else asked


def _named(served: list[Served], name: str | None, strict: bool) -> Served:
    if name is None:
        return served[0]
    for each in served:
        if each.is_named(name):
            return each
    if strict:
        raise ModelNotServed(name, [each.name for each in served])
    return served[0]


def announced(held: Resources) -> Served | None:
    """Return the model that `/info` shows to TEI's clients; None where it is not loaded."""
    embeds = held.settings.info_model_type == "embedding"
    return next((each for each in every(held) if each.serving is not None or not embeds), None)
