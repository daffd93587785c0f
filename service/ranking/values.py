"""What goes into a ranking and what comes out of it, free of HTTP."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.service.caching.budget import Budget
from polyrank.service.observe.labels import STAGES, Degraded, Plan

TOP_N = 20  # how many a cross-encoder reads where the request does not say


class Given(NamedTuple):
    """A candidate sent along: by its id in the generation, as a text, or as a text under a name (both)."""

    id: str | None
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRequest:
    """One ranking to do.

    Attributes:
        conversation: the context.
        deadline: on the monotonic clock, in seconds.
        candidates: what to rank; None: retrieve from the generation.
        top_k: how many to answer with.
        retrieve_k: how many retrieved candidates are scored, where an index retrieves them.
        exact: score the whole pool.
        top_n: how many the cross-encoder reads; None: it is not asked.
        filter: conditions on metadata (polyrank.index_builder.store.filters), checked; None: no filter.
        exclude_ids: candidates that must not be in the answer.
        budget: what it may spend on caches.
    """

    conversation: Conversation
    deadline: float
    candidates: tuple[Given, ...] | None = None
    top_k: int = 10
    retrieve_k: int = 200
    exact: bool = False
    top_n: int | None = None
    filter: Mapping[str, Any] | None = None
    exclude_ids: tuple[str, ...] = ()
    budget: Budget = field(default_factory=Budget, compare=False)

    @property
    def depth(self) -> int:
        """How many of the best are needed: those answered, and those that the cross-encoder reads."""
        return max(self.top_k, self.top_n or 0)


@dataclass(frozen=True, slots=True)
class RankedCandidate:
    """A candidate on the shortlist.

    Attributes:
        late: its score by the Bi- or Poly-encoder.
        index: its place among the candidates sent; None where it was retrieved.
        cross: its score by the cross-encoder; None where that did not read it.
    """

    id: str | None
    text: str
    late: float
    metadata: dict[str, Any] = field(default_factory=dict)
    index: int | None = None
    cross: float | None = None


@dataclass(slots=True)
class Shortlist:
    """The best candidates by late score, best first.

    Attributes:
        exact: nothing of the pool was left unscored that could have been among them.
        scored: how many candidates were scored.
        missing_ids: ids sent that the generation does not hold.
        cut: candidate texts that lost their end.
        cache_available: the vectors came from where they were meant to.
        plan: how they were retrieved; None where they were sent.
    """

    places: list[RankedCandidate]
    exact: bool
    scored: int
    missing_ids: list[str] = field(default_factory=list)
    cut: int = 0
    cache_available: bool = True
    plan: Plan | None = None


@dataclass(frozen=True, slots=True)
class Ranked:
    """The answer; `seconds` by stage, `tokens` that the context and the texts sent have."""

    places: list[RankedCandidate]
    exact: bool
    scored: int
    missing_ids: list[str]
    degraded: list[Degraded]
    truncation: Truncation
    seconds: dict[str, float]
    tokens: int
    plan: Plan | None = None


class Stages:
    """How long each stage took, in seconds; `tokens` is how many the context and the texts sent have."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self.tokens = 0

    def add(self, stage: str, seconds: float) -> None:
        """Add to a stage."""
        self.seconds[stage] += seconds

    def include(self, other: "Stages") -> None:
        """Add what the stages of a part took."""
        for stage, seconds in other.seconds.items():
            self.seconds[stage] += seconds

    def total(self) -> float:
        """Of all stages."""
        return sum(self.seconds.values())

    def move(self, stage: str, to: str, seconds: float) -> None:
        """Count seconds of one stage as another's."""
        self.seconds[stage] -= seconds
        self.seconds[to] += seconds

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the block's time to a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - began)
