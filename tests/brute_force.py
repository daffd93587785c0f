"""Every candidate's score, as the paper writes it: what retrieval, mining and the service are compared with."""

import numpy as np
from numpy.typing import NDArray


def paper_scores(matrix: NDArray[np.floating], codes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Attended context vector first, then its product with the candidate (Humeau et al. 4.4), in float64.

    Args:
        matrix: candidate embeddings, (N, D).
        codes: one context's vectors, (M, D), the score scale multiplied in.

    Returns:
        Scores rounded to float32, (N,).
    """
    y, candidates = codes.astype(np.float64), matrix.astype(np.float64)
    s = candidates @ y.T
    weights = np.exp(s - s.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return ((weights @ y) * candidates).sum(axis=1).astype(np.float32)
