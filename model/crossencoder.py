"""Cross-encoder: full attention between context and candidate, one scalar out (Humeau et al. 4.3)."""

from torch import Tensor, nn

from model.backbone import Backbone
from model.batching import TokenBatch
from model.config import ModelConfig


class CrossEncoder(nn.Module):
    """`score = first(T(ctxt, cand)) W`: the first output through a linear layer to a scalar.

    Attributes:
        encoder: the transformer over the joint input; segment ids 0 for the context, 1 for the candidate.
        head: W, D to 1.
    """

    def __init__(self, config: ModelConfig, encoder: Backbone) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder
        self.head = nn.Linear(encoder.dim, 1)

    def score_pairs(self, batch: TokenBatch) -> Tensor:
        """Return one score a pair, (B,) float32."""
        first: Tensor = self.encoder(batch)[:, 0]
        scores: Tensor = self.head(first.float())[:, 0]
        return scores
