"""Bi-encoder: one vector for each side, scored by their dot product (Humeau et al. 4.2)."""

from polyrank.model.architectures.vector import VectorEncoder


class BiEncoder(VectorEncoder):
    """`score = score_scale * red(T1(ctxt)) . red(T2(cand))`.

    It is scored as a Poly-encoder with one context vector: candidate attention over one vector is the dot product.
    """
