"""The features: numbers that words give a candidate for a context. Each has one of three forms.

A word feature gives words of the context a factor: a candidate gets, for each of them that it has, the factor times
the word's BM25 weight in the candidate. A row feature is a number of the candidate alone times a number of the context
alone. A text feature gives a number to candidates with one of certain texts. Sums of such numbers are found for all
rows of a pool by an inverted index, so that a search stays exact.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from polyrank.model.evidence.reading import ReadContext
from polyrank.model.evidence.words import normalised

Factors = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class WordFeature:
    """Factors of words; `factors(context, decay)` gives them."""

    factors: Callable[[ReadContext, float], Factors]


@dataclass(frozen=True, slots=True)
class TextFeature:
    """Values of normalised texts; `values(context)` gives them."""

    values: Callable[[ReadContext], Factors]


@dataclass(frozen=True, slots=True)
class RowFeature:
    """A column of COLUMNS, times `factor(context)`."""

    column: str
    factor: Callable[[ReadContext], float]


def persona_words(context: ReadContext, decay: float) -> Factors:
    """Count each word of the persona. BM25 of a reply against the persona is this feature.

    >>> persona_words(ReadContext((("i", "sail"), ("i", "cook")), ()), 0.5)
    {'i': 2, 'sail': 1, 'cook': 1}
    """
    return _counted(context.persona)


def last_turn_words(context: ReadContext, decay: float) -> Factors:
    """Count each word of the newest turn."""
    return _counted(turn.words for turn in context.turns[:1])


def turn_before_words(context: ReadContext, decay: float) -> Factors:
    """Count each word of the turn before the newest."""
    return _counted(turn.words for turn in context.turns[1:2])


def older_turns_words(context: ReadContext, decay: float) -> Factors:
    """Count each word of the turns before these two; each turn counts `decay` times as much as the one after it."""
    factors: dict[str, float] = {}
    share = 1.0
    for turn in context.turns[2:]:
        for word in turn.words:
            factors[word] = factors.get(word, 0.0) + share
        share *= decay
    return factors


def said(context: ReadContext) -> Factors:
    """Give 1 to every text that is a turn of the conversation already."""
    return {normalised(turn.text): 1.0 for turn in context.turns}


def log_words(text: str, words: int) -> float:
    """Return the logarithm of a candidate's number of words, plus one.

    >>> log_words("", 0)
    0.0
    """
    return math.log1p(words)


def always(context: ReadContext) -> float:
    """Return 1: the feature is the column itself."""
    return 1.0


COLUMNS: Mapping[str, Callable[[str, int], float]] = {"log_words": log_words}
"""Numbers of a candidate by its text and how many words that has."""

WORD_FEATURES: Mapping[str, WordFeature] = {
    "persona": WordFeature(persona_words),
    "last": WordFeature(last_turn_words),
    "before": WordFeature(turn_before_words),
    "older": WordFeature(older_turns_words),
}
TEXT_FEATURES: Mapping[str, TextFeature] = {"said": TextFeature(said)}
ROW_FEATURES: Mapping[str, RowFeature] = {"length": RowFeature("log_words", always)}
FEATURES = (*WORD_FEATURES, *TEXT_FEATURES, *ROW_FEATURES)
"""The names of all features."""


def _counted(parts: Iterable[Iterable[str]]) -> Factors:
    return dict(Counter(word for part in parts for word in part))
