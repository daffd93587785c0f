"""Cross-encoder: full attention between context and candidate, one scalar out (Humeau et al. 4.3)."""

from collections.abc import Sequence

from torch import Tensor

from polyrank.model.architectures.backbone import TensorBatch
from polyrank.model.architectures.batching import joined, pair_batches
from polyrank.model.architectures.pairs import PairEncoder
from polyrank.model.text.sequences import Pairs


class CrossEncoder(PairEncoder):
    """`score = first(T(ctxt, cand)) W`: the first output through a linear layer to a scalar."""

    def batches(self, pairs: Pairs, budget: int) -> list[list[int]]:
        """Group the positions of pairs of similar length."""
        return pair_batches(pairs, budget)

    def own_scores(self, pairs: Pairs, left_out: Sequence[Sequence[int]] = ()) -> Tensor:
        batch = joined(pairs, self.encoder.pad_id)
        for row, places in enumerate(left_out):
            batch.mask[row, list(places)] = False
        return self.joint_scores(TensorBatch.of(batch, next(self.parameters()).device))

    def joint_scores(self, batch: TensorBatch) -> Tensor:
        """Return what the head gives for each joint sequence, as `head_scores`, without a first stage's score."""
        return self.head_scores(self.encoder(batch))

    def head_scores(self, states: Tensor) -> Tensor:
        """Return the head's score of each sequence, (B,) float32, from the token states, (B, T, D).

        Of a classifier these are the logits of its classes, (B, C).
        """
        first = states[:, 0].float()
        scores: Tensor = first if self.head is None else self.head(first)
        return scores if self.config.head_classes else scores[:, 0]
