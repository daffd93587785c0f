"""Bi-encoder: one vector for each side, scored by their dot product (Humeau et al. 4.2)."""

import torch
from torch import Tensor

from polyrank.model.architectures.attention import ContextCodes
from polyrank.model.architectures.late import LateEncoder


class BiEncoder(LateEncoder):
    """`score = score_scale * red(T1(ctxt)) . red(T2(cand))`.

    It is scored as a Poly-encoder with one context vector: candidate attention over one vector is the dot product.
    """

    def context_codes(self, states: Tensor, mask: Tensor) -> ContextCodes:
        """Return one vector for each context, (B, 1, D), with the score scale multiplied in."""
        vectors = self.reduce(states, mask)[:, None, :] * self.config.score_scale
        return ContextCodes(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device))
