"""A generation at a revision: what it was built with, without what updates removed, and with what they added.

Rows 0..N-1 are the generation's own. An upsert adds a row behind them, N, N + 1, ..., in the order of the updates, and
removes the row that had the id before. Rows keep their numbers as long as the generation lives, so that ties break the
same way at every revision, and after a compaction, which keeps the order.

What was added lies in memory, in one buffer that all snapshots share: it only grows, and each snapshot sees its part.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.pool.pool import Candidate
from polyrank.index_builder.store.filters import matching_places, matching_rows
from polyrank.index_builder.store.generation import Generation
from polyrank.index_builder.store.update_log import Update

Rows = NDArray[np.int64]

_NONE: Rows = np.empty(0, np.int64)


class _Added:
    """Every row that was ever added, the dead ones too; for one writer, and readers that know how much they may see."""

    def __init__(self, dim: int, dtype: np.dtype[Any]) -> None:
        self.candidates: list[Candidate] = []
        self.vectors: NDArray[Any] = np.empty((0, dim), dtype)
        self.rows_of: dict[str, list[int]] = {}
        self.longest = 0.0

    def extend(self, candidates: Sequence[Candidate], vectors: NDArray[Any]) -> None:
        start = len(self.candidates)
        end = start + len(candidates)
        if end > len(self.vectors):
            grown = np.empty((max(end, 2 * len(self.vectors), 64), self.vectors.shape[1]), self.vectors.dtype)
            grown[:start] = self.vectors[:start]
            self.vectors = grown  # a reader keeps the buffer that it has
        self.vectors[start:end] = vectors
        if len(vectors):
            self.longest = max(self.longest, float(np.linalg.norm(vectors.astype(np.float32), axis=1).max()))
        self.candidates.extend(candidates)
        for row, candidate in enumerate(candidates, start):
            self.rows_of.setdefault(candidate.id, []).append(row)

    def cut(self, count: int) -> None:
        """Forget the rows from `count` on, which no snapshot has seen: an error came before one was made of them."""
        for candidate in self.candidates[count:]:
            rows = self.rows_of.get(candidate.id, [])
            while rows and rows[-1] >= count:
                rows.pop()
        del self.candidates[count:]


class Snapshot:
    """A generation at a revision; never changes, and may be read from several threads.

    Attributes:
        generation: what was built.
        revision: of the last update that is in it.
        removed: the generation's own rows that are in it no more; ascending, (R,).
        added: the rows added that are still in it, counted from 0; ascending, (A,).
    """

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.revision = generation.manifest.revision
        self.removed = self.added = _NONE
        embeddings = generation.embeddings
        self._built = embeddings.count()
        self._all = _Added(embeddings.dim, embeddings.dtype)
        self._vectors, self._seen, self._changes = self._all.vectors, 0, 0

    def updated(self, updates: Sequence[Update]) -> "Snapshot":
        """The snapshot after more updates. For one thread at a time, and on the latest snapshot only."""
        updates = [update for update in updates if update.revision > self.revision]
        if not updates:
            return self
        self._all.cut(self._seen)
        after = object.__new__(Snapshot)
        after.generation, after._built, after._all = self.generation, self._built, self._all
        removed, alive = set[int](), dict.fromkeys(self.added.tolist())
        for update in updates:
            changed = [*update.deletes, *(each.id for each in update.upserts)]
            removed.update(self.generation.embeddings.ids.rows(changed).tolist())
            for candidate_id in changed:
                alive.pop((self._all.rows_of.get(candidate_id) or [-1])[-1], None)
            start = len(self._all.candidates)
            self._all.extend(update.upserts, update.vectors)
            alive.update(dict.fromkeys(range(start, len(self._all.candidates))))
        after.revision = updates[-1].revision
        after._changes = self._changes + sum(len(update.upserts) + len(update.deletes) for update in updates)
        after.removed = np.union1d(self.removed, np.array(sorted(removed - {-1}), np.int64))
        after.added = np.fromiter(alive, np.int64, len(alive))
        after._vectors, after._seen = self._all.vectors, len(self._all.candidates)
        return after

    @property
    def count(self) -> int:
        """How many candidates there are."""
        return self._built - len(self.removed) + len(self.added)

    @property
    def changed(self) -> int:
        """How many upserts and deletions there were, of the same candidates or of none too: the log grows with them."""
        return self._changes

    @property
    def vectors_added(self) -> NDArray[Any]:
        """Of all rows ever added, (>= A, D); `added` tells which count."""
        return self._vectors[: self._seen]

    def rows(self, ids: Sequence[str]) -> Rows:
        """The rows of the ids, (N,); -1 for an id that is not there."""
        rows = self.generation.embeddings.ids.rows(ids)
        if len(self.removed):
            rows[np.isin(rows, self.removed)] = -1
        if self._seen:
            for at, candidate_id in enumerate(ids):
                if rows[at] < 0 and (row := self._row_added(candidate_id)) is not None:
                    rows[at] = self._built + row
        return rows

    def _row_added(self, candidate_id: str) -> int | None:
        for row in reversed(self._all.rows_of.get(candidate_id, ())):
            if row < self._seen:  # the latest that this snapshot knows of: it is in it, or was removed
                place = int(np.searchsorted(self.added, row))
                return row if place < len(self.added) and self.added[place] == row else None
        return None

    def split(self, rows: Rows) -> tuple[NDArray[np.bool_], Rows, Rows]:
        """Whether each row was added, (N,); the generation's own rows; those added, counted from 0."""
        is_added = rows >= self._built
        return is_added, rows[~is_added], rows[is_added] - self._built

    def numbered(self, added: Rows) -> Rows:
        """Rows added, counted from 0, by their numbers."""
        return added + self._built

    def candidates(self, rows: Rows) -> list[Candidate]:
        """The candidates of these rows, in the order asked."""
        is_added, own, added = self.split(np.asarray(rows, np.int64))
        built, new = iter(self.generation.candidates.rows(own)), iter(added.tolist())
        return [self._all.candidates[next(new)] if each else next(built) for each in is_added.tolist()]

    def matching(self, filter_: Mapping[str, Any]) -> Rows:
        """The rows that a filter lets through; ascending."""
        own = matching_rows(self.generation.candidates, filter_)
        if len(self.removed):
            own = np.setdiff1d(own, self.removed, assume_unique=True)
        places = matching_places([self._all.candidates[row].metadata for row in self.added.tolist()], filter_)
        return np.concatenate([own, self.numbered(self.added[places])])

    @property
    def longest_added(self) -> float:
        """No vector that was added is longer."""
        return self._all.longest

    @cached_property
    def all_rows(self) -> Rows:
        """Every row, ascending; (N,)."""
        built = np.delete(np.arange(self._built), self.removed)
        return np.concatenate([built, self.numbered(self.added)])

    def vectors(self, rows: Rows) -> NDArray[Any]:
        """The vectors of these rows as the disk has them, in the order asked; (N, D).

        Raises:
            MatrixMissing: it does not have those built.
        """
        return self.merged(rows, self.generation.embeddings.gather(self.split(rows)[1]))

    def merged(self, rows: Rows, own_vectors: NDArray[Any]) -> NDArray[Any]:
        """The vectors of these rows, (N, D), of which those of the generation's own are given."""
        is_added, _, added = self.split(rows)
        if not len(added):
            return own_vectors
        vectors = np.empty((len(rows), self._vectors.shape[1]), self._vectors.dtype)
        vectors[~is_added], vectors[is_added] = own_vectors, self._vectors[added]
        return vectors
