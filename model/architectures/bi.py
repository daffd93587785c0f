"""Bi-encoder: one vector for each side, scored by their dot product (Humeau et al. 4.2)."""

from torch import Tensor

from polyrank.model.architectures.attention import ContextCodes, one_vector_each
from polyrank.model.architectures.late import LateEncoder


class BiEncoder(LateEncoder):
    """`score = score_scale * red(T1(ctxt)) . red(T2(cand))`.

    It is scored as a Poly-encoder with one context vector: candidate attention over one vector is the dot product.
    """

    def context_codes(self, states: Tensor, mask: Tensor) -> ContextCodes:
        """Return one vector for each context, (B, 1, D), with the score scale multiplied in."""
        return one_vector_each(self.reduce(states, mask) * self.config.score_scale)
