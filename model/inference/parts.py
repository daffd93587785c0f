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


class Part(nn.Module, ABC):
    """One forward pass of a model over the fields of a TokenBatch, (B, T) each."""

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> tuple[Tensor, ...]:
        """Run it."""
        return self.ending(self.backbone()(TokenBatch(ids, mask, segments)), mask)

    @abstractmethod
    def backbone(self) -> Backbone:
        """Return its transformer."""

    @abstractmethod
    def ending(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Turn token states (B, T, D) of any precision into the outputs; mask (B, T)."""


class ContextPart(Part):
    """From contexts to context vectors, code attention and normalisation included.

    Outputs (B, M, D) float32, with the score scale multiplied in, and (B, M), False where a short context has fewer.
    """

    def __init__(self, encoder: LateEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def backbone(self) -> Backbone:
        """Return the transformer of contexts."""
        return self.encoder.context

    def ending(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Turn token states into context vectors."""
        codes = self.encoder.context_codes(states, mask)
        return codes.vectors, codes.mask


class CandidatePart(Part):
    """From candidates to their embeddings, (B, D) float32."""

    def __init__(self, encoder: LateEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def backbone(self) -> Backbone:
        """Return the transformer of candidates."""
        return self.encoder.candidate

    def ending(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Turn token states into embeddings."""
        return (self.encoder.reduce(states, mask),)


class PairPart(Part):
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
