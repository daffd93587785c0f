"""A part of a set at a revision: its generation with its share of the updates in the set's log.

An update is one record for all parts. A part takes from it what is in its slots. It counts the rows that updates add to
other parts as well, because each row has its place in the whole pool.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.scale.sets import PartSet, PoolPart, order_of
from polyrank.index_builder.scale.slots import Slots
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.index_builder.store.update_log import Update

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class UpdatedPart:
    """A part at a revision; it never changes, and several threads may read it.

    Attributes:
        slots: of the part.
        snapshot: of its generation. Its revision is that of the last update with something for this part.
        revision: of the last update of the set.
        order_end: the place in the pool of the next row that an update adds to any part.
        added_order: the places of all rows ever added to this part, (>= A,).
    """

    slots: Slots
    snapshot: Snapshot
    revision: int
    order_end: int
    added_order: Rows

    @classmethod
    def of(cls, made: PartSet, part: PoolPart, generation: Generation) -> "UpdatedPart":
        """A part of a set as it was built."""
        none = np.empty(0, np.int64)
        return cls(part.slots, Snapshot.of(generation), made.revision, made.order_end, none)

    def updated(self, updates: Sequence[Update]) -> "UpdatedPart":
        """The part after more updates of the set. For one thread at a time, and on the latest one only."""
        updates = [update for update in updates if update.revision > self.revision]
        if not updates:
            return self
        shares, added, end = [], [self.added_order], self.order_end
        for update in updates:
            own = np.flatnonzero(self.slots.holds([candidate.id for candidate in update.upserts]))
            deletes = self.slots.of(update.deletes)
            if len(own) or deletes:
                upserts = [update.upserts[at] for at in own.tolist()]
                shares.append(Update(update.revision, upserts, update.vectors.take(own), deletes))
            added.append(end + own)
            end += len(update.upserts)
        return replace(
            self,
            snapshot=self.snapshot.updated(shares),
            revision=updates[-1].revision,
            order_end=end,
            added_order=np.concatenate(added),
        )

    def order(self, rows: Rows) -> Rows:
        """The places in the pool of rows of the snapshot, or of one at an earlier revision; (N,)."""
        is_added, own, added = self.snapshot.split(rows)
        order = np.empty(len(rows), np.int64)
        order[~is_added], order[is_added] = order_of(self.snapshot.generation)[own], self.added_order[added]
        return order
