"""What a log of feedback says of the replies, in figures: what was taken, what nobody took, and what a pool lacks."""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from sys import intern
from typing import Any, Final, NamedTuple, TypeVar

from scipy.stats import binomtest

from polyrank.model.lexical.words import words
from polyrank.model.text.folding import folded_line
from polyrank.service.feedback.reading import Outcome, outcome_of, uses
from polyrank.service.feedback.records import Ranking
from polyrank.service.feedback.replies import Replies

T = TypeVar("T")

FEW: Final = 30  # rankings; a share of fewer says little
_FIELDS, _VALUES = 4, 20  # of metadata: so many fields are shown, and a field with more values makes no groups
_LACKS, _EXAMPLES = 20, 3
_LETTERS = 500  # of a context, its end: to read all of long ones would take long
_MOST_LACKING = 20_000  # contexts for which nothing was good: the newest, as they are held in memory
_MOST_HELD = 200_000  # words and replies: if there are more, those that came least often are forgotten
_NEVER_TAKEN = 20
SHOWN_OFTEN: Final = 10


class Share(NamedTuple):
    """How many of how many."""

    taken: int = 0
    of: int = 0

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
        ends = binomtest(self.taken, self.of).proportion_ci(method="wilson")
        return float(ends.low), float(ends.high)


def _no_shares() -> dict[str, Share]:
    return defaultdict(Share)


class Lack(NamedTuple):
    """Contexts for which nothing was good, and that have a word in common."""

    words: list[str]  # the word that tells them from other contexts most, and others that most of them have
    contexts: int
    examples: list[str]  # their last turns, the most frequent first


class Untaken(NamedTuple):
    """A reply that was shown often and never taken."""

    id: str
    text: str | None
    shown: int
    first: int  # how often it was shown first


@dataclass(slots=True)
class FeedbackFigures:
    """What a log says."""

    rankings: int = 0  # how many it holds
    judged: int = 0  # of how many of them it is known which reply was sent, or that none was good
    began: float = math.inf  # when the first of all rankings was answered, in seconds since the epoch
    ended: float = 0.0  # and the last
    events: Counter[str] = field(default_factory=Counter)  # by kind
    first: Share = field(default_factory=Share)  # how often the first reply was taken, over all that are judged
    generations: dict[str, Share] = field(default_factory=_no_shares)  # the same for each
    days: dict[str, Share] = field(default_factory=_no_shares)
    # The same by fields of the first reply's metadata, and by their values.
    groups: dict[str, dict[str, Share]] = field(default_factory=lambda: defaultdict(_no_shares))
    # How often the reply at each rank was sent, from 1; one that is not recorded (0); one `written`; and `none_good`.
    sent: Counter[int | str] = field(default_factory=Counter)
    with_texts: int = 0  # how many that are judged were recorded with their contexts
    lacks: list[Lack] = field(default_factory=list)  # of contexts for which nothing was good, the newest of very many
    alone: int = 0  # how many such contexts are in none of these groups
    untaken: list[Untaken] = field(default_factory=list)  # replies that nobody took, the most often shown first
    shown_often: int = 0  # how many replies were shown often enough to be among them


def figures(root: Path) -> FeedbackFigures:
    """Read the log of the store in this directory."""
    report, replies, shown, contexts = FeedbackFigures(), Replies(root), dict[str, _ReplyCounts](), _Contexts()
    for use in uses(root):
        ranking, outcome = use.ranking, outcome_of(use)
        report.rankings += 1
        report.began, report.ended = min(report.began, ranking.at), max(report.ended, ranking.at)
        report.events.update(event.kind for event in use.events)
        if outcome.kind is None or not ranking.shown:
            continue
        [first] = replies.find(ranking, ranking.shown[:1])
        _count(report, ranking, outcome, {} if first is None else first.metadata)
        for rank, reply in enumerate(ranking.shown, 1):
            if reply.id is not None:
                if reply.id not in shown:
                    shown[reply.id] = _ReplyCounts(replace(ranking, shown=(reply,), said=None))
                shown[reply.id].count(rank, outcome)
        if len(shown) > _MOST_HELD:
            shown = _most_often(shown, lambda each: each.shown)
        if ranking.said is not None and ranking.said.turns:
            contexts.add(ranking.said.turns[-1].text, outcome.kind in ("written", "none_good"))
    report.generations, report.days = (dict(sorted(each.items())) for each in (report.generations, report.days))
    groups = {name: values for name, values in report.groups.items() if 2 <= len(values) <= _VALUES}
    order = sorted(groups, key=lambda name: (-sum(share.of for share in groups[name].values()), name))
    report.groups = {name: dict(sorted(groups[name].items())) for name in order[:_FIELDS]}  # those most replies have
    report.with_texts = contexts.count
    report.lacks, report.alone = contexts.lacks()
    report.untaken, report.shown_often = _untaken(shown, replies)
    return report


def _most_often(counts: dict[str, T], how_often: Callable[[T], int]) -> dict[str, T]:
    return dict(sorted(counts.items(), key=lambda each: how_often(each[1]), reverse=True)[: _MOST_HELD // 2])


def _count(report: FeedbackFigures, ranking: Ranking, outcome: Outcome, metadata: Mapping[str, Any]) -> None:
    took = outcome.rank == 1
    day = datetime.fromtimestamp(ranking.at, UTC).date().isoformat()
    report.judged += 1
    report.first = report.first.plus(took)
    for shares, name in ((report.generations, ranking.generation), (report.days, day)):
        shares[name] = shares[name].plus(took)
    for name, value in metadata.items():
        if isinstance(value, str | bool):
            values, label = report.groups[name], value if isinstance(value, str) else str(value).lower()
            if label in values or len(values) <= _VALUES:  # one more shows that there are too many
                values[label] = values[label].plus(took)
    report.sent[outcome.kind if outcome.kind in ("written", "none_good") else outcome.rank or 0] += 1


@dataclass(slots=True)
class _ReplyCounts:
    """A reply as a ranking showed it first, and how often rankings that are judged showed and took it."""

    at: Ranking
    shown: int = 0
    first: int = 0
    taken: int = 0

    def count(self, rank: int, outcome: Outcome) -> None:
        self.shown += 1
        self.first += rank == 1
        self.taken += rank == outcome.rank


def _untaken(shown: Mapping[str, _ReplyCounts], replies: Replies) -> tuple[list[Untaken], int]:
    often = [(name, each) for name, each in shown.items() if each.shown >= SHOWN_OFTEN]
    never = [(-each.first, -each.shown, name) for name, each in often if not each.taken]
    untaken = []
    for first, times, name in sorted(never)[:_NEVER_TAKEN]:
        [candidate] = replies.find(shown[name].at, shown[name].at.shown)
        untaken.append(Untaken(name, None if candidate is None else candidate.text, -times, -first))
    return untaken, len(often)


class _Contexts:
    """The ends of contexts, to find out what tells those for which nothing was good."""

    def __init__(self) -> None:
        self.count = 0
        self._with_word = Counter[str]()
        self._lacking: deque[tuple[str, tuple[str, ...]]] = deque(maxlen=_MOST_LACKING)  # last turns, and their words

    def add(self, text: str, lacks: bool) -> None:
        last_words = words(text[-_LETTERS:])[len(text) > _LETTERS :]  # the first one may be cut in two
        has = {intern(word) for word in last_words if not word.isdecimal()}
        self.count += 1
        self._with_word.update(has)
        if len(self._with_word) > _MOST_HELD:
            self._with_word = Counter(_most_often(self._with_word, int))
        if lacks:
            self._lacking.append((text[-_LETTERS:], tuple(has)))

    def lacks(self) -> tuple[list[Lack], int]:
        """Group contexts for which nothing was good by a word that they share; returns also how many stay alone.

        The word with the largest `l^2 / n log(N / n)^2` makes a group, where l of these contexts and n of all N have
        it: it is rare among all, and frequent where nothing was good. The next word is sought among the contexts that
        are left.
        """
        left, groups = [*self._lacking], list[Lack]()
        counts = Counter(chain.from_iterable(has for _, has in left))
        often = {word: max(count, self._with_word[word]) for word, count in counts.items()}
        rarity = {word: math.log(self.count / n) ** 2 / n for word, n in often.items()}

        def telling(counts: Mapping[str, int]) -> Iterator[tuple[float, str]]:
            return ((-rarity[word] * count**2, word) for word, count in counts.items() if count > 1 and rarity[word])

        while len(groups) < _LACKS and (best := min(telling(counts), default=None)):
            most, word = best
            own, left = ([each for each in left if (word in each[1]) is is_own] for is_own in (True, False))
            beside = Counter(chain.from_iterable(has for _, has in own))
            counts.subtract(beside)
            names = [
                word for value, word in sorted(telling(beside)) if 2 * beside[word] >= len(own) and 4 * value <= most
            ]
            turns = {folded_line(text): text for text, _ in own}
            frequent = Counter(folded_line(text) for text, _ in own).most_common(_EXAMPLES)
            groups.append(Lack(names[:3], len(own), [turns[turn] for turn, _ in frequent]))
        return sorted(groups, key=lambda group: (-group.contexts, group.words)), len(left)
