"""What a model computes in one forward pass, written once in torch: back-ends run it.

Every part is a transformer, which takes nearly all of the time, and an ending, which turns token states into outputs. A
back-end may run the two in different precisions.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor, nn

from polyrank.model.architectures.backbone import Backbone
from polyrank.model.architectures.batching import TokenBatch
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.late import LateEncoder


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
