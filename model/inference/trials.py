"""Trials of a compiled part: batches to run it on, and checks of its outputs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.model.architectures.batching import TokenBatch, pad
from polyrank.model.inference.backend import Forward
from polyrank.model.inference.parts import Part

# Largest relative distance from torch's outputs, by norm: float32 was seen at 1e-6, fp16 at 0.0016.
TOLERANCE = 1e-4
# Lengths of usual batches in tokens: one sequence alone, and several.
_USUAL = ([24], [48, 48, 40, 40, 32, 32, 24, 24])
# Lengths that fail first: much padding, and more of it than an attention window is wide. Longer ones take too long.
_EXTREME = ([512, 1], [200, 24, 20])


def usual(part: Part) -> list[TokenBatch]:
    """Batches like those of real requests; speed is measured on these."""
    return _random(part, _USUAL, False)


def extreme(part: Part) -> list[TokenBatch]:
    """Batches of the most unequal lengths, with both segments."""
    return _random(part, _EXTREME, True)


def agree(forward: Forward, reference: Forward, batches: list[TokenBatch]) -> bool:
    """Whether the outputs are the reference's, within rounding in float32."""
    return all(
        _distance(ours, theirs) <= TOLERANCE
        for batch in batches
        for ours, theirs in zip(forward(batch), reference(batch), strict=True)
    )


def are_finite(forward: Forward, batches: list[TokenBatch]) -> bool:
    """Whether all outputs are finite numbers."""
    return all(np.isfinite(output).all() for batch in batches for output in forward(batch))


def _random(part: Part, shapes: tuple[list[int], ...], has_segments: bool) -> list[TokenBatch]:
    rng, backbone = np.random.default_rng(0), part.backbone()
    batches = []
    for shape in shapes:
        texts = [rng.integers(backbone.vocabulary, size=min(length, backbone.max_tokens)).tolist() for length in shape]
        batches.append(pad(texts, backbone.pad_id, [len(text) // 2 for text in texts] if has_segments else None))
    return batches


def _distance(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Norm of the difference, as a share of the reference's norm; infinite where a number is not finite."""
    one, other = ours.astype(np.float64), theirs.astype(np.float64)
    distance = float(np.linalg.norm(one - other) / max(np.linalg.norm(other), np.finfo(np.float64).tiny))
    return distance if np.isfinite(distance) else np.inf
