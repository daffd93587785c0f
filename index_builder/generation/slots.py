"""Which part of a pool a candidate belongs to.

The first 12 bits of an id's hash are its slot, 0..4095. A part holds the candidates of a range of slots, so which part
a candidate belongs to depends on its id alone. Hashes are spread evenly, and parts are of about the same size.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.vectors.local import hash_id

SLOTS = 4096
_SHIFT = 52  # of the 64 bits of a hash


class Slots(NamedTuple):
    """A range of slots: from `first` up to `end`, without `end`."""

    first: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.first:04d}-{self.end:04d}"

    @property
    def hashes(self) -> tuple[int, int]:
        """The first hash of an id in the range, and the last one."""
        return self.first << _SHIFT, (self.end << _SHIFT) - 1

    def holds(self, ids: Sequence[str]) -> NDArray[np.bool_]:
        slots = slots_of(ids)
        return (slots >= self.first) & (slots < self.end)

    def of(self, ids: Sequence[str]) -> list[str]:
        return [ids[at] for at in np.flatnonzero(self.holds(ids)).tolist()]


ALL = Slots(0, SLOTS)


def ranges(parts: int) -> list[Slots]:
    """Cut all slots into so many ranges, 1..MOST_PARTS, whose sizes differ by 1 at most."""
    ends = [part * SLOTS // parts for part in range(parts + 1)]
    return [Slots(first, end) for first, end in pairwise(ends)]


def slots_of(ids: Sequence[str]) -> NDArray[np.uint16]:
    """Return the slot of each id, (N,)."""
    return np.fromiter((hash_id(each) >> _SHIFT for each in ids), np.uint16, len(ids))
