"""What encoders that read context and candidate together share: one scalar for each pair."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Self

from torch import Tensor, nn

from polyrank.model.architectures.backbone import Backbone
from polyrank.model.architectures.poly import PolyEncoder
from polyrank.model.config import ModelConfig
from polyrank.model.text.sequences import Pairs

FIRST_STAGE = "poly"  # the architecture to whose scores a residual one adds


class PairEncoder(nn.Module, ABC):
    """Scores pairs by reading both texts together; its score of a pair is `own(ctxt, cand)`.

    A residual one scores `poly(ctxt, cand) + own(ctxt, cand)`, with a finished Poly-encoder that is not trained any
    further. A small Cross-encoder on little data ranks worse than the Poly-encoder before it, but makes other mistakes.
    Trained on top of the Poly-encoder's scores it begins near that ranking and learns what is missing. This module
    holds the Poly-encoder; FirstStage (polyrank.model.inference.passes) computes its scores.

    Attributes:
        encoder: the transformer; segment ids 0 for the context, 1 for the candidate.
        head: D to 1, of a classifier to C; None: the encoder is a PublishedScorer, which gives scores.
    """

    poly: PolyEncoder | None  # the Poly-encoder of a residual one, else None

    def __init__(self, config: ModelConfig, encoder: Backbone, poly: PolyEncoder | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder
        self.head = nn.Linear(encoder.dim, config.head_classes or 1) if config.head == "linear" else None
        self.poly = None if poly is None else poly.requires_grad_(False).eval()

    @classmethod
    def build(cls, config: ModelConfig, backbone: Callable[[], Backbone]) -> Self:
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

    @abstractmethod
    def batches(self, pairs: Pairs, budget: int) -> list[list[int]]:
        """Group the positions of pairs, those alike together, each group within a budget of padded tokens."""

    @abstractmethod
    def own_scores(self, pairs: Pairs, left_out: Sequence[Sequence[int]] = ()) -> Tensor:
        """Return what the head gives for each pair, (N,) float32, without a first stage's score.

        Of a classifier these are the logits of its classes, (N, C). `left_out`: for each pair, which places of its
        context nothing sees; all other tokens keep their positions. Not given: everything is seen.
        """
