"""Which of the ranked candidates are answered: those with scores high enough, so many groups, so many of each.

Groups are made by the values of a metadata field, which are equal as filters say (`generation/filters.py`). A list puts
a candidate into the group of each of its values. A candidate without the field, or with an object there, is a group of
its own.

The best candidates may all be of few groups. `next_round` says what to look for to fill the others: it leaves out the
groups that are full, so each search fills another group or finds a new one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from polyrank.index_builder.generation.filters import keys_of, value_of, values_of
from polyrank.service.ranking.values import Grouping, RankedCandidate, RankRequest

# So many searches a request at most. Each looks at twice as many candidates as the one before.
MOST_ROUNDS = 8
MOST_DEPTH = 10_000


class Groups:
    """The groups of an answer while candidates are taken in, best first; at most `most` groups."""

    def __init__(self, grouping: Grouping, most: int) -> None:
        self._grouping, self._most = grouping, most
        self._counts: dict[tuple[int, Any], int] = {}
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
    def full(self) -> list[Any]:
        """The values of the groups that take no more."""
        return [value_of(key) for key, count in self._counts.items() if count >= self._grouping.limit]

    @property
    def lacking(self) -> list[Any]:
        """The values of the groups that take more."""
        return [value_of(key) for key, count in self._counts.items() if count < self._grouping.limit]


def selected(request: RankRequest, places: Iterable[RankedCandidate]) -> list[RankedCandidate]:
    """Return the candidates to answer with, of those ranked by every stage, best first."""
    if request.score_threshold is not None:
        places = [place for place in places if place.placed_by >= request.score_threshold]
    if request.grouping is None:
        return list(places)[: request.top_k]
    groups = Groups(request.grouping, request.top_k)
    return [place for place in places if groups.admit(place.metadata)]


def next_round(
    request: RankRequest, places: Sequence[RankedCandidate], searched: int, round_: int
) -> RankRequest | None:
    """Return the search that fills the groups which lack candidates, or finds more groups; None: there is none.

    Args:
        request: as it came.
        places: what was found so far, best first.
        searched: how many candidates the last search has found.
        round_: how many searches there were.
    """
    if request.grouping is None or searched < depth(request, round_ - 1) or _all_below(request, places):
        return None
    groups = Groups(request.grouping, request.top_k)
    for place in places:
        groups.admit(place.metadata)
    wanted = [] if request.filter is None else [request.filter]
    field, full, lacking = request.grouping.field, groups.full, groups.lacking
    if groups.all_open and not lacking:
        return None
    if groups.all_open:
        wanted.append({field: lacking})
    if full:
        wanted.append({"$not": {field: full}})
    return replace(request, filter={"$and": wanted}, top_k=depth(request, round_), grouping=None, top_n=None)


def depth(request: RankRequest, round_: int) -> int:
    """How many candidates a search must find, counted from 0."""
    return request.depth if round_ == 0 else min(MOST_DEPTH, request.depth << round_)


def merged(places: Sequence[RankedCandidate], more: Sequence[RankedCandidate]) -> list[RankedCandidate]:
    """Return the candidates of two searches, best first; those of the first go before others of the same score."""
    known = {place.id for place in places}
    return sorted([*places, *(place for place in more if place.id not in known)], key=lambda place: -place.score)


def _all_below(request: RankRequest, places: Sequence[RankedCandidate]) -> bool:
    """Whether whatever is found after these is below the threshold."""
    threshold = request.score_threshold
    return threshold is not None and request.top_n is None and bool(places) and places[-1].score < threshold
