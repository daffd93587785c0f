"""What Bi- and Poly-encoder share: a transformer for contexts, one for candidates, and the candidate embedding."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

from torch import Tensor, nn

from polyrank.model.architectures.attention import ContextCodes, unit_length
from polyrank.model.architectures.backbone import Backbone
from polyrank.model.architectures.batching import TokenBatch
from polyrank.model.config import ModelConfig


class LateEncoder(nn.Module, ABC):
    """Encodes contexts and candidates apart, so that candidates can be encoded ahead (Humeau et al. 4.2).

    Attributes:
        context: the transformer of contexts (T1).
        candidate: the transformer of candidates (T2); the same object where the encoder is shared.
    """

    def __init__(self, config: ModelConfig, context: Backbone, candidate: Backbone) -> None:
        super().__init__()
        self.config = config
        self.context = context
        self.candidate = candidate

    @classmethod
    def build(cls, config: ModelConfig, backbone: Callable[[], Backbone]) -> Self:
        """Build it from new transformers; weights are still random."""
        context = backbone()
        return cls(config, context, context if config.shared_encoder else backbone())

    @property
    def longest_input(self) -> int:
        """Tokens of the longest sequence that a transformer reads."""
        return max(self.config.max_context_tokens, self.config.max_candidate_tokens)

    def encode_context(self, batch: TokenBatch) -> ContextCodes:
        """Return the context vectors, (B, M, D), with the score scale multiplied in, and which exist, (B, M)."""
        return self.context_codes(self.context(batch), batch.mask)

    @abstractmethod
    def context_codes(self, states: Tensor, mask: Tensor) -> ContextCodes:
        """Return what `encode_context` does, from the token states (B, T, D) of contexts and their mask (B, T)."""

    def encode_candidates(self, batch: TokenBatch) -> Tensor:
        """Return candidate embeddings `y_cand = red(T2(cand))`, (N, D) float32; unit-length under `normalize`."""
        return self.reduce(self.candidate(batch), batch.mask)

    def reduce(self, states: Tensor, mask: Tensor) -> Tensor:
        """red(): reduce token states (B, T, D) to one vector each, (B, D) float32 (Humeau et al. 4.2, Table 7)."""
        if self.config.reduction == "first-m mean":
            states, mask = states[:, : self.config.reduction_m], mask[:, : self.config.reduction_m]
        if self.config.reduction == "first":
            reduced = states[:, 0].float()
        else:
            weights = mask[..., None].float()
            reduced = (states.float() * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)
        return unit_length(reduced) if self.config.normalize else reduced
