"""What goes into a ranking, what the parts of a pool find for it, and what comes out of it; free of HTTP."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.pool.rows import Candidate
from polyrank.model.explanation import By
from polyrank.model.representations import Additions
from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.service.observe.labels import Degraded, Plan

Rows = NDArray[np.int64]

_WITHOUT_SECOND_STAGE: frozenset[Degraded] = frozenset({"late_skipped_deadline", "late_failed"})


class SentCandidate(NamedTuple):
    """A candidate sent along: an id of the generation, a text, or a text with an id that names it."""

    id: str | None
    text: str | None


class Grouping(NamedTuple):
    """Groups by a metadata field, and how many candidates of a group are answered at most."""

    field: str
    limit: int = 1


class Decision(NamedTuple):
    """Whether a ranking answers: its first result is right with a `probability` of at least `threshold`.

    probability: None where there is no result, its score is of a stage that is not calibrated, or there is a `reason`:
    "language", the pool is in none of the model's languages, of which it is not known what its scores say.
    """

    answer: bool
    probability: float | None
    threshold: float
    reason: Literal["language"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRequest:
    """One ranking to do."""

    conversation: Conversation
    candidates: tuple[SentCandidate, ...] | None = None  # what to rank; None: retrieve from the generation
    top_k: int = 10  # how many to answer with; with groups: how many groups
    retrieve_k: int = 200  # how many candidates to score of those that an index finds
    exact: bool = False  # score the whole pool
    top_n: int | None = None  # how many the cross-encoder reads; None: it reads none
    # Conditions on metadata (polyrank.index_builder.generation.filters), checked; None: no filter.
    filter: Mapping[str, Any] | None = None
    exclude_ids: tuple[str, ...] = ()
    score_threshold: float | None = None  # answer with none of a lower score, that of the stage which placed it last
    grouping: Grouping | None = None  # groups to answer with; None: single candidates
    collapse: bool = False  # answer with the best of near-equal texts alone; not together with groups
    # The probability from which on the first result is an answer; None: that is not to be decided.
    answer_if: float | None = None

    @property
    def depth(self) -> int:
        """How many of the best are needed: those answered, and those that the cross-encoder reads."""
        if self.candidates is not None and (self.collapse or self.grouping is not None):
            return len(self.candidates)
        most_of_each = 2 if self.collapse else 1 if self.grouping is None else self.grouping.limit
        return max(self.top_k * most_of_each, self.top_n or 0)

    @property
    def retrieved(self) -> int:
        """How many candidates an index is asked for."""
        return max(self.retrieve_k, self.depth)


@dataclass(frozen=True, slots=True, eq=False)
class PoolQuery:
    """What one request looks for in every part."""

    needed: int  # how many of the best are answered, or read by the cross-encoder
    retrieve_k: int  # this field and the next three are those of `RankRequest`
    exact: bool = False
    filter: Mapping[str, Any] | None = None
    exclude_ids: tuple[str, ...] = ()
    conversation: Conversation | None = None  # None where words do not count: then nobody need know it
    with_candidates: bool = False  # also give the candidates that are found
    # So many are found for a second stage that shall score every candidate; None: there is no such stage.
    most_exact: int | None = None

    @property
    def depth(self) -> int:
        """How many of the best are found: those needed, or those that the second stage scores."""
        if self.most_exact is None:
            return self.needed
        return max(self.most_exact if self.exact else self.retrieve_k, self.needed)

    @property
    def retrieved(self) -> int:
        """How many candidates an index is asked for."""
        return max(self.retrieve_k, self.depth)


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """The best candidates of a part for one query, or of several parts."""

    order: Rows  # their places in the pool, best first, (n,); equal scores are in this order
    rows: Rows  # in their parts, (n,)
    scores: NDArray[np.float32]  # (n,)
    lexical: NDArray[np.float32] | None  # the parts of the scores by words, (n,); None: they do not count
    looked_at: int  # how many candidates were scored or searched to find them
    bound: float  # no other candidate of these parts scores more than this; -inf: there is no other
    plan: Plan
    reduced: bool = False  # fewer candidates were retrieved than asked for, because time was short
    candidates: Sequence[Candidate] | None = None  # at these rows; None: they were not asked for
    cache_available: bool = True  # the cache answered for their vectors
    parts: Rows | None = None  # the numbers of their parts, (n,); None: of a part alone

    def take(self, positions: Rows) -> "Hits":
        """Return those at some positions, in their order."""
        candidates = self.candidates
        return replace(
            self,
            order=self.order[positions],
            rows=self.rows[positions],
            scores=self.scores[positions],
            lexical=None if self.lexical is None else self.lexical[positions],
            candidates=None if candidates is None else [candidates[at] for at in positions.tolist()],
            parts=None if self.parts is None else self.parts[positions],
        )

    def placed_by(self, late: NDArray[np.float32], late_weight: float) -> "Hits":
        """Return them in the order of their second stage's scores (n,), with words."""
        scores = late if self.lexical is None else Additions(late_weight, self.lexical).to(late)
        return replace(self, scores=scores).take(np.lexsort((self.order, -scores)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest:
    """Scores to take apart."""

    ranking: RankRequest  # the candidates sent, all of which are answered
    occlusion: bool = False  # also tell what the score by vectors loses without each token of the context
    # The parts of the context without which the cross-encoder is asked as well; None: it is not asked.
    cross: By | None = None


@dataclass(frozen=True, slots=True)
class RankedCandidate:
    """A candidate of a ranking."""

    id: str | None
    text: str
    score: float  # by the Bi- or Poly-encoder and, where they count, by words
    metadata: dict[str, Any] = field(default_factory=dict)
    index: int | None = None  # position among the candidates sent; None: it was retrieved
    lexical: float | None = None  # the part of the score by words; None: they do not count for the model
    # Score by the cross-encoder and, if it has evidence, by words; None: that did not read it.
    cross: float | None = None
    # Of the snapshot, or its place in a pool in parts; orders equal scores. -1: it was sent.
    row: int = field(default=-1, compare=False)

    @property
    def vector(self) -> float:
        """The part of the score by vectors."""
        return self.score - (self.lexical or 0.0)

    @property
    def placed_by(self) -> float:
        """The score that placed it: of the last stage that scored it."""
        return self.score if self.cross is None else self.cross


def results_of(places: Sequence[RankedCandidate]) -> list[dict[str, Any]]:
    """Return the fields of a `ResultOut` for each; those without a meaning for the candidate are absent, not null."""
    return [
        {
            "rank": rank,
            **({} if place.index is None else {"index": place.index}),
            "id": place.id,
            "text": place.text,
            "score": place.placed_by,
            "scores": {
                "vector": place.vector,
                **({} if place.lexical is None else {"lexical": place.lexical}),
                **({} if place.cross is None else {"cross": place.cross}),
            },
            "metadata": place.metadata,
        }
        for rank, place in enumerate(places, 1)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A ranking, best first. Each stage of a request makes a new one of the one before."""

    places: list[RankedCandidate]
    exact: bool  # whether every candidate that could be among them was scored
    looked_at: int  # how many candidates were scored, or searched by an index, over all searches
    missing_ids: list[str] = field(default_factory=list)  # ids sent that the generation does not hold
    degraded: list[Degraded] = field(default_factory=list)
    truncation: Truncation = field(default_factory=Truncation)  # what the encoders did not see
    plan: Plan | None = None  # how candidates were retrieved; None: they were sent
    tokens: int = 0  # of the context and the texts sent
    seconds: dict[str, float] = field(default_factory=dict)
    turns_share: float = 1.0  # how much of their weights the words of the turns kept; 1: the candidates are of the pool
    # The share of the pool whose shards answered; None: the pool is not cut into parts, or all did.
    searched: float | None = None
    # Why a filter lets nothing through, or that a lexical model had nothing to go by.
    notes: list[str] = field(default_factory=list)
    decision: Decision | None = None  # whether its first result is an answer; None: that was not asked

    @property
    def lacks_second_stage(self) -> bool:
        """Whether scores are those of the first stage although the model has a second one."""
        return not _WITHOUT_SECOND_STAGE.isdisjoint(self.degraded)

    def without(self, *reasons: Degraded) -> "Ranked":
        """Return it with more that it does without."""
        return replace(self, degraded=[*self.degraded, *reasons])

    def of_share(self, searched: float) -> "Ranked":
        """Return it as a ranking of this share of the pool, whose other parts are missing."""
        return replace(self.without("shards_missing"), exact=False, searched=searched)

    def joined(self, other: "Ranked", places: list[RankedCandidate]) -> "Ranked":
        """Return what two searches have found together, given the candidates of both."""
        new = [reason for reason in other.degraded if reason not in self.degraded]
        return replace(
            self,
            places=places,
            exact=self.exact and other.exact,
            looked_at=self.looked_at + other.looked_at,
            searched=min((each for each in (self.searched, other.searched) if each is not None), default=None),
            degraded=[*self.degraded, *new],
        )
