"""Candidates whose scores tie, and what a figure is expected to be over all orders of them.

Where scores tie, the order says nothing of the model. So no figure counts the order that candidates have in a file:
each is its expected value over random orders of tied candidates (McSherry and Najork 2008, "Computing information
retrieval performance measures efficiently in the presence of tied scores").
"""

from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Ties(NamedTuple):
    """A ranking as groups of candidates with equal scores, best first; within a group all orders are as likely.

    Attributes:
        sizes: how many candidates each group has, (G,).
        right: how many of them are right, (G,).
        gains: the sum of their gains, (G,).
    """

    sizes: NDArray[np.int64]
    right: NDArray[np.int64]
    gains: NDArray[np.float64]

    @classmethod
    def of(cls, scores: ArrayLike, gains: ArrayLike) -> "Ties":
        """Group candidates with these scores and gains, (C,) each; those with a gain above 0 are right.

        >>> Ties.of([2.0, 3.0, 2.0], [1, 0, 0]).found(2)
        0.5
        """
        numbers = np.asarray(gains, np.float64)
        values, group = np.unique(-np.asarray(scores), return_inverse=True)
        return cls(
            np.bincount(group, minlength=len(values)),
            np.bincount(group, numbers > 0, len(values)).astype(np.int64),
            np.bincount(group, numbers, len(values)).astype(np.float64),
        )

    def then(self, others: "Ties") -> "Ties":
        """Put these ahead of others."""
        return Ties(
            np.concatenate([self.sizes, others.sizes]),
            np.concatenate([self.right, others.right]),
            np.concatenate([self.gains, others.gains]),
        )

    def widened(self, size: int, gains: ArrayLike) -> "Ties":
        """Add candidates to the last group, which must be there: how many, and the gains of those that are right."""
        found = Ties(self.sizes.copy(), self.right.copy(), self.gains.copy())
        found.sizes[-1] += size
        found.right[-1] += np.count_nonzero(gains)
        found.gains[-1] += np.sum(gains)
        return found

    @property
    def first_right(self) -> tuple[int, int, int] | None:
        """How many are ahead of the first group with a right one, its size, and how many of it are right."""
        known = np.flatnonzero(self.right)
        if not len(known):
            return None
        group = known[0]
        return int(self.sizes[:group].sum()), int(self.sizes[group]), int(self.right[group])

    @property
    def tie_at_first(self) -> bool:
        """Whether several candidates, not all of them right, tie for the first place."""
        return bool(len(self.sizes) and self.sizes[0] > max(1, self.right[0]))

    def found(self, k: int) -> float:
        """Return the chance that a right one is among the first k: R@k of Humeau et al. 5.1 for one example.

        It is 1 less that of drawing wrong ones alone for the places that the group has there.
        """
        if self.first_right is None:
            return 0.0
        ahead, size, right = self.first_right
        places = min(max(0, k - ahead), size)
        ways = comb(size, places)
        return (ways - comb(size - right, places)) / ways

    def reciprocal(self, depth: int | None = None) -> float:
        """Return the mean of 1 / rank of the first right one, where a rank beyond the depth counts 0."""
        if self.first_right is None:
            return 0.0
        ahead, size, right = self.first_right
        most = size - right + 1  # places where the first right one can be
        places = np.arange(most if depth is None else min(most, max(0, depth - ahead)))
        here = right / (size - places)  # the chance of a right one, given wrong ones alone before
        wrong_before = np.cumprod(np.append(1.0, 1 - here)[: len(places)])
        return float((wrong_before * here / (ahead + 1 + places)).sum())

    def gain(self, k: int) -> float:
        """Return the mean of the discounted gain of the first k, where that at rank r counts 1 / log2(r + 1)."""
        discounts = np.append(0.0, np.cumsum(1 / np.log2(np.arange(2, k + 2))))
        ends = np.cumsum(self.sizes)
        within = discounts[np.minimum(ends, k)] - discounts[np.minimum(ends - self.sizes, k)]
        return float((self.gains / self.sizes * within).sum())

    def right_among(self, k: int) -> float:
        """Return the mean number of right ones among the first k."""
        before = np.cumsum(self.sizes) - self.sizes
        return float((self.right / self.sizes * np.clip(k - before, 0, self.sizes)).sum())
