"""A model's network and its parts, read when something first needs them; and what a back-end makes of a part.

Importing this needs no torch: what is kept compiled runs without the network being read.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from numpy.typing import NDArray

from polyrank.model import threads
from polyrank.model.architectures.batching import Batch
from polyrank.model.config import ModelConfig
from polyrank.model.inference.runners import PartName, Runner

if TYPE_CHECKING:
    from polyrank.model.architectures.backbone import Backbone
    from polyrank.model.architectures.pairs import PairEncoder
    from polyrank.model.architectures.vector import VectorEncoder
    from polyrank.model.inference.parts import NetworkPart


class Sizes(NamedTuple):
    """What running a part's transformer takes to know: the attributes of Backbone of these names."""

    dim: int
    pad_id: int
    max_tokens: int

    @classmethod
    def of(cls, backbone: "Backbone") -> "Sizes":
        return cls(backbone.dim, backbone.pad_id, backbone.max_tokens)


class LazyPart(NamedTuple):
    """A part of a network that is built when somebody needs its torch module."""

    name: PartName
    identity: str  # of the network
    module: Callable[[], "NetworkPart"]  # builds it, in evaluation mode; it shares its weights with the network


E = TypeVar("E", bound="VectorEncoder | PairEncoder")


class Network(Generic[E]):
    """The network of a model.

    `identity`: stands for all that its outputs depend on, weights included; empty where these may change, as in
    training.
    """

    def __init__(self, config: ModelConfig, read: Callable[[], E], identity: str = "") -> None:
        self.config, self.identity = config, identity
        self._read, self._held = read, list[E]()
        self._reading = threading.Lock()

    @classmethod
    def of(cls, encoder: E) -> "Network[E]":
        return cls(encoder.config, lambda: encoder)

    @property
    def encoder(self) -> E:
        """The torch module, in evaluation mode; the first access reads it, and raises as reading does."""
        with self._reading:
            if not self._held:
                threads.tell_torch()
                encoder = self._read()
                encoder.eval()
                self._held.append(encoder)
            return self._held[0]

    @property
    def is_read(self) -> bool:
        return bool(self._held)

    def part(self, name: PartName) -> LazyPart:
        def module() -> "NetworkPart":
            from polyrank.model.inference.parts import PARTS

            part: NetworkPart = PARTS[name](self.encoder)
            return part.eval()

        return LazyPart(name, self.identity, module)


def first_stage(network: "Network[PairEncoder]") -> "Network[VectorEncoder]":
    """Return the Poly-encoder within a residual encoder of pairs."""

    def poly() -> "VectorEncoder":
        assert network.encoder.poly is not None, "it is residual"
        return network.encoder.poly

    return Network(network.config, poly, f"{network.identity} poly" if network.identity else "")


# From a padded batch to the part's outputs. Safe to call from several threads.
Forward = Callable[[Batch], tuple[NDArray[Any], ...]]


class Ready(NamedTuple):
    """A part that is ready to run, the sizes of its transformer, and what runs it."""

    run: Forward
    sizes: Sizes
    runner: Runner


class Backend(Protocol):
    """Runs the parts of one model.

    `token_budget`: how many tokens a batch should have at most, padding included.
    """

    runner: Runner
    token_budget: int

    def compile(self, part: "NetworkPart") -> Forward: ...
