"""Which candidates are in a part, at the last update that was read: told by ids alone, without the part's vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from polyrank.index_builder.generation.slots import Slots
from polyrank.index_builder.store.update_log import Update
from polyrank.index_builder.vectors.local import IDS_FILE, IdIndex


@dataclass(frozen=True, slots=True)
class Counts:
    """How many candidates a part has."""

    count: int
    added: int  # of all, those that updates added or replaced
    removed: int  # of those that were built, those that updates removed or replaced


class Membership:
    """The ids that are in a part. For one thread at a time.

    What was built is looked up in `ids.index`, by memory mapping. What updates have changed is in memory.
    """

    def __init__(self, directory: Path, slots: Slots, built: int) -> None:
        self._slots, self._built = slots, built
        self._added, self._removed = set[str](), set[str]()
        self._ids = IdIndex(directory / IDS_FILE)

    def update(self, updates: Sequence[Update]) -> None:
        """Take in more updates; it does no harm if some were taken in before, as long as all after them follow."""
        for update in updates:
            self._remove(self._slots.of(update.deletes))
            upserts = self._slots.of([candidate.id for candidate in update.upserts])
            self._remove(upserts)
            self._added.update(upserts)

    def _remove(self, ids: Sequence[str]) -> None:
        self._added.difference_update(ids)
        rows = self._ids.rows(ids).tolist()
        self._removed.update(each for each, row in zip(ids, rows, strict=True) if row >= 0)

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Those of the ids, which are of the part's slots, that are not there."""
        rows = self._ids.rows(ids).tolist()
        return [
            each
            for each, row in zip(ids, rows, strict=True)
            if each not in self._added and (row < 0 or each in self._removed)
        ]

    def counts(self) -> Counts:
        count = self._built + len(self._added) - len(self._removed)
        return Counts(count, len(self._added), len(self._removed))
