"""Which of the ranked candidates are answered: those with scores high enough, so many groups, so many of each.

Groups are made by the values of a metadata field, which are equal as filters say (`generation/filters.py`). A list puts
a candidate into the group of each of its values. A candidate without the field, or with an object there, is a group of
its own. Whoever goes through a ranking takes a candidate in if none of its groups is full and, once there are as many
groups as are wanted, one of its groups is among them; so a list can bring further groups with it.

The best candidates may all be of few groups. `Filling` says what to look for to fill the others. Where near-equal texts
are answered once, `Deepening` looks further down for others. `decided` says whether the first of a ranking is an
answer.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.generation.filters import keys_of, value_of, values_of
from polyrank.model.text.language import foreign_to
from polyrank.service.errors import NotCalibrated
from polyrank.service.live.models import PairScorer, VectorScorer
from polyrank.service.observe.labels import Degraded
from polyrank.service.ranking.near_equal import Distinct
from polyrank.service.ranking.values import Decision, Grouping, Ranked, RankedCandidate, RankRequest

# So many searches a request at most. Each looks at twice as many candidates as the one before.
MOST_ROUNDS = 8
MOST_DEPTH = 10_000

_Key = tuple[int, Any]  # of a group: see `keys_of`
_Place = tuple[float, int]  # in the ranking: ascends from the best candidate to the last one

_START: _Place = (-math.inf, 0)
_END: _Place = (math.inf, 0)


class Groups:
    """The groups of an answer while candidates are taken in, best first; at most `most` groups, and those of lists."""

    def __init__(self, grouping: Grouping, most: int) -> None:
        self._grouping, self._most = grouping, most
        self._counts: dict[_Key, int] = {}
        self._opened = 0

    def admit(self, metadata: Mapping[str, Any]) -> bool:
        """Take a candidate in if there is room for it in all of its groups; returns whether there was."""
        keys = {key for value in values_of(metadata, self._grouping.field) for key in keys_of(value)}
        opens = not any(key in self._counts for key in keys)
        if any(self._counts.get(key, 0) >= self._grouping.limit for key in keys) or (opens and self.all_open):
            return False
        self._opened += opens
        for key in keys:
            self._counts[key] = self._counts.get(key, 0) + 1
        return True

    @property
    def all_open(self) -> bool:
        """Whether there are as many groups as are wanted."""
        return self._opened >= self._most

    @property
    def full(self) -> list[_Key]:
        """The groups that take no more."""
        return [key for key, count in self._counts.items() if count >= self._grouping.limit]

    @property
    def lacking(self) -> list[_Key]:
        """The groups that take more."""
        return [key for key, count in self._counts.items() if count < self._grouping.limit]


def selected(request: RankRequest, places: Iterable[RankedCandidate]) -> list[RankedCandidate]:
    """Return the candidates to answer with, of those ranked by every stage, best first."""
    distinct = Distinct() if request.collapse else None
    groups = None if request.grouping is None else Groups(request.grouping, request.top_k)
    chosen: list[RankedCandidate] = []
    for place in places:
        if groups is None and len(chosen) == request.top_k:
            break
        if (
            _is_high_enough(request, place)
            and (distinct is None or distinct.admit(place.text))
            and (groups is None or groups.admit(place.metadata))
        ):
            chosen.append(place)
    return chosen


def filling(request: RankRequest, found: Sequence[RankedCandidate]) -> "Filling | Deepening | None":
    """Return what looks for more than a search for `request.depth` candidates has found; None: nothing has to."""
    if request.grouping is not None:
        return Filling(request, found)
    return Deepening(request, found) if request.collapse else None


class Filling:
    """Fills the groups of an answer: tells what to search for until no candidate is left that could be in it.

    A candidate that is refused changes nothing for those after it. So the answer is that of the whole ranking as soon
    as all candidates that can be taken in are known. What is known of a group reaches down to some place of the
    ranking: that of the last candidate of the last search for the group, or for any group. The ranking is gone through
    to the first place where a group that takes more reaches no further, and this group is searched for next. Groups
    that are full by then are left out. Groups that lists bring further down are looked for at the same time: they will
    be needed if nothing better is found.
    """

    reason: Degraded = "groups_incomplete"  # what an answer lacks if there was no time for all searches

    def __init__(self, request: RankRequest, found: Sequence[RankedCandidate]) -> None:
        """Begin with what a search for `request.depth` candidates has found, best first."""
        self._request, self.round = request, 0  # how many searches there were before the next one
        self._wanted: list[_Key] | None = None  # None: any group
        self._reached: dict[_Key, _Place] = {}
        self._all_reached = self._end_of(found, request.depth)
        # What was found so far: first what a later stage has placed, then the others, best first.
        self.places = list(found)

    def next_search(self) -> RankRequest | None:
        """Return the search to do next; None: every candidate of the answer is among those found."""
        assert self._request.grouping is not None, "without groups there is nothing to fill"
        groups, field = Groups(self._request.grouping, self._request.top_k), self._request.grouping.field
        reached, short = self._reach(groups), None
        for place in self.places:
            if short is None and place.cross is None and _place_of(place) > reached:
                short = groups.all_open, groups.lacking, groups.full
            if _is_high_enough(self._request, place) and groups.admit(place.metadata):
                reached = self._reach(groups)
        if short is None and reached >= _END:
            return None
        all_open, lacking, full = short or (groups.all_open, groups.lacking, groups.full)
        self.round += 1
        self._wanted = list(dict.fromkeys([*lacking, *groups.lacking])) if all_open else None
        conditions = [] if self._request.filter is None else [self._request.filter]
        if self._wanted is not None:
            conditions.append({field: [value_of(key) for key in self._wanted]})
        if full:
            conditions.append({"$not": {field: [value_of(key) for key in full]}})
        return replace(self._request, filter={"$and": conditions}, top_k=self._depth, grouping=None, top_n=None)

    def add(self, found: Sequence[RankedCandidate]) -> None:
        """Take in what the search has found, best first."""
        end = self._end_of(found, self._depth)
        if self._wanted is None:
            self._all_reached = max(self._all_reached, end)
        for key in self._wanted or ():
            self._reached[key] = max(self._reached.get(key, _START), end)
        self.places = _together(self.places, found)

    @property
    def _depth(self) -> int:
        return min(MOST_DEPTH, self._request.depth << self.round)

    def _end_of(self, found: Sequence[RankedCandidate], depth: int) -> _Place:
        if len(found) < depth or not _is_high_enough(self._request, found[-1]):
            return _END
        return _place_of(found[-1])

    def _reach(self, groups: Groups) -> _Place:
        """Return how far down everything is known that could be taken in."""
        if not groups.all_open:
            return self._all_reached
        reached = (self._reached.get(key, _START) for key in groups.lacking)
        return max(self._all_reached, min(reached, default=_END))


class Deepening:
    """Looks further down a ranking until so many texts are found that no two are near-equal; attributes as `Filling`.

    Each search finds twice as many candidates as the one before.
    """

    reason: Degraded = "collapse_incomplete"

    def __init__(self, request: RankRequest, found: Sequence[RankedCandidate]) -> None:
        """Begin with what a search for `request.depth` candidates has found, best first."""
        self._request, self._depth, self.round = request, request.depth, 0
        self.places = list(found)
        self._is_all = self._ends(found)

    def next_search(self) -> RankRequest | None:
        """Return the search to do next; None: there are enough texts, or no more."""
        if self._is_all or len(selected(self._request, self.places)) >= self._request.top_k:
            return None
        self.round += 1
        self._depth = min(MOST_DEPTH, 2 * self._depth)
        return replace(self._request, top_k=self._depth, collapse=False, top_n=None)

    def add(self, found: Sequence[RankedCandidate]) -> None:
        """Take in what the search has found, best first."""
        self._is_all = self._ends(found)
        self.places = _together(self.places, found)

    def _ends(self, found: Sequence[RankedCandidate]) -> bool:
        return len(found) < self._depth or not _is_high_enough(self._request, found[-1])


def _together(places: Sequence[RankedCandidate], found: Sequence[RankedCandidate]) -> list[RankedCandidate]:
    """Return the candidates of a ranking and of a deeper search: first what a later stage has placed."""
    known = {place.id for place in places}
    by_stages = [place for place in places if place.cross is not None]
    others = [*places[len(by_stages) :], *(place for place in found if place.id not in known)]
    return by_stages + sorted(others, key=_place_of)


def _is_high_enough(request: RankRequest, place: RankedCandidate) -> bool:
    return request.score_threshold is None or place.placed_by >= request.score_threshold


def _place_of(place: RankedCandidate) -> _Place:
    """Return where a candidate stands that no later stage has placed."""
    return -place.score, place.row


class Line(NamedTuple):
    """What is put into the sigmoid: `slope * score + intercept`."""

    slope: float
    intercept: float


AS_IT_IS = Line(1.0, 0.0)
"""For scores of which it is not known what they say."""


def line_of(model: VectorScorer | PairScorer, counts_words: bool = True) -> Line:
    """Return what the scores of a model say; words that it has may not count, for lack of a pool."""
    return AS_IT_IS if model.calibration is None else Line(*model.calibration.line(counts_words))


def relevance(scores: NDArray[np.float32], line: Line = AS_IT_IS) -> NDArray[np.float64]:
    """Map each score to 0..1 by the sigmoid of the model's line, computed in float64; the order stays.

    With the line of a calibrated model the result is the probability that a text is right. Without, it is one for a
    Cross-encoder whose score is a logit; other scores mean something only beside those of other candidates. Where the
    line is between -20 and 20, different scores stay different, except next to 0; above 36.7 the result is 1.

    >>> relevance(np.array([0.0, 2.0, -2.0], np.float32)).round(4).tolist()
    [0.5, 0.8808, 0.1192]
    """
    wide = line.slope * scores.astype(np.float64) + line.intercept
    small = np.exp(-np.abs(wide))  # of the negative magnitude: this never overflows
    return np.where(wide >= 0, 1.0, small) / (1.0 + small)


def check_calibrated(ranker: VectorScorer, name: str, scorer: PairScorer | None) -> None:
    """Raise NotCalibrated where the last stage has scores that say no probability.

    name: of the ranker, as the generation has it.
    """
    if scorer is not None and scorer.calibration is None:
        raise NotCalibrated(f"the reranker {scorer.name}", "start the server with the result")
    if scorer is None and ranker.calibration is None:
        raise NotCalibrated(f"the model {name}", "build again with the result")


def decided(
    threshold: float,
    ranked: Ranked,
    ranker: VectorScorer,
    scorer: PairScorer | None,
    counts_words: bool,
    seen: Mapping[str, int],
) -> Decision:
    """Say whether the first result is an answer: whether it is right with this probability.

    Its probability is by the model that placed it: the cross-encoder, or the generation's own. counts_words: whether
    the generation has words, which the cross-encoder's scores include then. seen: the languages of the pool.
    """
    probability = None
    if ranked.places:
        first = ranked.places[0]
        # The words of the generation's own model always count in its scores.
        model, counts_words = (ranker, True) if first.cross is None else (scorer, counts_words)
        if model is not None and foreign_to(model.languages, seen):
            return Decision(False, None, threshold, "language")
        skipped = first.cross is None and ranked.lacks_second_stage  # a score of another kind than the calibrated ones
        if model is not None and model.calibration is not None and not skipped:
            score = np.array([first.placed_by], np.float32)
            probability = float(relevance(score, line_of(model, counts_words))[0])
    return Decision(probability is not None and probability >= threshold, probability, threshold)
