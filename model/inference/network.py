"""A model's network and its parts, read when something first needs them; and back-ends, which run the parts.

Every part is a transformer, which takes nearly all of the time, and an ending, which turns token states into outputs. A
back-end may run the two in different precisions. `TorchBackend` in float32 is the reference: others must give its
outputs. What is kept compiled runs without the network being read.
"""

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar
from weakref import WeakKeyDictionary

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from polyrank.model.architectures.backbone import Backbone
from polyrank.model.architectures.batching import GPU_TOKEN_BUDGET, TOKEN_BUDGET, TokenBatch
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.late import LateEncoder
from polyrank.model.config import ModelConfig
from polyrank.model.inference.runners import BFLOAT16, FLOAT16, FLOAT32, TORCH, Runner


class Sizes(NamedTuple):
    """What running a part's transformer takes to know: the attributes of Backbone of these names."""

    dim: int
    pad_id: int
    max_tokens: int

    @classmethod
    def of(cls, backbone: Backbone) -> "Sizes":
        """Take them from a transformer."""
        return cls(backbone.dim, backbone.pad_id, backbone.max_tokens)


class NetworkPart(nn.Module, ABC):
    """One forward pass of a model over the fields of a TokenBatch, (B, T) each."""

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> tuple[Tensor, ...]:
        """Run it."""
        return self.ending(self.states(TokenBatch(ids, mask, segments)), mask)

    @abstractmethod
    def backbone(self) -> Backbone:
        """Return its transformer."""

    def states(self, batch: TokenBatch) -> Tensor:
        """Run the transformer; returns token states, (B, T, `width`)."""
        states: Tensor = self.backbone()(batch)
        return states

    @property
    def width(self) -> int:
        """The size of a token state."""
        return self.backbone().dim

    @abstractmethod
    def ending(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Turn token states (B, T, D) of any precision into the outputs; mask (B, T)."""


class ContextPart(NetworkPart):
    """From contexts to what `LateEncoder.context_outputs` gives, code attention and normalisation included."""

    def __init__(self, encoder: LateEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def backbone(self) -> Backbone:
        """Return the transformer of contexts."""
        return self.encoder.context

    def states(self, batch: TokenBatch) -> Tensor:
        """Run the transformer of contexts."""
        return self.encoder.context_tokens(batch)

    @property
    def width(self) -> int:
        """The size of a token state."""
        return self.encoder.context_width

    def ending(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Turn token states into context vectors and what a second stage reads."""
        return tuple(self.encoder.context_outputs(states, mask))


class CandidatePart(NetworkPart):
    """From candidates to what `LateEncoder.candidate_outputs` gives."""

    def __init__(self, encoder: LateEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def backbone(self) -> Backbone:
        """Return the transformer of candidates."""
        return self.encoder.candidate

    def states(self, batch: TokenBatch) -> Tensor:
        """Run the transformer of candidates."""
        return self.encoder.candidate_tokens(batch)

    @property
    def width(self) -> int:
        """The size of a token state."""
        return self.encoder.candidate_width

    def ending(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Turn token states into embeddings or rows."""
        return self.encoder.candidate_outputs(states, mask)


class PairPart(NetworkPart):
    """From joint sequences to the Cross-encoder's own scores, (B,) float32."""

    def __init__(self, encoder: CrossEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def backbone(self) -> Backbone:
        """Return the transformer of joint sequences."""
        return self.encoder.encoder

    def ending(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Turn token states into scores."""
        return (self.encoder.head_scores(states),)


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


# From a padded batch to the part's outputs. Safe to call from several threads.
Forward = Callable[[TokenBatch], tuple[NDArray[Any], ...]]


class Ready(NamedTuple):
    """A part that is ready to run, the sizes of its transformer, and what runs it."""

    run: Forward
    sizes: Sizes
    runner: Runner


_HALVES = {FLOAT16: torch.float16, BFLOAT16: torch.bfloat16}


class Backend(Protocol):
    """Runs the parts of one model.

    `token_budget`: how many tokens a batch should have at most, padding included.
    """

    runner: Runner
    token_budget: int

    def compile(self, part: NetworkPart) -> Forward:
        """Make a part ready to run."""


class TorchBackend:
    """Runs parts as torch modules, on the device that they are on.

    In float32 it runs the part itself, so changed weights count from the next call on. In 16 bits it runs a copy, in
    which the transformer alone has 16 bits: code attention, reductions and lengths stay float32.
    """

    def __init__(self, device: torch.device, precision: str = FLOAT32, token_budget: int | None = None) -> None:
        self._device = device
        self.runner = Runner(TORCH, precision)
        self.token_budget = token_budget or (TOKEN_BUDGET if device.type == "cpu" else GPU_TOKEN_BUDGET)
        self._halves: WeakKeyDictionary[Backbone, Backbone] = WeakKeyDictionary()

    def compile(self, part: NetworkPart) -> Forward:
        """Set the part to evaluation mode; torch compiles nothing ahead."""
        return partial(self._run, (part if self.runner.precision == FLOAT32 else self._halved(part)).eval())

    def _halved(self, part: NetworkPart) -> NetworkPart:
        """Copy a part with a transformer of 16 bits, which parts with the same transformer share."""
        own = part.backbone()
        if own not in self._halves:
            self._halves[own] = copy.deepcopy(own).to(_HALVES[self.runner.precision])
        kept: dict[int, Any] = {id(each): each for each in part.modules() if isinstance(each, Backbone)}
        return copy.deepcopy(part, {**kept, id(own): self._halves[own]})

    def _run(self, part: NetworkPart, batch: TokenBatch) -> tuple[NDArray[Any], ...]:
        with torch.inference_mode():
            return tuple(output.cpu().numpy() for output in part(*batch.to(self._device)))
