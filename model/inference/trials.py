"""Batches to try a compiled part with, and what must be true of its outputs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.model.architectures.batching import TokenBatch, pad
from polyrank.model.inference.backend import Forward
from polyrank.model.inference.parts import Part

# Outputs may be so far from torch's, by the norm of all: float32 was seen at 1e-6, fp16 at 0.0016.
TOLERANCE = 1e-4
# Tokens of sequences as they come: one alone, and a batch.
_USUAL = ([24], [48, 48, 40, 40, 32, 32, 24, 24])
# What breaks first: much padding, and more of it than a window of attention is wide. Longer ones would take too long.
_EXTREME = ([512, 1], [200, 24, 20])


def usual(part: Part) -> list[TokenBatch]:
    """Batches as they come; what is fast is fast on these."""
    return _random(part, _USUAL, False)


def extreme(part: Part) -> list[TokenBatch]:
    """Batches at the edge of what comes, with both segments."""
    return _random(part, _EXTREME, True)


def agree(forward: Forward, reference: Forward, batches: list[TokenBatch]) -> bool:
    """Whether the outputs are the reference's, but for rounding in float32."""
    return all(
        _distance(ours, theirs) <= TOLERANCE
        for batch in batches
        for ours, theirs in zip(forward(batch), reference(batch), strict=True)
    )


def are_finite(forward: Forward, batches: list[TokenBatch]) -> bool:
    """Whether the outputs are numbers."""
    return all(np.isfinite(each).all() for batch in batches for each in forward(batch))


def _random(part: Part, shapes: tuple[list[int], ...], has_segments: bool) -> list[TokenBatch]:
    rng = np.random.default_rng(0)
    batches = []
    for shape in shapes:
        texts = [rng.integers(part.vocabulary, size=min(each, part.max_tokens)).tolist() for each in shape]
        batches.append(pad(texts, part.pad_id, [len(each) // 2 for each in texts] if has_segments else None))
    return batches


def _distance(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Norm of the difference as a share of the norm; infinite where a number is not finite."""
    one, other = ours.astype(np.float64), theirs.astype(np.float64)
    distance = float(np.linalg.norm(one - other) / max(np.linalg.norm(other), np.finfo(np.float64).tiny))
    return distance if np.isfinite(distance) else np.inf
