"""The cut: which rows are looked at one by one for the numbers that a query adds to their scores.

The larger the number added to a row, the less its largest `s` must reach. The rows of a block must all reach the same,
what the largest number among them leaves. So rows with large numbers would make many others survive. They are looked at
first, in tiers of falling numbers, and the blocks then hold only rows below the cut.

A lower cut leaves more rows to the tiers, a higher one lets more rows of the blocks survive. A sample shows where both
together take the least time.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from polyrank.model.search.additions import Additions

_FIRST = 256  # rows in the first tier
_GROWTH = 8  # of the rows above a cut, from one tier to the next
_LOWEST = 1 / 8  # share of the rows that may lie above the cut
# Times in which so many survivors are scored: of a look at a row of a tier, and of a tier however few rows it has.
_LOOK = 1 / 4
_TIER = 300


class Cut:
    """Divides the rows of a pool by the numbers added to them.

    Attributes:
        height: the largest number of the rows that are left.
    """

    def __init__(self, additions: Additions, allowed: NDArray[np.bool_] | None) -> None:
        """Begin above all rows; those not allowed, (N,), belong to no tier."""
        self._values, self._late_weight = additions.values, additions.late_weight
        self._allowed = allowed
        self.height = float(self._values.max())

    def least(self, bar: float) -> float:
        """Return what the largest `s` of a row that is left must reach for its score to reach the bar."""
        return (bar - self.height) / self._late_weight

    def leaves(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say which of some rows (n,) are left, (n,)."""
        left: NDArray[np.bool_] = self._values[rows] <= self.height
        return left

    def tiers(
        self, sample: NDArray[np.int64], largest: NDArray[np.float32], bar: Callable[[], float]
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the rows of each tier, (n,), ascending; the cut is lowered below a tier when the next one is asked for.

        sample: some rows, (S,). largest: the largest `s` of each, approximately, (S,). bar: returns what a score must
        reach, which may be more after each tier.
        """
        if self._allowed is not None:
            sample, largest = sample[self._allowed[sample]], largest[self._allowed[sample]]
        values = self._values[sample]
        share = len(values) / len(self._values)
        cuts = np.sort(values)[::-1][_ranks(len(values), share)]
        for at, cut in enumerate(cuts):
            left = values <= self.height
            times = _times(np.r_[self.height, cuts[at:]], values[left], largest[left], bar(), self._late_weight)
            if times[0] <= times[1:].min() + _TIER * share:
                return
            tier = (self._values > cut) & (self._values <= self.height)
            yield np.flatnonzero(tier if self._allowed is None else tier & self._allowed)
            self.height = float(cut)


def _ranks(sampled: int, share: float) -> list[int]:
    """Return the places in the falling order of a sample, a share of the pool, at which it may be cut."""
    lowest = int(_LOWEST * sampled)
    ranks, rank = [], max(1, int(_FIRST * share))
    while rank < lowest:
        ranks.append(rank)
        rank *= _GROWTH
    return [*ranks, lowest] if lowest else []


def _times(
    cuts: NDArray[np.float64],
    values: NDArray[np.float32],
    largest: NDArray[np.float32],
    bar: float,
    late_weight: float,
) -> NDArray[np.float64]:
    """Estimate what each of the cuts (C,) takes for a sample with numbers added and largest `s`, both (n,)."""
    survives = largest >= ((bar - cuts) / late_weight)[:, None]
    times: NDArray[np.float64] = np.where(values > cuts[:, None], _LOOK, survives).sum(axis=1)
    return times
