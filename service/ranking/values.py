"""What goes into a ranking and what comes out of it, free of HTTP."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from polyrank.model.explanation import By
from polyrank.model.text.assembly import Conversation, Truncation
from polyrank.service.errors import InferenceFailed
from polyrank.service.observe.labels import Degraded, Plan

_WITHOUT_SECOND_STAGE: frozenset[Degraded] = frozenset({"late_skipped_deadline", "late_failed"})


class Given(NamedTuple):
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
    """One ranking to do.

    Attributes:
        candidates: what to rank; None: retrieve from the generation.
        top_k: how many to answer with; with groups: how many groups.
        retrieve_k: how many candidates to score of those that an index finds.
        exact: score the whole pool.
        top_n: how many the cross-encoder reads; None: it reads none.
        filter: conditions on metadata (polyrank.index_builder.generation.filters), checked; None: no filter.
        score_threshold: answer with none of a lower score, that of the stage which placed it last.
        grouping: groups to answer with; None: single candidates.
        collapse: answer with the best of near-equal texts alone; not together with groups.
        answer_if: the probability from which on the first result is an answer; None: that is not to be decided.
    """

    conversation: Conversation
    candidates: tuple[Given, ...] | None = None
    top_k: int = 10
    retrieve_k: int = 200
    exact: bool = False
    top_n: int | None = None
    filter: Mapping[str, Any] | None = None
    exclude_ids: tuple[str, ...] = ()
    score_threshold: float | None = None
    grouping: Grouping | None = None
    collapse: bool = False
    answer_if: float | None = None

    @property
    def depth(self) -> int:
        """How many of the best are needed: those answered, and those that the cross-encoder reads."""
        if self.candidates is not None and (self.collapse or self.grouping is not None):
            return len(self.candidates)
        most_of_each = 2 if self.collapse else 1 if self.grouping is None else self.grouping.limit
        return max(self.top_k * most_of_each, self.top_n or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest:
    """Scores to take apart.

    Attributes:
        ranking: the candidates sent, all of which are answered.
        occlusion: also tell what the score by vectors loses without each token of the context.
        cross: the parts of the context without which the cross-encoder is asked as well; None: it is not asked.
    """

    ranking: RankRequest
    occlusion: bool = False
    cross: By | None = None


@dataclass(frozen=True, slots=True)
class RankedCandidate:
    """A candidate of a ranking.

    Attributes:
        score: by the Bi- or Poly-encoder and, where they count, by words.
        index: position among the candidates sent; None: it was retrieved.
        lexical: the part of the score by words; None: they do not count for the model.
        cross: score by the cross-encoder and, if it has evidence, by words; None: that did not read it.
        row: of the snapshot, or its place in a pool in parts; orders equal scores. -1: it was sent.
    """

    id: str | None
    text: str
    score: float
    metadata: dict[str, Any] = field(default_factory=dict)
    index: int | None = None
    lexical: float | None = None
    cross: float | None = None
    row: int = field(default=-1, compare=False)

    @property
    def vector(self) -> float:
        """The part of the score by vectors."""
        return self.score - (self.lexical or 0.0)

    @property
    def placed_by(self) -> float:
        """The score that placed it: of the last stage that scored it."""
        return self.score if self.cross is None else self.cross


def finite(places: list[RankedCandidate]) -> list[RankedCandidate]:
    """Return candidates all of which have scores that are finite; raises InferenceFailed."""
    if not all(math.isfinite(place.score) for place in places):
        raise InferenceFailed("a score is not finite")
    return places


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
    """A ranking, best first. Each stage of a request makes a new one of the one before.

    Attributes:
        exact: whether every candidate that could be among them was scored.
        looked_at: how many candidates were scored, or searched by an index, over all searches.
        missing_ids: ids sent that the generation does not hold.
        truncation: what the encoders did not see.
        plan: how candidates were retrieved; None: they were sent.
        tokens: of the context and the texts sent.
        turns_share: how much of their weights the words of the turns kept; 1: the candidates are of the pool.
        searched: the share of the pool whose shards answered; None: the pool is not cut into parts, or all did.
        notes: why a filter lets nothing through, or that a lexical model had nothing to go by.
        decision: whether its first result is an answer; None: that was not asked.
    """

    places: list[RankedCandidate]
    exact: bool
    looked_at: int
    missing_ids: list[str] = field(default_factory=list)
    degraded: list[Degraded] = field(default_factory=list)
    truncation: Truncation = field(default_factory=Truncation)
    plan: Plan | None = None
    tokens: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    turns_share: float = 1.0
    searched: float | None = None
    notes: list[str] = field(default_factory=list)
    decision: Decision | None = None

    @property
    def lacks_second_stage(self) -> bool:
        """Whether scores are those of the first stage although the model has a second one."""
        return not _WITHOUT_SECOND_STAGE.isdisjoint(self.degraded)

    def without(self, *reasons: Degraded) -> "Ranked":
        """Return it with more that it does without."""
        return replace(self, degraded=[*self.degraded, *reasons])

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
