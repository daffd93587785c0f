"""A model's network and its parts, read when something first needs them: what is kept compiled runs without."""

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.late import LateEncoder
from polyrank.model.config import ModelConfig
from polyrank.model.inference.parts import NetworkPart

E = TypeVar("E", bound=LateEncoder | CrossEncoder)
E_contra = TypeVar("E_contra", bound=LateEncoder | CrossEncoder, contravariant=True)


class PartClass(Protocol[E_contra]):
    """A class of parts, whose objects are made of a network."""

    __name__: str

    def __call__(self, encoder: E_contra, /) -> NetworkPart:
        """Make a part of a network."""


class LazyPart:
    """A part that is built when somebody needs its torch module.

    Attributes:
        name: of its class, which tells it from the other parts of the network.
        identity: of the network.
    """

    def __init__(self, name: str, identity: str, build: Callable[[], NetworkPart]) -> None:
        self.name, self.identity = name, identity
        self._build = build

    def module(self) -> NetworkPart:
        """Build it, in evaluation mode; it shares its weights with the network."""
        return self._build().eval()


class Network(Generic[E]):
    """The network of a model.

    Attributes:
        config: what its checkpoint says about it.
        identity: stands for all that its outputs depend on, weights included; empty where these may change, as in
            training.
    """

    def __init__(self, config: ModelConfig, read: Callable[[], E], identity: str = "") -> None:
        self.config, self.identity = config, identity
        self._read, self._held = read, list[E]()
        self._reading = threading.Lock()

    @classmethod
    def of(cls, encoder: E) -> "Network[E]":
        """Wrap a network that has been read."""
        return cls(encoder.config, lambda: encoder)

    @property
    def encoder(self) -> E:
        """The torch module, in evaluation mode; the first access reads it, and raises as reading does."""
        with self._reading:
            if not self._held:
                encoder = self._read()
                encoder.eval()
                self._held.append(encoder)
            return self._held[0]

    def part(self, part_class: PartClass[E]) -> LazyPart:
        """Return a part of it, not built yet."""
        return LazyPart(part_class.__name__, self.identity, lambda: part_class(self.encoder))


def first_stage(network: Network[CrossEncoder]) -> Network[LateEncoder]:
    """Return the Poly-encoder within a residual Cross-encoder."""

    def poly() -> LateEncoder:
        assert network.encoder.poly is not None, "it is residual"
        return network.encoder.poly

    return Network(network.config, poly, f"{network.identity} poly" if network.identity else "")
