"""Residual Cross-encoder: what full attention adds to the score of a finished Poly-encoder.

A small Cross-encoder on little data ranks worse than the Poly-encoder before it, yet errs elsewhere. Trained on top of
the Poly-encoder's score, which stays as it is, it begins with or near that ranking and learns what is missing from it.
"""

from typing import Self

import torch
from torch import Tensor

from polyrank.model.architectures.attention import poly_scores
from polyrank.model.architectures.backbone import Backbone
from polyrank.model.architectures.batching import pad
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.poly import PolyEncoder
from polyrank.model.config import ModelConfig
from polyrank.model.text.pairs import Pairs


class ResidualEncoder(CrossEncoder):
    """`score = poly(ctxt, cand) + first(T(ctxt, cand)) W`; nothing trains the Poly-encoder.

    Attributes:
        encoder, head: as `CrossEncoder`.
        poly: the Poly-encoder.
    """

    def __init__(self, config: ModelConfig, encoder: Backbone, poly: PolyEncoder) -> None:
        super().__init__(config, encoder)
        self.poly = poly.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all but the Poly-encoder, whose scores no dropout may touch."""
        super().train(mode)
        self.poly.eval()
        return self

    def score_pairs(self, pairs: Pairs) -> Tensor:
        """Return one score a pair, (B,) float32."""
        return self._poly_scores(pairs) + super().score_pairs(pairs)

    @torch.no_grad()
    def _poly_scores(self, pairs: Pairs) -> Tensor:
        """The Poly-encoder's scores, (B,); a text that goes with several contexts is encoded once."""
        device = self.head.weight.device
        columns = {text: column for column, text in enumerate(dict.fromkeys(map(tuple, pairs.candidates)))}
        codes = self.poly.encode_context(pad(pairs.contexts, self.poly.context.pad_id).to(device))
        embeddings = self.poly.encode_candidates(pad(list(columns), self.poly.candidate.pad_id).to(device))
        return poly_scores(codes, embeddings)[pairs.owners, [columns[tuple(each)] for each in pairs.candidates]]
