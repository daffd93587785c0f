"""What is served of a pool that is cut into parts: the model and a set, but no vectors. Shards hold these.

A request keeps the set and the revision that it began with. Both travel in every call of a shard. So no answer mixes
two sets, or has an update in one part and not in another.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.generation.texts import KnownTexts
from polyrank.index_builder.generation.words import Words
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.scale.membership import Counts, Membership
from polyrank.index_builder.scale.sets import PartSet
from polyrank.index_builder.store.unmatched import Looked
from polyrank.index_builder.store.update_log import UpdateLog
from polyrank.model.representations import Representations
from polyrank.model.text.assembly import Conversation
from polyrank.service.caching.vector_cache import TextCache
from polyrank.service.errors import ShardsMissing
from polyrank.service.live.models import LateScorer
from polyrank.service.live.serving import SearchStatus, Serving
from polyrank.service.observe.labels import Plan
from polyrank.service.ranking.values import RankRequest

Rows = NDArray[np.int64]

# A stage may take so much of the time left; the rest is for the stages after it, the last of which fetches the texts.
SHARE_OF_TIME = 0.8


@dataclass(frozen=True, slots=True, eq=False)
class PoolFound:
    """The best candidates of the parts that answered.

    Attributes:
        order: their places in the pool, best first, (n,); equal scores are in this order.
        places: of each the number of its part in the set, and its row there, (n, 2).
        scores: (n,).
        lexical: the parts of the scores by words, (n,); None: they do not count.
        looked_at: how many candidates were scored or searched to find them.
        bound: no other candidate of these parts scores more than this; -inf: there is no other.
        missing: the numbers of the parts that did not answer.
        reduced: fewer candidates were retrieved than asked for, because time was short.
        candidates: those found; None: they have to be fetched.
        looked: what these parts have seen of a filter that lets nothing through; None: it lets something through.
    """

    order: Rows
    places: NDArray[np.int64]
    scores: NDArray[np.float32]
    lexical: NDArray[np.float32] | None
    looked_at: int
    bound: float
    plan: Plan
    missing: frozenset[int]
    reduced: bool
    candidates: Sequence[Candidate] | None
    looked: Looked | None = None


class PoolFetched(NamedTuple):
    """What parts gave of the candidates asked for: which of them (n,), as positions, ascending, and what is stored."""

    positions: Rows
    candidates: list[Candidate]
    made: Representations | None


class Known(NamedTuple):
    """What parts hold of candidates asked for by their ids.

    Attributes:
        positions: of the ids that are there, (n,), ascending.
        candidates: with these ids.
        made: what is stored of them.
        words: what words say for them, (n,); None: they do not count, or were not asked for.
        longest: a length that no vector of the parts exceeds.
        missing: see `PoolFound`; the ids of these parts are not there.
    """

    positions: Rows
    candidates: list[Candidate]
    made: Representations
    words: NDArray[np.float32] | None
    longest: float
    missing: frozenset[int]


class PoolParts(Protocol):
    """Asks the shards that hold the parts of sets."""

    def searched(self, serving: "SetServing", missing: Collection[int]) -> float:
        """Return the share of a set's candidates that all but the missing parts hold, given by their numbers.

        Raises:
            ShardsMissing: it is too small for an answer.
        """

    async def search(self, serving: "SetServing", request: RankRequest, codes: NDArray[np.float32]) -> PoolFound:
        """Find the best `request.depth` candidates for context vectors (M, D).

        Raises:
            DeadlineExceeded: no part answered in the time that there was.
            ShardsMissing: see `searched`.
        """

    async def fetch(
        self, serving: "SetServing", places: NDArray[np.int64], with_vectors: bool, deadline: float
    ) -> PoolFetched:
        """Fetch candidates by their places (n, 2), or with vectors what is stored of them and no texts."""

    async def known(
        self, serving: "SetServing", ids: Sequence[str], conversation: Conversation | None, deadline: float
    ) -> Known:
        """Fetch candidates by their ids; with a conversation also what words say for them.

        Raises:
            ShardsMissing: see `searched`; also where none was found and some may be on the missing parts.
        """

    async def stored_texts(self, serving: "SetServing", texts: Sequence[str], deadline: float) -> KnownTexts:
        """Look texts up in all parts that answer."""


class SetFacts(NamedTuple):
    """What a set says of itself, as a generation does.

    Attributes:
        manifest: as that of a generation; index and recall are those of the part with the lowest recall.
        words: how words count, with the statistics of the whole pool; the table is that of the first part.
    """

    id: str
    manifest: Manifest
    words: Words | None


@dataclass(frozen=True, slots=True)
class SetSnapshot:
    """How many candidates a set has at a revision, and how many changes led there; see `Snapshot`."""

    revision: int
    changes: int
    counts: Counts

    @property
    def count(self) -> int:
        """The number of candidates."""
        return sum(self.counts.of_parts)


@dataclass(frozen=True, slots=True, eq=False)
class SetServing:
    """What a request is answered from, as `Serving`, where shards hold the pool.

    Attributes:
        made: the set.
        generation, snapshot: what it says of itself, and at which revision it is.
        log: its updates; for one thread at a time.
        members: which candidates are in it, at the latest revision; likewise.
        ranker: the model that made the vectors.
        parts: asks the shards.
        texts: vectors of texts that came with earlier requests; None: every text is encoded.
        search_status: how shards find candidates.
        loaded_at: seconds since the epoch.
        checksum: of the updates in the snapshot; 0: there are none.
    """

    made: PartSet
    generation: SetFacts
    snapshot: SetSnapshot
    log: UpdateLog
    members: Membership
    ranker: LateScorer
    parts: PoolParts
    texts: TextCache | None
    search_status: SearchStatus
    loaded_at: float
    checksum: int = 0

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Return those of the ids that are not there."""
        return self.members.missing(ids)

    def caught_up(self) -> "SetServing":
        """Return it with the updates written since; for one thread at a time.

        Raises:
            GenerationCorrupt: the update log is damaged.
        """
        updates = list(self.log.read())
        if not updates:
            return self
        try:
            self.members.update(updates)
        except BaseException:
            self.log.unread()
            raise
        changes = self.snapshot.changes + sum(len(update.upserts) + len(update.deletes) for update in updates)
        snapshot = SetSnapshot(updates[-1].revision, changes, self.members.counts())
        return replace(self, snapshot=snapshot, checksum=self.log.checksum)


# What is served of a store of either kind.
Served = Serving | SetServing


def most_of(deadline: float) -> float:
    """Return when a stage has to end that is not the last one before the deadline, on the monotonic clock."""
    now = time.monotonic()
    return now + SHARE_OF_TIME * max(0.0, deadline - now)


def share_without(serving: SetServing, missing: Collection[int]) -> float:
    """Return the share of a set's candidates that is on other parts than these, given by their numbers."""
    counts = serving.snapshot.counts.of_parts
    return 1.0 - sum(counts[part] for part in missing) / max(1, sum(counts))


def shards_missing(serving: SetServing, missing: Collection[int]) -> ShardsMissing:
    """Return the error that names missing parts, given by their numbers."""
    names = [serving.made.parts[part].name for part in sorted(missing)]
    return ShardsMissing(names, share_without(serving, missing))
