"""Cross-encoder: full attention between context and candidate, one scalar out (Humeau et al. 4.3)."""

from collections.abc import Callable
from typing import Self

from torch import Tensor, nn

from polyrank.model.architectures.backbone import Backbone, TensorBatch
from polyrank.model.architectures.poly import PolyEncoder
from polyrank.model.config import ModelConfig

FIRST_STAGE = "poly"  # the architecture to whose scores a residual Cross-encoder adds


class CrossEncoder(nn.Module):
    """`score = first(T(ctxt, cand)) W`: the first output through a linear layer to a scalar.

    A residual one scores `poly(ctxt, cand) + first(T(ctxt, cand)) W`, with a finished Poly-encoder that is not trained
    any further. A small Cross-encoder on little data ranks worse than the Poly-encoder before it, but makes other
    mistakes. Trained on top of the Poly-encoder's scores it begins near that ranking and learns what is missing. This
    module holds the Poly-encoder; FirstStage (polyrank.model.inference.passes) computes its scores.

    Attributes:
        encoder: the transformer over the joint input; segment ids 0 for the context, 1 for the candidate.
        head: W, D to 1, of a classifier to C; None: the encoder is a PublishedScorer, which gives scores.
        poly: the Poly-encoder of a residual one, else None.
    """

    poly: PolyEncoder | None

    def __init__(self, config: ModelConfig, encoder: Backbone, poly: PolyEncoder | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder
        self.head = nn.Linear(encoder.dim, config.head_classes or 1) if config.head == "linear" else None
        self.poly = None if poly is None else poly.requires_grad_(False).eval()

    @classmethod
    def build(cls, config: ModelConfig, backbone: Callable[[], Backbone]) -> Self:
        """Build it from new transformers; weights are still random."""
        return cls(config, backbone(), PolyEncoder.build(config, backbone) if config.residual else None)

    @property
    def longest_input(self) -> int:
        """Tokens of the longest sequence that the transformer reads: a context and a candidate."""
        return self.config.max_context_tokens + self.config.max_candidate_tokens

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all but the Poly-encoder: dropout must not touch its scores."""
        super().train(mode)
        if self.poly is not None:
            self.poly.eval()
        return self

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
