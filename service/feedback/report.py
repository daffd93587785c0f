"""What a log of feedback says of the replies, in figures: what was taken, what nobody took, and what a pool lacks."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from polyrank.model.lexical.words import words
from polyrank.model.text.folding import folded_line
from polyrank.service.feedback.outcomes import Outcome, outcome_of
from polyrank.service.feedback.reading import uses
from polyrank.service.feedback.records import Ranking, Shown
from polyrank.service.feedback.replies import Replies

FEW: Final = 30  # rankings; a share of fewer says little
_FIELDS, _VALUES = 4, 20  # of metadata: so many fields are shown, and a field with more values makes no groups
_LACKS, _EXAMPLES = 20, 3
_NEVER_TAKEN = 20
SHOWN_OFTEN: Final = 10
_Z = 1.959964  # of 95 %


class Share(NamedTuple):
    """How many of how many."""

    taken: int
    of: int

    def plus(self, taken: bool) -> "Share":
        """Return it with one more."""
        return Share(self.taken + taken, self.of + 1)

    @property
    def value(self) -> float:
        """The share itself; 0 of none."""
        return self.taken / self.of if self.of else 0.0

    def interval(self) -> tuple[float, float]:
        """Return the ends of Wilson's interval of 95 % (Wilson 1927, "Probable inference, the law of succession").

        >>> [round(end, 3) for end in Share(8, 10).interval()], Share(0, 0).interval()
        ([0.49, 0.943], (0.0, 1.0))
        """
        if not self.of:
            return 0.0, 1.0
        square = _Z * _Z
        middle = (self.taken + square / 2) / (self.of + square)
        width = _Z * math.sqrt(self.taken * (self.of - self.taken) / self.of + square / 4) / (self.of + square)
        return max(0.0, middle - width), min(1.0, middle + width)


NONE: Final = Share(0, 0)


class Lack(NamedTuple):
    """Contexts for which nothing was good, and that have a word in common.

    Attributes:
        words: the word that tells them from other contexts most, and others that most of them have.
        examples: their last turns, the most frequent first.
    """

    words: list[str]
    contexts: int
    examples: list[str]


class Untaken(NamedTuple):
    """A reply that was shown often and never taken.

    Attributes:
        first: how often it was shown first.
    """

    id: str
    text: str | None
    shown: int
    first: int


@dataclass(slots=True)
class FeedbackFigures:
    """What a log says.

    Attributes:
        rankings: how many it holds.
        judged: of how many of them it is known which reply was sent, or that none was good.
        began, ended: when the first and the last of all rankings were answered, in seconds since the epoch.
        events: by kind.
        first: how often the first reply was taken, over all that are judged.
        generations, days: the same for each.
        groups: the same by fields of the first reply's metadata, and by their values.
        ranks: how often the reply at each rank was taken, from 1.
        beyond: how often one was taken that is not among those recorded.
        written: how often a reply was written by hand; none_good: how often none was good and nothing else was sent.
        with_texts: how many that are judged were recorded with their contexts.
        lacks: of contexts for which nothing was good.
        alone: how many such contexts are in none of these groups.
        untaken: replies that nobody took, the most often shown first.
        shown_often: how many replies were shown often enough to be among them.
    """

    rankings: int = 0
    judged: int = 0
    began: float | None = None
    ended: float | None = None
    events: Counter[str] = field(default_factory=Counter)
    first: Share = NONE
    generations: dict[str, Share] = field(default_factory=dict)
    days: dict[str, Share] = field(default_factory=dict)
    groups: dict[str, dict[str, Share]] = field(default_factory=dict)
    ranks: Counter[int] = field(default_factory=Counter)
    beyond: int = 0
    written: int = 0
    none_good: int = 0
    with_texts: int = 0
    lacks: list[Lack] = field(default_factory=list)
    alone: int = 0
    untaken: list[Untaken] = field(default_factory=list)
    shown_often: int = 0


def figures(root: Path) -> FeedbackFigures:
    """Read the log of the store in this directory."""
    found, replies = FeedbackFigures(), Replies(root)
    contexts, seen, groups = list[_Context](), dict[str, _Seen](), _Groups()
    for use in uses(root):
        ranking, outcome = use.ranking, outcome_of(use)
        found.rankings += 1
        found.began = ranking.at if found.began is None else min(found.began, ranking.at)
        found.ended = ranking.at if found.ended is None else max(found.ended, ranking.at)
        found.events.update(event.kind for event in use.events)
        if outcome.kind is None or not ranking.shown:
            continue
        found.judged += 1
        _count(found, ranking, outcome)
        [first] = replies.find(ranking, ranking.shown[:1])
        groups.add({} if first is None else first.metadata, outcome.rank == 1)
        for rank, shown in enumerate(ranking.shown, 1):
            if shown.id is not None:
                if shown.id not in seen:
                    seen[shown.id] = _Seen(replace(ranking, shown=(), said=None), shown)
                seen[shown.id].count(rank, outcome)
        if ranking.said is not None:
            contexts.append(_Context(ranking.said.turns[-1].text, outcome.kind in ("written", "none_good")))
    found.generations, found.days = (dict(sorted(each.items())) for each in (found.generations, found.days))
    found.groups = groups.shares()
    found.with_texts = len(contexts)
    found.lacks, found.alone = _lacks(contexts)
    found.untaken, found.shown_often = _untaken(seen, replies)
    return found


def _count(found: FeedbackFigures, ranking: Ranking, outcome: Outcome) -> None:
    took = outcome.rank == 1
    day = datetime.fromtimestamp(ranking.at, UTC).date().isoformat()
    found.first = found.first.plus(took)
    for shares, name in ((found.generations, ranking.generation), (found.days, day)):
        shares[name] = shares.get(name, NONE).plus(took)
    if outcome.rank is not None:
        found.ranks[outcome.rank] += 1
    elif outcome.kind == "written":
        found.written += 1
    elif outcome.kind == "none_good":
        found.none_good += 1
    else:
        found.beyond += 1


class _Groups:
    """Shares by the values of fields of metadata."""

    def __init__(self) -> None:
        self._shares: dict[str, dict[str, Share]] = {}

    def add(self, metadata: Mapping[str, Any], took: bool) -> None:
        for name, value in metadata.items():
            if isinstance(value, str | bool):
                values, said = (
                    self._shares.setdefault(name, {}),
                    value if isinstance(value, str) else str(value).lower(),
                )
                if said in values or len(values) <= _VALUES:  # one more shows that there are too many
                    values[said] = values.get(said, NONE).plus(took)

    def shares(self) -> dict[str, dict[str, Share]]:
        """Return the fields that make groups; those that most replies have come first."""
        kept = {name: values for name, values in self._shares.items() if 2 <= len(values) <= _VALUES}
        order = sorted(kept, key=lambda name: (-sum(share.of for share in kept[name].values()), name))
        return {name: dict(sorted(kept[name].items())) for name in order[:_FIELDS]}


@dataclass(slots=True)
class _Seen:
    """A reply as a ranking showed it first, and how often rankings that are judged showed and took it."""

    at: Ranking
    reply: Shown
    shown: int = 0
    first: int = 0
    taken: int = 0

    def count(self, rank: int, outcome: Outcome) -> None:
        self.shown += 1
        self.first += rank == 1
        self.taken += rank == outcome.rank


def _untaken(seen: Mapping[str, _Seen], replies: Replies) -> tuple[list[Untaken], int]:
    often = {name: each for name, each in seen.items() if each.shown >= SHOWN_OFTEN}
    never = [(name, each) for name, each in often.items() if not each.taken]
    never.sort(key=lambda item: (-item[1].first, -item[1].shown, item[0]))
    untaken = []
    for name, each in never[:_NEVER_TAKEN]:
        [found] = replies.find(each.at, [each.reply])
        untaken.append(Untaken(name, None if found is None else found.text, each.shown, each.first))
    return untaken, len(often)


class _Context(NamedTuple):
    """The last turn of a context, and whether nothing was good for it."""

    text: str
    lacks: bool


def _lacks(contexts: Sequence[_Context]) -> tuple[list[Lack], int]:
    """Group contexts for which nothing was good by a word that they share; returns also how many stay alone.

    The word with the largest `l^2 / n log(N / n)^2` makes a group, where l of these contexts and n of all N have it: it
    is rare among all, and frequent where nothing was good. The next word is sought among the contexts that are left.
    """
    said = [frozenset(word for word in words(each.text) if not word.isdecimal()) for each in contexts]
    left = {place: said[place] for place, each in enumerate(contexts) if each.lacks}
    among_all = Counter(chain.from_iterable(said))
    rarity = {word: math.log(len(contexts) / count) ** 2 / count for word, count in among_all.items()}

    def telling(places: Iterable[int]) -> list[tuple[float, str, int]]:
        counts = Counter(chain.from_iterable(left[place] for place in places))
        found = ((-rarity[word] * count**2, word, count) for word, count in counts.items() if count > 1)
        return sorted(each for each in found if each[0] < 0)

    groups = list[Lack]()
    while len(groups) < _LACKS and (found := telling(left)):
        most, word, _ = found[0]
        own = [place for place, has in left.items() if word in has]
        names = [each for value, each, n in telling(own) if each != word and 2 * n >= len(own) and 4 * value <= most]
        turns = {folded_line(contexts[place].text): contexts[place].text for place in own}
        often = Counter(folded_line(contexts[place].text) for place in own).most_common(_EXAMPLES)
        examples = [turns[turn] for turn, _ in often]
        groups.append(Lack([word, *names[:2]], len(own), examples))
        for place in own:
            del left[place]
    return sorted(groups, key=lambda group: (-group.contexts, group.words)), len(left)
