"""Numbers of all shapes that a query can add to the scores of a pool's rows."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from polyrank.model.representations import Additions

Rng = np.random.Generator


def _tail(n: int, rng: Rng) -> NDArray[np.float64]:
    """A few rows have many words of the context, most have one or two."""
    return rng.exponential(0.5, n) + np.where(rng.random(n) < 0.05, rng.uniform(2, 6, n), 0)


VALUES: dict[str, Callable[[int, Rng], NDArray[np.float64]]] = {
    "zeros": lambda n, _: np.zeros(n),
    "all equal": lambda n, rng: np.full(n, rng.normal() * 10),
    "all equal and huge": lambda n, _: np.full(n, -1e7),
    "a few rows": lambda n, rng: np.where(rng.random(n) < 0.03, 3.5, 0),
    "half of the rows": lambda n, rng: np.where(rng.random(n) < 0.5, 2, 0) + 0.1 * rng.random(n),
    "a tail": _tail,
    "negative": lambda n, rng: -_tail(n, rng),
    "a little for each": lambda n, rng: rng.uniform(-0.1, 0.1, n),
    "one far above": lambda n, rng: np.where(np.arange(n) == rng.integers(n), 1e6, rng.normal(size=n)),
    "some far above": lambda n, rng: np.where(rng.random(n) < 0.2, 1e6, 0) + rng.normal(size=n),
    "one far below": lambda n, rng: np.where(np.arange(n) == rng.integers(n), -1e30, rng.normal(size=n)),
    "of all sizes": lambda n, rng: rng.normal(size=n) * 10.0 ** rng.integers(-30, 30, n),
}
LATE_WEIGHTS = (1.0, 0.83, 1e-3, 1e3)


def additions_of(kind: str, late_weight: float, n: int, rng: Rng) -> Additions:
    return Additions(late_weight, VALUES[kind](n, rng).astype(np.float32))
