"""Which candidates are in a set, at the last update that was read: told by ids alone, without the parts' vectors."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import GenerationCorrupt
from polyrank.index_builder.scale.sets import PartSet, SetStore
from polyrank.index_builder.scale.slots import slots_of
from polyrank.index_builder.store.update_log import Update
from polyrank.index_builder.vectors.ids import IdIndex
from polyrank.index_builder.vectors.local import IDS_FILE
from polyrank.model.errors import shortage_in


class Counts(NamedTuple):
    """How many candidates a set has.

    Attributes:
        of_parts: in each part, by its number.
        added: of all, those that updates added or replaced.
        removed: of those that were built, those that updates removed or replaced.
    """

    of_parts: tuple[int, ...]
    added: int
    removed: int


class Membership:
    """The ids that are in a set. For one thread at a time.

    What was built is looked up in the parts' `ids.index`, by memory mapping. What updates have changed is in memory.

    Args:
        store: of the set.
        made: the set.

    Raises:
        GenerationCorrupt: the ids of a part cannot be read.
        Shortage: they cannot be read at the moment.
    """

    def __init__(self, store: SetStore, made: PartSet) -> None:
        self._built = [part.count for part in made.parts]
        self._ends = [part.end_slot for part in made.parts]
        self._added: list[set[str]] = [set() for _ in made.parts]
        self._removed: list[set[str]] = [set() for _ in made.parts]
        try:
            self._ids = [IdIndex(store.part(part.slots).path(part.generation) / IDS_FILE) for part in made.parts]
        except (OSError, ValueError) as error:
            raise shortage_in(error) or GenerationCorrupt(made.id, f"the ids of its parts: {error}") from error

    def update(self, updates: Sequence[Update]) -> None:
        """Take in more updates; it does no harm if some were taken in before, as long as all after them follow."""
        for update in updates:
            for candidate_id, part, row in self._looked_up(update.deletes):
                self._remove(candidate_id, part, row)
            for candidate_id, part, row in self._looked_up([candidate.id for candidate in update.upserts]):
                self._remove(candidate_id, part, row)
                self._added[part].add(candidate_id)

    def _remove(self, candidate_id: str, part: int, row: int) -> None:
        self._added[part].discard(candidate_id)
        if row >= 0:
            self._removed[part].add(candidate_id)

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Those of the ids that are not there."""
        return [
            candidate_id
            for candidate_id, part, row in self._looked_up(ids)
            if candidate_id not in self._added[part] and (row < 0 or candidate_id in self._removed[part])
        ]

    def counts(self) -> Counts:
        """How many candidates there are."""
        changes = zip(self._built, self._added, self._removed, strict=True)
        return Counts(
            tuple(built + len(added) - len(removed) for built, added, removed in changes),
            sum(map(len, self._added)),
            sum(map(len, self._removed)),
        )

    def _looked_up(self, ids: Sequence[str]) -> list[tuple[str, int, int]]:
        """The ids with the number of the part of each, and its row among those built there; -1: there is none."""
        parts = np.searchsorted(self._ends, slots_of(ids), side="right")
        rows: NDArray[np.int64] = np.empty(len(ids), np.int64)
        for part in np.unique(parts).tolist():
            here = np.flatnonzero(parts == part)
            rows[here] = self._ids[part].rows([ids[at] for at in here.tolist()])
        return list(zip(ids, parts.tolist(), rows.tolist(), strict=True))
