"""Every candidate's score, as the paper writes it: what retrieval, mining and the service are compared with."""

import numpy as np
from numpy.typing import NDArray

from polyrank.model.representations import Additions


def paper_scores(
    matrix: NDArray[np.floating], codes: NDArray[np.float32], additions: Additions | None = None
) -> NDArray[np.float32]:
    """Attended context vector first, then its product with the candidate (Humeau et al. 4.4), in float64.

    Args:
        matrix: candidate embeddings, (N, D).
        codes: one context's vectors, (M, D), the score scale multiplied in.
        additions: what is added to the scores.

    Returns:
        Scores rounded to float32, (N,).
    """
    y, candidates = codes.astype(np.float64), matrix.astype(np.float64)
    s = candidates @ y.T
    weights = np.exp(s - s.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    scores = ((weights @ y) * candidates).sum(axis=1)
    if additions is not None:
        scores = additions.late_weight * scores + additions.values.astype(np.float64)
    return scores.astype(np.float32)
