"""What front and shards say to each other. All of it can be pickled."""

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.pool.rows import Candidate
from polyrank.model.representations import Representations
from polyrank.service.ranking.values import PoolQuery

Rows = NDArray[np.int64]
# Kinds of errors of `Reply` that say nothing of the part that was asked for, and pass.
LATE, LOST, SHORT = "late", "lost", "short"


class Holding(NamedTuple):
    """A part of a generation, which a shard holds or is to hold."""

    generation: str
    part: str


class PartQuery(NamedTuple):
    """What to find in a part at a revision, for which context vectors (M, D)."""

    revision: int
    query: PoolQuery
    codes: NDArray[np.float32]


class PartStored(NamedTuple):
    """What a part holds of the candidates asked for."""

    positions: Rows  # of those that are there, among those asked for, (n,), ascending
    candidates: list[Candidate]  # empty where only vectors were asked for
    vectors: Representations  # what is stored of them; of none where that was not asked for
    words: NDArray[np.float32] | None  # their lexical scores, (n,); None: words do not count, or were not asked for
    longest: float  # a length that no vector of the part exceeds


class Reply(NamedTuple):
    """What a shard answers.

    Errors travel as values, so that a transport need not know how to rebuild them.
    """

    value: Any = None  # what the method returned; None after an error
    error: str | None = None  # why there is none; None: there is
    # "gone": the shard does not hold the part. "behind": the log, as its machine sees it, does not reach the revision
    # asked for. LATE: the time was over before its turn. "damaged": a stored vector gave a score that cannot be. LOST:
    # the shard was not reached. SHORT: its machine lacks something. "refused": any other error. Empty: there was none.
    kind: str = ""


class ReplicaLost(Exception):  # what happened, not what went wrong
    """The process of a shard ended, or cannot be reached."""


class Replica(Protocol):
    """One shard process that holds a part; there may be several for each."""

    @property
    def name(self) -> str: ...

    async def ask(self, method: str, arguments: tuple[Any, ...], left_s: float) -> Reply:
        """Call a method of the shard's `Body` for a request that has so much time left; raises ReplicaLost."""

    def control(self, method: str, arguments: tuple[Any, ...], within_s: float) -> Reply:
        """Call a method beside the event loop, and wait; raises ReplicaLost, also where it takes longer."""


class Shards(Protocol):
    """Starts and ends shards."""

    def start(self, part: str, number: int) -> Replica:
        """Start the replica of a part with this number, counted from 0; it holds nothing yet."""

    def stop(self, replica: Replica) -> None: ...
