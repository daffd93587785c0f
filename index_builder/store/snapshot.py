"""A part of a generation with its updates up to a revision: what was built, without what they removed, with what they
added.

An update is one record for all parts. A part takes from it what is in its slots. It counts the rows that updates add to
other parts as well, because each row has its place in the whole pool: a row that an update adds takes the next one
after all rows of the pool, whatever part it is in.

Rows 0..N-1 are the generation's own. An upsert adds a row behind them, N, N + 1, ..., in the order of the updates, and
removes the row that had the id before. A row keeps its number as long as the generation is used, so equal scores keep
their order at every revision, and also after a compaction, which keeps the order of the rows.

What is stored of built and of added rows is joined as that of several parts is (`interleaved`). They are not searched
as two parts, because an index finds built rows without their scores, and both are scored in one go.

Added rows are in memory, in one buffer that all snapshots of a generation share. It only grows, and each snapshot sees
the part that it knows of. The buffer also holds when each row came and went, so that the snapshots of earlier revisions
can be made of a later one. Their words are in tables that never change; a few tables cover all rows.

An added row with the text of an earlier one has that one's vectors, also where the log holds others: two writers may
have encoded the text at the same time, or the generation was built after the update. So equal texts tie.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.generation.candidates import KnownTexts, interleaved
from polyrank.index_builder.generation.filters import (
    kinds_in,
    kinds_of,
    matching_places,
    matching_rows,
    names_in,
    names_of,
    reading,
    values_of,
)
from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.generation.slots import ALL, Slots
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.update_log import Update
from polyrank.model.lexical.table import WordTable, joined
from polyrank.model.representations import Additions, LateRows, Representations, row_places
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.reading import Steps

Rows = NDArray[np.int64]

_NONE: Rows = np.empty(0, np.int64)
# A table of words is joined with the one before it, unless that has more than so many times as many rows. So there are
# few tables (five for 100,000 rows that came one by one), and a row is copied some 8 times for each of them.
_STEP = 16
# A table of so many rows is made at a time, because its making takes some times the memory that it has in the end. A
# long log that is replayed adds many rows at once.
_ROWS_AT_ONCE = 8192


class WordValues(NamedTuple):
    """What the words of every row add to its score."""

    own: Additions  # of the generation's own rows, (N,)
    added: Additions  # of all rows ever added, (>= A,); `added` of the snapshot says which of them count

    def of(self, rows: Rows) -> NDArray[np.float32]:
        """The values of rows (n,) of the snapshot, (n,)."""
        own, added = self.own.values, self.added.values
        values = np.empty(len(rows), np.float32)
        is_own = rows < len(own)
        values[is_own], values[~is_own] = own[rows[is_own]], added[rows[~is_own] - len(own)]
        return values


class _AddedRows:
    """Every row that was ever added, also those removed since. One thread writes, others read rows they know of.

    `went`: at which revision rows went, also the generation's own; by their numbers.
    """

    def __init__(self, dim: int, dtype: np.dtype[Any], late: LateRows | None) -> None:
        self.candidates: list[Candidate] = []
        self.came: list[int] = []
        self.went: dict[int, int] = {}
        self.order: Rows = np.empty(0, np.int64)  # their places in the pool
        self.vectors: NDArray[Any] = np.empty((0, dim), dtype)
        # Those of the second stage, and where each candidate's begin; the last entry in use is the end.
        self.late: NDArray[Any] | None = None if late is None else np.empty((0, late.dim), dtype)
        self.late_starts: NDArray[np.int64] = np.zeros(1, np.int64)
        self.rows_of: dict[str, list[int]] = {}
        self.row_of_text: dict[str, int] = {}  # the first one
        self.longest = 0.0

    def extend(self, candidates: Sequence[Candidate], new: Representations, order: Rows, revision: int) -> None:
        start = len(self.candidates)
        self.order = _with_end(self.order, start, order)
        self.vectors = _with_end(self.vectors, start, new.first)
        if self.late is not None and new.late is not None and new.counts is not None:
            late_start = int(self.late_starts[start])
            self.late = _with_end(self.late, late_start, new.late)
            self.late_starts = _with_end(self.late_starts, start + 1, late_start + np.cumsum(new.counts))
        if len(new.first):
            self.longest = max(self.longest, float(np.linalg.norm(new.first.astype(np.float32), axis=1).max()))
        self.candidates.extend(candidates)
        self.came.extend([revision] * len(candidates))
        for row, candidate in enumerate(candidates, start):
            self.rows_of.setdefault(candidate.id, []).append(row)
            self.row_of_text.setdefault(candidate.text, row)

    def representations(self, added: Rows) -> Representations:
        return Representations(self.vectors[added], *self.rows_of_second_stage(added))

    def rows_of_second_stage(self, added: Rows) -> tuple[NDArray[Any] | None, NDArray[np.int64] | None]:
        """Those of added rows (N,), (R, D2), and how many each has, (N,); None without a second stage."""
        starts, late = self.late_starts, self.late  # in this order: what the starts know of is in the array
        if late is None:
            return None, None
        counts = starts[added + 1] - starts[added]
        return late[row_places(starts[added], counts)], counts

    def cut(self, count: int) -> None:
        """Drop the rows from `count` on. No snapshot knows of them: an error came before one was made."""
        for candidate in self.candidates[count:]:
            rows = self.rows_of.get(candidate.id, [])
            while rows and rows[-1] >= count:
                rows.pop()
            if self.row_of_text.get(candidate.text, -1) >= count:
                del self.row_of_text[candidate.text]
        del self.candidates[count:], self.came[count:]


def _with_end(array: NDArray[Any], start: int, new: NDArray[Any]) -> NDArray[Any]:
    """Write rows from `start` on; into a larger array if need be, and who reads the old one goes on with that."""
    end = start + len(new)
    if end > len(array):
        grown = np.empty((max(end, 2 * len(array), 64), *array.shape[1:]), array.dtype)
        grown[:start] = array[:start]
        array = grown
    array[start:end] = new
    return array


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A part of a generation at a revision; it never changes, and several threads may read it."""

    generation: Generation
    slots: Slots  # which ids it holds
    revision: int  # of the last update of the generation
    order_end: int  # the place in the pool of the next row that an update adds to any part
    removed: Rows  # the generation's own rows that are no longer in it; ascending, (R,)
    added: Rows  # the added rows that are still in it, counted from 0; ascending, (A,)
    _buffer: _AddedRows
    _buffer_end: int  # rows of the buffer
    _tables: tuple[WordTable, ...]  # the words of these rows, in their order; none where words do not count

    @classmethod
    def of(cls, generation: Generation) -> "Snapshot":
        embeddings = generation.embeddings
        buffer = _AddedRows(embeddings.dim, embeddings.dtype, generation.manifest.late)
        manifest = generation.manifest
        slots = manifest.parts[0].slots
        return cls(generation, slots, manifest.revision, manifest.order_end, _NONE, _NONE, buffer, 0, ())

    def updated(self, updates: Sequence[Update]) -> "Snapshot":
        """The snapshot after more updates. For one thread at a time, and on the latest snapshot only."""
        updates = [update for update in updates if update.revision > self.revision]
        if not updates:
            return self
        end, revision = self.order_end + sum(len(update.upserts) for update in updates), updates[-1].revision
        shares = _shares(updates, self.slots, self.order_end)
        updates = [share for share, _ in shares]
        self._buffer.cut(self._buffer_end)
        removed, alive = set[int](), dict.fromkeys(self.added.tolist())
        # The generation's first row of each text, if its vectors are on this machine.
        texts = [candidate.text for update in updates for candidate in update.upserts]
        is_here = self.generation.embeddings.is_whole
        own = iter(self.generation.texts.first_rows(texts).tolist() if is_here else [-1] * len(texts))
        for update, order in shares:
            gone_ids = [*update.deletes, *(candidate.id for candidate in update.upserts)]
            went = {row for row in self.generation.embeddings.ids.rows(gone_ids).tolist() if row >= 0} - removed
            removed |= went
            for candidate_id in gone_ids:
                row = (self._buffer.rows_of.get(candidate_id) or [-1])[-1]
                if row in alive:
                    del alive[row]
                    went.add(self._built + row)
            self._buffer.went.update(dict.fromkeys(went - self._buffer.went.keys(), update.revision))
            start = len(self._buffer.candidates)
            representations = self._tied(update, np.array([next(own) for _ in update.upserts], np.int64))
            self._buffer.extend(update.upserts, representations, order, update.revision)
            alive.update(dict.fromkeys(range(start, len(self._buffer.candidates))))
        return replace(
            self,
            revision=revision,
            order_end=end,
            removed=np.union1d(self.removed, np.array(sorted(removed), np.int64)),
            added=np.fromiter(alive, np.int64, len(alive)),
            _buffer_end=len(self._buffer.candidates),
            _tables=self._tables_with(self._buffer.candidates[self._buffer_end :]),
        )

    def _tied(self, update: Update, own: Rows) -> Representations:
        """What is kept of an update's candidates, of which the generation has the texts in its `own` rows (N,)."""
        number: dict[str, int] = {}
        places, added = np.arange(len(own)), np.full(len(own), -1, np.int64)
        for at in np.flatnonzero(own < 0).tolist():
            text = update.upserts[at].text
            added[at] = self._buffer.row_of_text.get(text, -1)
            places[at] = number.setdefault(text, at)
        is_own, is_added = own >= 0, added >= 0
        if not (is_own.any() or is_added.any() or len(number) < len(own)):
            return update.vectors
        parts, count = [update.vectors], len(own)
        if is_own.any():
            parts.append(self.generation.embeddings.representations(own[is_own]))
        if is_added.any():
            parts.append(self._buffer.representations(added[is_added]))
        for is_stored in (is_own, is_added):
            places[is_stored] = count + np.arange(is_stored.sum())
            count += is_stored.sum()
        return Representations.join(parts).take(places)

    def at(self, revision: int) -> "Snapshot":
        """This one as it was at a revision, or itself at its own and later ones; `order_end` stays."""
        if revision >= self.revision:
            return self
        buffer_end = bisect_right(self._buffer.came, revision, hi=self._buffer_end)
        # A copy, because another thread may be adding to it.
        went = np.array([row for row, gone_at in self._buffer.went.copy().items() if gone_at <= revision], np.int64)
        return replace(
            self,
            revision=revision,
            removed=np.sort(went[went < self._built]),
            added=np.setdiff1d(np.arange(buffer_end), went[went >= self._built] - self._built, assume_unique=True),
            _buffer_end=buffer_end,
        )

    def _tables_with(self, new: Sequence[Candidate]) -> tuple[WordTable, ...]:
        words = self.generation.words
        if words is None:
            return self._tables
        tables = [*self._tables]
        for start in range(0, len(new), _ROWS_AT_ONCE):
            texts = [candidate.text for candidate in new[start : start + _ROWS_AT_ONCE]]
            tables.append(WordTable.of(texts, words.table.statistics))
            while len(tables) > 1 and len(tables[-2]) <= _STEP * len(tables[-1]):
                tables[-2:] = [joined(tables[-2:])]
        return tuple(tables)

    def order(self, rows: Rows) -> Rows:
        """The places in the pool of rows, or of rows of an earlier revision; (N,)."""
        if self.generation.order is None:
            return rows
        is_added, own, added = self.split(rows)
        order = np.empty(len(rows), np.int64)
        order[~is_added], order[is_added] = self.generation.order[own], self._buffer.order[added]
        return order

    @property
    def _built(self) -> int:
        return self.generation.manifest.count

    @property
    def count(self) -> int:
        return self._built - len(self.removed) + len(self.added)

    @cached_property
    def all_rows(self) -> Rows:
        own_rows = np.delete(np.arange(self._built), self.removed)
        return np.concatenate([own_rows, self.numbered(self.added)])

    @property
    def row_end(self) -> int:
        """The number after the last row."""
        return self._built + self._buffer_end

    def rows_between(self, start: int, end: int) -> Rows:
        """The rows from `start` up to `end`, without `end`; ascending."""
        built = np.arange(min(start, self._built), min(end, self._built))
        first, last = np.searchsorted(self.removed, [start, end])
        own_rows = np.setdiff1d(built, self.removed[first:last], assume_unique=True)
        first, last = np.searchsorted(self.added, [start - self._built, end - self._built])
        return np.concatenate([own_rows, self.numbered(self.added[first:last])])

    def rows_within(self, slots: Slots) -> Rows:
        """The rows whose ids are within some slots; ascending."""
        if slots == self.slots:
            return self.all_rows
        own = self.generation.embeddings.ids.rows_between(*slots.hashes)
        holds = slots.holds([self._buffer.candidates[row].id for row in self.added.tolist()])
        return np.concatenate([np.setdiff1d(own, self.removed), self.numbered(self.added[holds])])

    @property
    def vectors_added(self) -> NDArray[Any]:
        """The vectors of all rows ever added, (>= A, D); `added` says which of them count."""
        return self._buffer.vectors[: self._buffer_end]

    @property
    def longest_added(self) -> float:
        """A length that no added vector exceeds."""
        return self._buffer.longest

    def word_values(self, conversation: Conversation) -> WordValues | None:
        """The lexical score of each row after a conversation: `LexicalScore.values`. None if words do not count."""
        words = self.generation.words
        if words is None:
            return None
        query = words.evidence.asked(conversation, words.table.statistics)
        own, *added = [query.values_in(table) for table in (words.table, *self._tables)]
        behind = np.concatenate([np.empty(0, np.float32), *added])[: self._buffer_end]
        return WordValues(*(Additions(words.evidence.late_weight, each) for each in (own, behind)))

    def rows(self, ids: Sequence[str]) -> Rows:
        """The rows of the ids, (N,); -1 for an id that is not there."""
        rows = self.generation.embeddings.ids.rows(ids)
        if len(self.removed):
            rows[np.isin(rows, self.removed)] = -1
        if self._buffer_end:
            for at, candidate_id in enumerate(ids):
                if rows[at] < 0 and (row := self._added_row(candidate_id)) is not None:
                    rows[at] = self._built + row
        return rows

    def rows_of_texts(self, texts: Sequence[str]) -> Rows:
        """A row that has, or had, each text, (N,); -1 for a text that no row has had."""
        rows = self.generation.texts.first_rows(texts)
        for at in np.flatnonzero(rows < 0).tolist():
            row = self._buffer.row_of_text.get(texts[at], self._buffer_end)
            if row < self._buffer_end:
                rows[at] = self._built + row
        return rows

    def stored_texts(self, texts: Sequence[str]) -> KnownTexts:
        """What is stored of texts, as far as it is on this machine."""
        rows = self.rows_of_texts(texts)
        here = np.flatnonzero((rows >= 0) & (self.generation.embeddings.is_whole | (rows >= self._built)))
        manifest = self.generation.manifest
        none = Representations.none(manifest.dim, manifest.late)
        return KnownTexts(here, self.representations(rows[here]) if len(here) else none)

    def _added_row(self, candidate_id: str) -> int | None:
        for row in reversed(self._buffer.rows_of.get(candidate_id, ())):
            if row < self._buffer_end:  # the latest row of the id that this snapshot knows of: still in it, or removed
                at = int(np.searchsorted(self.added, row))
                return row if at < len(self.added) and self.added[at] == row else None
        return None

    def split(self, rows: Rows) -> tuple[NDArray[np.bool_], Rows, Rows]:
        """Whether each row was added, (N,); the generation's own rows; the added ones, counted from 0."""
        is_added = rows >= self._built
        return is_added, rows[~is_added], rows[is_added] - self._built

    def numbered(self, added: Rows) -> Rows:
        """The numbers of added rows that are counted from 0."""
        return added + self._built

    def candidates(self, rows: Rows) -> list[Candidate]:
        is_added, own, added = self.split(np.asarray(rows, np.int64))
        if not len(added):
            return self.generation.candidates.rows(own)
        new = map(self._buffer.candidates.__getitem__, added.tolist())
        return list(interleaved([self.generation.candidates.rows(own), new], is_added))

    def reading(self, filter_: Mapping[str, Any]) -> Steps[None]:
        """Read what `matching` needs, and pause after every part; `matching` reads what is left."""
        return reading(self.generation.candidates, filter_)

    def matching(self, filter_: Mapping[str, Any]) -> Rows:
        """The rows that a filter lets through; ascending."""
        own = matching_rows(self.generation.candidates, filter_)
        if len(self.removed):
            own = np.setdiff1d(own, self.removed, assume_unique=True)
        places = matching_places([*self._metadata_added()], filter_)
        return np.concatenate([own, self.numbered(self.added[places])])

    def kinds(self, field: str) -> set[str]:
        """The kinds of values that a field has, as `filters.kinds_of` names them; `reading` must have come before."""
        added = (value for metadata in self._metadata_added() for value in values_of(metadata, field))
        kinds = kinds_in(self.generation.candidates, field, self.removed) | kinds_of(added)
        return kinds - {"objects"} or kinds

    @cached_property
    def names(self) -> set[str]:
        """The names of fields, also of those that updates have removed; `reading` must have come before."""
        return {*names_in(self.generation.candidates), *chain.from_iterable(map(names_of, self._metadata_added()))}

    def _metadata_added(self) -> Iterator[dict[str, Any]]:
        return (self._buffer.candidates[row].metadata for row in self.added.tolist())

    def vectors(self, rows: Rows) -> NDArray[Any]:
        """The vectors of rows from the matrix and the updates, (N, D); MatrixMissing where there is no matrix."""
        return self.merged(rows, Representations(self.generation.embeddings.gather(self.split(rows)[1]))).first

    def representations(self, rows: Rows) -> Representations:
        """The vectors of rows with what is kept for the second stage; errors as `vectors`, but not for added rows."""
        _, own, added = self.split(rows)
        if not len(own):
            return self._buffer.representations(added)
        return self.merged(rows, self.generation.embeddings.representations(own))

    def merged(self, rows: Rows, own: Representations) -> Representations:
        """What is stored of these rows, or their vectors alone, given that of the generation's own among them."""
        is_added, _, added = self.split(rows)
        if not len(added):
            return own
        new = Representations(self.vectors_added[added]) if own.late is None else self._buffer.representations(added)
        return Representations.interleaved([own, new], is_added)


def _shares(updates: Sequence[Update], slots: Slots, end: int) -> list[tuple[Update, Rows]]:
    """What is within the slots of each update, unless that is nothing, and the places of its upserts in the pool.

    The place of the first upsert of all is `end`.
    """
    shares = []
    for update in updates:
        order, share = end + np.arange(len(update.upserts)), update
        end += len(update.upserts)
        if slots != ALL:
            own = np.flatnonzero(slots.holds([candidate.id for candidate in update.upserts]))
            upserts = [update.upserts[at] for at in own.tolist()]
            share = Update(update.revision, upserts, update.vectors.take(own), slots.of(update.deletes))
            order = order[own]
        if share.upserts or share.deletes:
            shares.append((share, order))
    return shares
