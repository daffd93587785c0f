"""Bi-encoder: one vector a side, scored by their dot product (Humeau et al. 4.2)."""

import torch

from polyrank.model.architectures.attention import ContextCodes
from polyrank.model.architectures.batching import TokenBatch
from polyrank.model.architectures.towers import Towers


class BiEncoder(Towers):
    """`score = score_scale * red(T1(ctxt)) . red(T2(cand))`.

    A Bi-encoder is the Poly-encoder of one context vector: candidate attention over one vector is the dot product.
    """

    def encode_context(self, batch: TokenBatch) -> ContextCodes:
        """Return one context vector each, (B, 1, D), the score scale multiplied in."""
        vectors = self._reduce(self.context(batch), batch.mask)[:, None, :] * self.config.score_scale
        return ContextCodes(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device))
