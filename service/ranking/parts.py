"""What a request is answered from: a pool as a list of parts, at least one, and the model that made its vectors.

A part is in this process (retrieval.py), or shards hold it (service/scale/remote_part.py). Nothing else tells the two
apart. A request keeps the parts and the revision that it began with, so no answer mixes two generations, or has an
update in one part and not in another.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.generation.candidates import KnownTexts
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.generation.slots import Slots, slots_of
from polyrank.index_builder.generation.words import Words
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.membership import Counts
from polyrank.index_builder.store.pages import Page
from polyrank.index_builder.store.unmatched import Looked
from polyrank.index_builder.store.update_log import Update, UpdateLog
from polyrank.model.representations import Representations
from polyrank.model.text.assembly import Conversation
from polyrank.service.caching.vector_cache import TextCache
from polyrank.service.errors import ShardsMissing
from polyrank.service.live.models import VectorScorer
from polyrank.service.live.searchable import SearchStatus
from polyrank.service.ranking.runtime import Runtime
from polyrank.service.ranking.values import Hits, PoolQuery
from polyrank.service.scheduling.forwards import ContextOnce
from polyrank.service.scheduling.stages import Journey

Rows = NDArray[np.int64]


class GatherStored(Protocol):
    """Fetches what the model made of candidates of a stock, by their numbers in it, (N,)."""

    def __call__(self, numbers: Rows, first_only: bool = False) -> tuple[Representations, bool]:
        """Return it, or their vectors alone, and whether the caches answered."""


class PartMissing(Exception):  # what happened, not what went wrong
    """A part gives no answer in time."""


class Lookup(NamedTuple):
    """Which candidates of a part are asked for, and what of them."""

    rows: Rows | None = None  # in the part; None: `ids` or `texts` say which
    ids: Sequence[str] = ()
    texts: Sequence[str] = ()  # any candidate that has, or had, each of them
    with_candidates: bool = False
    with_vectors: bool = False
    conversation: Conversation | None = None  # also return the lexical scores after it


@dataclass(frozen=True, slots=True, eq=False)
class Stock:
    """What is stored of candidates; of what is here, that is read on the threads "candidates" when it is asked for."""

    positions: Rows  # of those that are there, among those asked for, (n,), ascending
    # Their lexical scores as in a search, (n,); None: words do not count, or were not asked for.
    words: NDArray[np.float32] | None
    longest: float  # a length that no stored vector exceeds
    candidates: Callable[[Rows], list[Candidate]]  # returns some of them, counted from 0 to n - 1
    gather: GatherStored
    # The numbers of the parts that did not answer; what they hold counts as not there.
    lost: frozenset[int] = frozenset()

    @property
    def every(self) -> Rows:
        """All of them, counted from 0."""
        return np.arange(len(self.positions))


class Part(Protocol):
    """A part of a pool at a revision. Its methods that wait raise PartMissing where it gives no answer in time."""

    @property
    def slots(self) -> Slots:
        """Which candidates it holds."""

    @property
    def counts(self) -> Counts:
        """How many these are."""

    @property
    def search_status(self) -> SearchStatus:
        """How they are found."""

    @property
    def is_here(self) -> bool:
        """Whether what is stored is read without asking another process."""

    @property
    def has_matrix(self) -> bool:
        """Whether the vectors are on the disk, so that the part can be compacted."""

    def updated(self, updates: Sequence[Update]) -> "Part":
        """Return it after more updates of the pool; for one thread at a time, and on the latest one only."""

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Return those of the ids, which are of its slots, that are not there; for one thread at a time."""

    def texts_here(self, texts: Sequence[str]) -> KnownTexts | None:
        """Return what is stored of texts; None: to ask for it would take longer than to encode them."""

    async def search(self, runtime: Runtime, query: PoolQuery, context: ContextOnce, journey: Journey) -> Hits:
        """Find the best `query.depth` candidates."""

    async def read(self, runtime: Runtime, lookup: Lookup, journey: Journey) -> Stock:
        """Look candidates up by their rows, their ids or their texts."""

    async def page(
        self, runtime: Runtime, first: int, limit: int, filter_: Mapping[str, Any] | None, journey: Journey
    ) -> Page:
        """List candidates from a row on; see `pages.page`."""

    async def looked(self, runtime: Runtime, filter_: Mapping[str, Any], journey: Journey) -> Looked:
        """Look at what a filter asks for; see `unmatched.looking`."""


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """How many candidates a pool has at a revision, and how many changes led there."""

    revision: int
    changes: int  # upserts and deletions so far, repeated and ineffective ones too
    of_parts: tuple[Counts, ...]  # how many candidates each part has

    @property
    def count(self) -> int:
        """The number of candidates."""
        return sum(part.count for part in self.of_parts)

    @property
    def added(self) -> int:
        """Of all, those that updates added or replaced."""
        return sum(part.added for part in self.of_parts)

    @property
    def removed(self) -> int:
        """Of those that were built, those that updates removed or replaced."""
        return sum(part.removed for part in self.of_parts)


@dataclass(frozen=True, slots=True, eq=False)
class Facts:
    """What a generation says of itself."""

    id: str
    manifest: Manifest  # where there are several parts, index and recall are those of the part with the lowest recall
    words: Words | None  # how words count, with the statistics of the whole pool; the table is that of the first part


@dataclass(frozen=True, slots=True, eq=False)
class Serving:
    """What a request is answered from, from its beginning to its end. It never changes; an update makes a new one."""

    generation: Facts
    snapshot: PoolSnapshot
    parts: tuple[Part, ...]  # by their slots, ascending; together they have all of them
    ranker: VectorScorer  # the model that made the vectors
    log: UpdateLog
    texts: TextCache | None  # vectors of texts that came with earlier requests; None: every text is encoded
    loaded_at: float  # seconds since the epoch
    checksum: int = 0  # of the updates in the snapshot; 0: there are none

    @property
    def search_status(self) -> SearchStatus:
        """How candidates are found now: a GPU that fails gives way to the CPU.

        Where parts differ, one in which a faster search failed is told of, else one that has an index.
        """
        statuses = [part.search_status for part in self.parts]
        status = min(statuses, key=lambda each: 0 if each.fallback else 1 if each.kind == "index" else 2)
        if len(statuses) == 1 and self.parts[0].is_here:
            return status
        where = "" if self.parts[0].is_here else " on shards"
        return status._replace(why=f"{statuses.count(status)} of {len(statuses)} parts{where}: {status.why}")

    def by_part(self, ids: Sequence[str]) -> dict[int, NDArray[np.int64]]:
        """Return the positions of ids, by the number of the part that would hold them; it has one at least."""
        if len(self.parts) == 1:
            return {0: np.arange(len(ids))} if ids else {}
        ends = np.array([part.slots.end for part in self.parts])
        number = np.searchsorted(ends, slots_of(ids), side="right")
        return {part: np.flatnonzero(number == part) for part in np.unique(number).tolist()}

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Return those of the ids that are not there, in their order; for one thread at a time."""
        absent: set[str] = set()
        for part, positions in self.by_part(ids).items():
            absent.update(self.parts[part].missing([ids[at] for at in positions.tolist()]))
        return [each for each in ids if each in absent]

    def caught_up(self) -> "Serving":
        """Return it with the updates written since; for one thread at a time."""
        updates = list(self.log.read())
        if not updates:
            return self
        try:
            parts = tuple(part.updated(updates) for part in self.parts)
        except BaseException:
            self.log.unread()
            raise
        changes = sum(len(update.upserts) + len(update.deletes) for update in updates)
        before, counts = self.snapshot, tuple(part.counts for part in parts)
        snapshot = PoolSnapshot(updates[-1].revision, before.changes + changes, counts)
        return replace(self, snapshot=snapshot, parts=parts, checksum=self.log.checksum)

    def share_without(self, missing: Collection[int]) -> float:
        """Return the share of the candidates that is on other parts than these, given by their numbers."""
        counts = [part.count for part in self.snapshot.of_parts]
        return 1.0 - sum(counts[part] for part in missing) / max(1, sum(counts))

    def searched_without(self, missing: Collection[int], least: float) -> float:
        """Return the share that `share_without` does; raises ShardsMissing where it is below `least`, or nothing."""
        share = self.share_without(missing)
        if missing and (share < least or len(missing) == len(self.parts)):
            raise self.shards_missing(missing)
        return share

    def shards_missing(self, missing: Collection[int]) -> ShardsMissing:
        """Return the error that names missing parts, given by their numbers."""
        return ShardsMissing([self.parts[part].slots.name for part in sorted(missing)], self.share_without(missing))
