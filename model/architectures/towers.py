"""The two sides of a Bi- or Poly-encoder: T1 for contexts, T2 for candidates (Humeau et al. 4.2)."""

from torch import Tensor, nn

from polyrank.model.architectures.attention import unit_length
from polyrank.model.architectures.backbone import Backbone
from polyrank.model.architectures.batching import TokenBatch
from polyrank.model.architectures.pooling import reduce_states
from polyrank.model.config import ModelConfig


class Towers(nn.Module):
    """One transformer a side, or one for both; and the candidate side, which Bi- and Poly-encoder share.

    Attributes:
        context: the transformer of contexts (T1).
        candidate: the transformer of candidates (T2); the same object where the encoder is shared.
        config: the checkpoint's config.
    """

    def __init__(self, config: ModelConfig, context: Backbone, candidate: Backbone) -> None:
        super().__init__()
        self.config = config
        self.context = context
        self.candidate = candidate

    def encode_candidates(self, batch: TokenBatch) -> Tensor:
        """Return candidate embeddings `y_cand = red(T2(cand))`, (N, D) float32; unit-length under `normalize`."""
        return self._reduce(self.candidate(batch), batch.mask)

    def _reduce(self, states: Tensor, mask: Tensor) -> Tensor:
        reduced = reduce_states(states, mask, self.config)
        return unit_length(reduced) if self.config.normalize else reduced
