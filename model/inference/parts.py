"""The parts of a network, each of which is one forward pass.

Every part is a transformer, which takes nearly all of the time, and an ending, which turns token states into outputs. A
back-end may run the two in different precisions.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from polyrank.model.architectures.backbone import Backbone, TensorBatch
from polyrank.model.architectures.batching import Batch, BesideBatch, behind, pad
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.uni import BesideTensors, UniEncoder
from polyrank.model.architectures.vector import VectorEncoder
from polyrank.model.inference.runners import PartName


class NetworkPart(nn.Module, ABC):
    """One forward pass of a model over the fields of a batch, of which the first two are token ids and mask, (B, T).

    `reads`: what it is given.
    """

    reads: ClassVar[PartName]
    tensors: ClassVar[type[Any]] = TensorBatch

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, *fields: Tensor) -> tuple[Tensor, ...]:
        return self.ending(self.states(self.tensors(*fields)), fields[1])

    def backbone(self) -> Backbone:
        backbone: Backbone = self.encoder.encoder
        return backbone

    def laid_out(self, sequences: Sequence[list[int]], starts: Sequence[int] | None = None) -> Batch:
        """Lay out sequences as it reads them; `starts`: where segment 1 of each begins."""
        return pad(sequences, self.backbone().pad_id, starts)

    def states(self, batch: Any) -> Tensor:
        """Run the transformer over a batch of its kind; returns token states, (B, T, `width`)."""
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
    """From contexts to what `VectorEncoder.context_outputs` gives, code attention and normalisation included."""

    reads = "contexts"
    encoder: VectorEncoder

    def backbone(self) -> Backbone:
        return self.encoder.context

    def states(self, batch: TensorBatch) -> Tensor:
        return self.encoder.context_tokens(batch)

    @property
    def width(self) -> int:
        return self.encoder.context_width

    def ending(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Turn token states into context vectors and what a second stage reads."""
        return tuple(self.encoder.context_outputs(states, mask))


class CandidatePart(NetworkPart):
    """From candidates to what `VectorEncoder.candidate_outputs` gives."""

    reads = "candidates"
    encoder: VectorEncoder

    def backbone(self) -> Backbone:
        return self.encoder.candidate

    def states(self, batch: TensorBatch) -> Tensor:
        return self.encoder.candidate_tokens(batch)

    @property
    def width(self) -> int:
        return self.encoder.candidate_width

    def ending(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return self.encoder.candidate_outputs(states, mask)


class PairPart(NetworkPart):
    """From joint sequences to the Cross-encoder's own scores, (B,) float32."""

    reads = "pairs"
    encoder: CrossEncoder

    def ending(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return (self.encoder.head_scores(states),)


class MemoryPart(NetworkPart):
    """From contexts to what candidates read of them, `UniEncoder.memory`, and which tokens count."""

    reads = "known"
    encoder: UniEncoder

    def states(self, batch: TensorBatch) -> Tensor:
        return self.encoder.memory(batch)

    @property
    def width(self) -> int:
        """The size of what candidates read of a token."""
        return self.encoder.memory_width

    def ending(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Return zeros for padding, and the mask.

        OpenVINO gives an input that it is to return unchanged wrongly after one of another shape.
        """
        return states.float() * mask[..., None], mask


class BesidePart(NetworkPart):
    """From candidates, beside contexts that were read, to the Uni-Encoder's own scores, (N,) float32."""

    reads = "beside"
    tensors = BesideTensors
    encoder: UniEncoder

    def laid_out(self, sequences: Sequence[list[int]], starts: Sequence[int] | None = None) -> Batch:
        """Cut sequences in two, by default in halves, and read the first part of each as a context; equal ones once."""
        cuts = [max(1, cut) for cut in starts or [len(sequence) // 2 for sequence in sequences]]
        pairs = [(sequence[:cut], sequence[cut:]) for sequence, cut in zip(sequences, cuts, strict=True)]
        pad_id = self.backbone().pad_id
        alone = all(context == pairs[0][0] for context, _ in pairs)
        contexts = pad([context for context, _ in (pairs[:1] if alone else pairs)], pad_id)
        with torch.inference_mode():
            memory = self.encoder.memory(TensorBatch.of(contexts, next(self.parameters()).device)).float().cpu().numpy()
        return BesideBatch(*behind([own for _, own in pairs], cuts, pad_id), memory, contexts.mask)

    def states(self, batch: BesideTensors) -> Tensor:
        return self.encoder.candidate_states(batch)

    def ending(self, states: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return (self.encoder.head_scores(states, mask),)


_ALL = (ContextPart, CandidatePart, PairPart, MemoryPart, BesidePart)
PARTS: dict[PartName, type[Any]] = {part.reads: part for part in _ALL}
