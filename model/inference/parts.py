"""The parts of a network, each of which is one forward pass.

Every part is a transformer, which takes nearly all of the time, and an ending, which turns token states into outputs. A
back-end may run the two in different precisions.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn

from polyrank.model.architectures.backbone import Backbone, TensorBatch
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.late import LateEncoder
from polyrank.model.inference.runners import PartName


class NetworkPart(nn.Module, ABC):
    """One forward pass of a model over the fields of a TensorBatch, (B, T) each.

    Attributes:
        reads: what it is given.
    """

    reads: ClassVar[PartName]

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> tuple[Tensor, ...]:
        """Run it."""
        return self.ending(self.states(TensorBatch(ids, mask, segments)), mask)

    @abstractmethod
    def backbone(self) -> Backbone:
        """Return its transformer."""

    def states(self, batch: TensorBatch) -> Tensor:
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

    reads = "contexts"

    def __init__(self, encoder: LateEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def backbone(self) -> Backbone:
        """Return the transformer of contexts."""
        return self.encoder.context

    def states(self, batch: TensorBatch) -> Tensor:
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

    reads = "candidates"

    def __init__(self, encoder: LateEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def backbone(self) -> Backbone:
        """Return the transformer of candidates."""
        return self.encoder.candidate

    def states(self, batch: TensorBatch) -> Tensor:
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

    reads = "pairs"

    def __init__(self, encoder: CrossEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def backbone(self) -> Backbone:
        """Return the transformer of joint sequences."""
        return self.encoder.encoder

    def ending(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Turn token states into scores."""
        return (self.encoder.head_scores(states),)


PARTS: dict[PartName, type[Any]] = {part.reads: part for part in (ContextPart, CandidatePart, PairPart)}
