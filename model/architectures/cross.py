"""Cross-encoder: full attention between context and candidate, one scalar out (Humeau et al. 4.3)."""

from torch import Tensor, nn

from polyrank.model.architectures.backbone import Backbone
from polyrank.model.architectures.batching import TokenBatch, length_batches, pad
from polyrank.model.config import ModelConfig
from polyrank.model.text.pairs import Pairs


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

    def batches(self, pairs: Pairs, budget: int) -> list[list[int]]:
        """Positions to score together: pairs of like length, within a budget of padded tokens."""
        joint = zip(pairs.owners, pairs.candidates, strict=True)
        return length_batches([len(pairs.contexts[owner]) + len(candidate) for owner, candidate in joint], budget)

    def join(self, pairs: Pairs) -> TokenBatch:
        """Each context and its candidate as one sequence, padded: (B, T)."""
        heads = [pairs.contexts[owner] for owner in pairs.owners]
        joint = [[*head, *candidate[pairs.prefix :]] for head, candidate in zip(heads, pairs.candidates, strict=True)]
        return pad(joint, self.encoder.pad_id, [len(head) for head in heads])

    def score(self, batch: TokenBatch) -> Tensor:
        """Return one score a joint sequence, (B,) float32."""
        first: Tensor = self.encoder(batch)[:, 0]
        scores: Tensor = self.head(first.float())[:, 0]
        return scores

    def score_pairs(self, pairs: Pairs) -> Tensor:
        """Return one score a pair, (B,) float32."""
        return self.score(self.join(pairs).to(self.head.weight.device))
