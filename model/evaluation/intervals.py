"""Bootstrap intervals (Efron 1979): how far a figure would move with other examples.

Examples of one dialogue are not independent, so whole dialogues are drawn (the cluster bootstrap). All columns of one
call share every draw. The difference of two models over the same examples, given as a column, therefore gets a paired
interval, which does not depend on how hard the drawn examples are.
"""

from collections.abc import Hashable, Iterable

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
CONFIDENCE = 0.95
_DRAWN_AT_ONCE = 2**20  # group numbers held in memory at a time


def group_numbers(names: Iterable[Hashable]) -> NDArray[np.int64]:
    """Number the names from 0 in order of appearance; equal names get the same number, (examples,).

    >>> group_numbers(["b", "a", "b"])
    array([0, 1, 0])
    """
    number_of: dict[Hashable, int] = {}
    return np.array([number_of.setdefault(name, len(number_of)) for name in names], np.int64)


def intervals(values: NDArray[np.float64], groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute the 95 % percentile interval of each column's mean; the same for the same arguments.

    values: (examples, figures). groups: number of the dialogue that each example is part of, from 0 without a gap,
    (examples,). Returns low and high ends, (2, figures).
    """
    tail = (1 - CONFIDENCE) / 2
    ends: NDArray[np.float64] = np.quantile(resampled_means(values, groups), [tail, 1 - tail], axis=0)
    return ends


def resampled_means(values: NDArray[np.float64], groups: NDArray[np.int64], seed: int = 0) -> NDArray[np.float64]:
    """Compute the mean of each column in every resample, (RESAMPLES, figures).

    A resample is as many dialogues as there are, drawn with replacement; all columns share the draws.
    """
    n = int(groups.max()) + 1
    sums = np.zeros((n, values.shape[1] + 1))  # of each dialogue's examples; the last column counts them
    np.add.at(sums, groups, np.column_stack([values, np.ones(len(values))]))
    rng = np.random.default_rng(seed)
    at_once = max(1, _DRAWN_AT_ONCE // n)
    drawn = [_draw_counts(rng, min(at_once, RESAMPLES - start), n) @ sums for start in range(0, RESAMPLES, at_once)]
    totals = np.concatenate(drawn)
    means: NDArray[np.float64] = totals[:, :-1] / totals[:, -1:]
    return means


def _draw_counts(rng: np.random.Generator, resamples: int, n: int) -> NDArray[np.float64]:
    """Count how often each of n was drawn in n draws, (resamples, n)."""
    drawn = rng.integers(0, n, (resamples, n), dtype=np.int32)
    drawn += n * np.arange(resamples, dtype=np.int32)[:, None]  # one count for all rows
    return np.bincount(drawn.ravel(), minlength=resamples * n).reshape(resamples, n).astype(np.float64)
