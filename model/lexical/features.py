"""The features: numbers that words give a candidate for a context. Each has one of three forms.

* A word feature gives words of the context a factor. A candidate gets, for each of them that it has, the factor times
  the word's rarity (`Statistics.rarity`) times its BM25 weight in the candidate (`bm25_weights`).
* A text feature gives a number to the candidates with one of certain texts.
* A row feature is a number of the candidate alone.

Sums of such numbers are found for all rows of a pool by an inverted index, so that a search over them stays exact.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from polyrank.model.lexical.words import normalised, words
from polyrank.model.text.assembly import COUNTED_LETTERS, Conversation, Turn


@dataclass(frozen=True, slots=True)
class ReadContext:
    """What the features know of a conversation."""

    persona: frozenset[str]
    turns: dict[str, int]  # the text of each turn that is not blank, newest first, and how many words it has
    newest: dict[str, int]  # for each word of the turns, how many turns ago it was last said; 0 in the newest turn
    own: frozenset[str]  # the words that the replying side has said


def read(conversation: Conversation) -> ReadContext:
    """Read a conversation: of the persona the first COUNTED_LETTERS letters, of the turns as many, newest first.

    What lies beyond them is not read, so that a huge context costs no more than a long one. The newest turn is the
    other side's. If it has a role, so are all turns of that role; if not, the sides take turns.

    >>> context = read(Conversation.of(["A boat?", "My boat is old", "How old?"], "I sail"))
    >>> context.newest["old"], context.newest["boat"], sorted(context.own), sorted(context.persona)
    (0, 1, ['boat', 'is', 'my', 'old'], ['i', 'sail'])
    """
    turns = list(_within(reversed(conversation.turns)))
    lengths: dict[str, int] = {}
    newest: dict[str, int] = {}
    own: set[str] = set()
    for age, turn in enumerate(turns):
        turn_words = words(turn.text)
        lengths[turn.text] = len(turn_words)
        for word in turn_words:
            newest.setdefault(word, age)
        if _is_own(turn, age, turns[0].role):
            own.update(turn_words)
    persona = (word for fact in _within(map(Turn, conversation.persona)) for word in words(fact.text))
    return ReadContext(frozenset(persona), lengths, newest, frozenset(own))


def unread(conversation: Conversation) -> tuple[int, int]:
    """Return how many turns `read` leaves out, and how many letters of the other turns and of the persona.

    >>> unread(Conversation.of(["a", "b" * COUNTED_LETTERS, "c"], "d" * (COUNTED_LETTERS + 5)))
    (1, 6)
    """
    turns = [turn for turn in reversed(conversation.turns) if turn.text.strip()]
    turns_read = list(_within(turns))
    cut = _letters(turns[: len(turns_read)]) - _letters(turns_read)
    facts = [Turn(fact) for fact in conversation.persona if fact.strip()]
    return len(turns) - len(turns_read), cut + _letters(facts) - _letters(_within(facts))


def _letters(turns: Iterable[Turn]) -> int:
    return sum(len(turn.text) for turn in turns)


def _is_own(turn: Turn, age: int, other: str | None) -> bool:
    return age % 2 == 1 if other is None else turn.role is not None and turn.role != other


def _within(turns: Iterable[Turn]) -> Iterator[Turn]:
    """Yield the first turns that are not blank, up to COUNTED_LETTERS letters in all; the last one may lose its end."""
    room = COUNTED_LETTERS
    for turn in turns:
        if room <= 0:
            return
        if turn.text.strip():
            yield Turn(turn.text[:room], turn.role)
            room -= len(turn.text)


_DIGIT = re.compile(r"\d")
_SHORTEST_NAME = 3  # so many letters; shorter ones are numbers of things
_DECAY = 0.95  # of a word with each turn that has passed since; best of 0.3 to 1 on held-out training dialogues

Factors = Mapping[str, float]


def persona(context: ReadContext) -> Factors:
    """Take the words of the persona, each once.

    >>> persona(ReadContext(frozenset({"sail"}), {}, {}, frozenset()))
    {'sail': 1.0}
    """
    return dict.fromkeys(context.persona, 1.0)


def told(context: ReadContext) -> Factors:
    """Take the words of the persona that the replying side has said already: a fact is seldom told twice.

    >>> told(ReadContext(frozenset({"sail", "cook"}), {}, {"sail": 1}, frozenset({"sail"})))
    {'sail': 1.0}
    """
    return dict.fromkeys(context.persona & context.own, 1.0)


def last(context: ReadContext) -> Factors:
    """Take the words of the newest turn.

    >>> last(ReadContext(frozenset(), {}, {"boat": 0, "lamp": 1}, frozenset()))
    {'boat': 1.0}
    """
    return {word: 1.0 for word, age in context.newest.items() if age == 0}


def before(context: ReadContext) -> Factors:
    """Take the words of the turn before the newest that the newest lacks.

    >>> before(ReadContext(frozenset(), {}, {"boat": 0, "lamp": 1}, frozenset()))
    {'lamp': 1.0}
    """
    return {word: 1.0 for word, age in context.newest.items() if age == 1}


def older(context: ReadContext) -> Factors:
    """Take the words of older turns that both later ones lack; a word fades with each turn that has passed since.

    >>> older(ReadContext(frozenset(), {}, {"boat": 2, "lamp": 3}, frozenset()))
    {'boat': 1.0, 'lamp': 0.95}
    """
    return {word: _DECAY ** (age - 2) for word, age in context.newest.items() if age >= 2}


def names(context: ReadContext) -> Factors:
    """Take the words of the turns that have a digit and three letters or more: who names a code or a number means it.

    >>> names(ReadContext(frozenset(), {}, {"boat": 0, "err-404": 1, "v2": 1}, frozenset()))
    {'err-404': 1.0}
    """
    return {word: 1.0 for word in context.newest if len(word) >= _SHORTEST_NAME and _DIGIT.search(word)}


def asked(context: ReadContext) -> Factors:
    """Take the names of the newest turn, by their share of its letters: a turn that says little else asks for them.

    >>> asked(ReadContext(frozenset(), {}, {"order": 0, "a-123": 0, "err-404": 1}, frozenset()))
    {'a-123': 0.5}
    """
    newest = [word for word, age in context.newest.items() if age == 0]
    letters = sum(map(len, newest))
    return {word: len(word) / letters for word in names(context) if context.newest[word] == 0}


def said(context: ReadContext) -> Factors:
    """Take the turns of the conversation, by the logarithm of their words: whoever says "yes" twice repeats little.

    >>> said(ReadContext(frozenset(), {"Yes!": 1, ":-)": 0}, {}, frozenset()))
    {'yes': 0.6931471805599453, ':-)': 0.0}
    """
    return {normalised(text): math.log1p(count) for text, count in context.turns.items()}


def length(word_count: int) -> float:
    """Return the logarithm of a candidate's number of words plus one.

    >>> length(0), length(1)
    (0.0, 0.6931471805599453)
    """
    return math.log1p(word_count)


WORD_FEATURES: Mapping[str, Callable[[ReadContext], Factors]] = {
    "persona": persona,
    "told": told,
    "last": last,
    "before": before,
    "older": older,
    "names": names,
    "asked": asked,
}
TURN_FEATURES = ("last", "before", "older")
"""The word features that together take each word of the turns once."""
TEXT_FEATURES: Mapping[str, Callable[[ReadContext], Factors]] = {"said": said}
ROW_FEATURES: Mapping[str, Callable[[int], float]] = {"length": length}
FEATURES = (*WORD_FEATURES, *TEXT_FEATURES, *ROW_FEATURES)
"""The names of all features."""


def weighed(context: ReadContext, weights: Factors) -> tuple[Factors, Factors]:
    """Return what each word counts by all word features that have a weight, and each text by all text features.

    >>> weighed(read(Conversation.of(["A boat", "My boat"])), {"last": 2.0, "before": 0.5})
    ({'my': 2.0, 'boat': 2.0, 'a': 0.5}, {})
    """
    of_words, of_texts = dict[str, float](), dict[str, float]()
    for features, sums in ((WORD_FEATURES, of_words), (TEXT_FEATURES, of_texts)):
        for name in (name for name in features if name in weights):
            for each, factor in features[name](context).items():
                sums[each] = sums.get(each, 0.0) + weights[name] * factor
    return of_words, of_texts
