"""The rows with the largest of N numbers, found without sorting or copying all of them."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]

_GROUPS = 8  # so many for each row that is wanted, so that few others reach the bar


class LargestRows(NamedTuple):
    """The rows with the largest values.

    Attributes:
        rows: (n,), largest value first; equal values in row order.
        values: theirs, (n,) float32.
        rest: the largest value of the other rows allowed; -inf: there are none.
    """

    rows: Rows
    values: NDArray[np.float32]
    rest: float

    def first(self, count: int) -> "LargestRows":
        """Return the first `count` rows, or all if there are no more."""
        if count >= len(self.rows):
            return self
        return LargestRows(self.rows[:count], self.values[:count], float(self.values[count]))


def largest_rows(values: NDArray[np.float32], count: int, allowed: NDArray[np.bool_] | None = None) -> LargestRows:
    """Find the rows with the largest values; at most `count`, which is at least 1.

    The values are dealt out to groups. The largest of each group are as many different rows as there are groups. So if
    the k-th largest of them is t, at least k rows reach t, and the k best are among those that do. Few others are: two
    passes over the values leave little more than k of them.

    Args:
        values: (N,), finite.
        count: how many rows are wanted.
        allowed: which rows may be returned, (N,); None: all.
    """
    if allowed is not None:
        values = np.where(allowed, values, np.float32(-np.inf))
    wanted = count + 1  # the last one is the largest of the rest
    least = _reached(values, wanted)
    rows = _largest(values, np.flatnonzero(values >= least if least > -np.inf else values > least), wanted)
    found = LargestRows(rows, values[rows], -np.inf)
    return found.first(count)


def _reached(values: NDArray[np.float32], wanted: int) -> float:
    """Return a number that at least so many values reach; -inf where it is not worth looking for one."""
    groups = _GROUPS * wanted
    size = len(values) // groups
    if size < 2:
        return -np.inf
    best = values[: size * groups].reshape(size, groups).max(axis=0)
    return float(np.partition(best, groups - wanted)[groups - wanted])


def _largest(values: NDArray[np.float32], rows: Rows, wanted: int) -> Rows:
    """Return the rows with the largest values of some rows, which are ascending; at most `wanted`, in order."""
    of_rows = values[rows]
    if len(rows) > wanted:  # without sorting them all: many can be equal
        last = np.partition(of_rows, len(rows) - wanted)[len(rows) - wanted]
        above = np.flatnonzero(of_rows > last)
        ties = np.flatnonzero(of_rows == last)[: wanted - len(above)]
        rows = rows[np.concatenate([above, ties])]
        of_rows = values[rows]
    return rows[np.lexsort((rows, -of_rows))]
