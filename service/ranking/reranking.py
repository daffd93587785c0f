"""The second look: the first few in the order in which a cross-encoder, reading them with the context, puts them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from polyrank.service.ranking.values import RankedCandidate


def rerank(places: Sequence[RankedCandidate], scores: NDArray[np.float32]) -> list[RankedCandidate]:
    """Order places by their cross-encoder scores (N,); equal scores stay in the order given."""
    order = np.argsort(-scores, kind="stable").tolist()
    return [replace(places[at], cross=float(scores[at])) for at in order]
