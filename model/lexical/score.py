"""The lexical part of the score: numbers that words give a candidate for a context, and their weighted sum.

Each number is a feature, of one of three forms.

* A word feature gives words of the context a factor. A candidate gets, for each of them that it has, the factor times
  the word's rarity (`Statistics.rarity`) times its BM25 weight in the candidate (`bm25_weights`).
* A text feature gives a number to the candidates with one of certain texts.
* A row feature is a number of the candidate alone, which its table holds.

Sums of such numbers are found for all rows of a pool by an inverted index, so that a search over them stays exact.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.config import LexicalConfig
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.lexical.table import ROW_FEATURES, Factors, WordQuery, WordTable
from polyrank.model.lexical.words import Statistics, keys_of, normalised, words
from polyrank.model.representations import Additions
from polyrank.model.text.assembly import COUNTED_LETTERS, Conversation, Turn

_DIGIT = re.compile(r"\d")
_SHORTEST_NAME = 3  # so many letters; shorter ones are numbers of things
_DECAY = 0.95  # of a word with each turn that has passed since; best of 0.3 to 1 on held-out training dialogues
# By which words of turns lose most of their weight. Over crowded lists of training dialogues 0.05 to 0.2 are level; of
# these 0.2 costs drawn lists the least.
_CROWDED = 0.2


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
        said = words(turn.text)
        lengths[turn.text] = len(said)
        for word in said:
            newest.setdefault(word, age)
        if _is_own(turn, age, turns[0].role):
            own.update(said)
    persona = (word for fact in _within(map(Turn, conversation.persona)) for word in words(fact.text))
    return ReadContext(frozenset(persona), lengths, newest, frozenset(own))


def unread(conversation: Conversation) -> tuple[int, int]:
    """Return how many turns `read` leaves out, and how many letters of the other turns and of the persona.

    >>> unread(Conversation.of(["a", "b" * COUNTED_LETTERS, "c"], "d" * (COUNTED_LETTERS + 5)))
    (1, 6)
    """
    said = [turn for turn in reversed(conversation.turns) if turn.text.strip()]
    kept = list(_within(said))
    cut = _letters(said[: len(kept)]) - _letters(kept)
    facts = [Turn(fact) for fact in conversation.persona if fact.strip()]
    return len(said) - len(kept), cut + _letters(facts) - _letters(_within(facts))


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


class Term(NamedTuple):
    """One of the numbers that add up to a reply's lexical score."""

    feature: str
    word: str | None  # that context and reply share; None: the feature is of the whole reply
    value: float  # with the feature's weight


class LexicalScore:
    """The lexical score of a reply, beside the score of the network; safe to call from threads.

    A reply's score is `float32(late_weight * late + float64(value))`, where `late` is the network's score in float64
    and `value` is the reply's number in `values`. The network's score is the closed form of candidate attention, or for
    a Cross-encoder the score of the pair.

    Words tell less where a list was chosen by them: where its candidates share the words of the conversation more than
    candidates of the pool do. `turns_share` says how much is left, and `sharing` makes it count. `late_weight` is
    above 0.
    """

    def __init__(self, config: LexicalConfig, has_network: bool = True) -> None:
        """Raise CheckpointInvalid for a feature that this release does not know.

        has_network: False for a lexical model. Beside it stands nothing that words could leave the choice to, so its
            words count alike in every list.
        """
        unknown = sorted(set(config.weights) - set(FEATURES))
        if unknown:
            raise CheckpointInvalid(
                f"polyrank.json: evidence.weights has unknown {', '.join(unknown)}; written by a newer release?"
            )
        self.config = config
        self._has_network = has_network
        self.late_weight = float(config.late_weight)
        self._weights = {name: float(config.weights[name]) for name in FEATURES if config.weights.get(name)}

    def values(self, conversation: Conversation, table: WordTable) -> NDArray[np.float32]:
        """Return the lexical part of each row's score, (N,), finite.

        A text's value depends on the conversation and the table's statistics alone: it is the same to the bit in every
        table.
        """
        return self.asked(conversation, table.statistics).values_in(table)

    def asked(self, conversation: Conversation, statistics: Statistics) -> WordQuery:
        """Return what gives `values` for each of several tables, all of them with these statistics.

        The conversation is read once, which takes longer than a small table.
        """
        return _asked(read(conversation), statistics, self._weights)

    def turns_share(self, conversation: Conversation, tables: Sequence[WordTable]) -> float:
        """Return how much the words of the turns tell in a list of candidates, from above 0 to 1.

        `exp(-max(0, a - e) / 0.2)`. *a* is what the candidates share with the turns on average, without the one that
        shares the most: the sum of rarity times BM25 weight over the words. *e* is the same for a candidate that was
        drawn from the pool, if it is of average length. So a list that was drawn has 1, a single candidate too.

        tables: of the candidates, in one table or in several parts, all with the same statistics.
        """
        if sum(map(len, tables)) < 2:
            return 1.0
        statistics = tables[0].statistics
        asked = _asked(read(conversation), statistics, dict.fromkeys(TURN_FEATURES, 1.0))
        shared = np.concatenate([asked.sums(table) for table in tables])
        others = (math.fsum(shared) - float(shared.max())) / (len(shared) - 1)  # in whatever order
        drawn = float(asked.factors @ (statistics.frequencies_of(asked.keys) / max(1, statistics.texts)))
        return math.exp(-max(0.0, others - drawn) / _CROWDED)

    def sharing(self, turns_share: float) -> "LexicalScore":
        """Return evidence by which the words of the turns count as much of their weights."""
        if turns_share == 1 or not self._has_network:
            return self
        lower = {name: turns_share * self._weights[name] for name in TURN_FEATURES if name in self._weights}
        return LexicalScore(replace(self.config, weights={**self.config.weights, **lower}), self._has_network)

    def in_list(self, conversation: Conversation, table: WordTable) -> "LexicalScore":
        """Return evidence for the rows of a table that are one list of candidates."""
        return self.sharing(self.turns_share(conversation, [table])) if self._has_network else self

    def rests_on_words(self, texts: Sequence[str], values: Sequence[float], statistics: Statistics) -> bool:
        """Return whether words, or a whole text that was said, count in any of these texts' `values`."""
        table, rest = WordTable.of(texts, statistics), np.zeros(len(texts))
        for name in (name for name in ROW_FEATURES if name in self._weights):
            rest += self._weights[name] * table.column(name).astype(np.float64)
        return bool(np.any(rest.astype(np.float32) != np.asarray(values, np.float32)))

    def scores(self, late: NDArray[np.float32], values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Put the network's scores (N,) and the lexical parts (N,) together, (N,)."""
        return Additions(self.late_weight, values).to(late)

    def additions(self, conversation: Conversation, table: WordTable) -> Additions:
        """Return what a search over the table's rows adds to the scores of their vectors."""
        return Additions(self.late_weight, self.values(conversation, table))

    def terms(self, conversation: Conversation, text: str, statistics: Statistics) -> list[Term]:
        """Return what is added up to a text's value, the largest terms first; those of 0 are left out."""
        context, table = read(conversation), WordTable.of([text], statistics)
        found = []
        for name, weight in self._weights.items():
            if name in WORD_FEATURES:
                shared = _shared(WORD_FEATURES[name](context), table)
                found += [Term(name, word, weight * value) for word, value in shared.items()]
            elif name in TEXT_FEATURES:
                found.append(Term(name, None, weight * TEXT_FEATURES[name](context).get(normalised(text), 0.0)))
            else:
                found.append(Term(name, None, weight * float(table.column(name)[0])))
        return sorted((term for term in found if term.value), key=lambda term: -abs(term.value))


def _shared(factors: Factors, table: WordTable) -> dict[str, float]:
    """Return what each word adds to the only row of a table, for the words that it has, before any weight."""
    statistics, value_of = table.statistics, dict(zip(table.keys.tolist(), table.weights.tolist(), strict=True))
    keyed = zip(keys_of(factors).tolist(), factors.items(), strict=True)
    own = {word: (key, factor) for key, (word, factor) in keyed if key in value_of}
    rarities = statistics.rarity(np.array([key for key, _ in own.values()], np.uint64)).tolist()
    return {
        word: factor * rarity * value_of[key]
        for (word, (key, factor)), rarity in zip(own.items(), rarities, strict=True)
    }


def _asked(context: ReadContext, statistics: Statistics, weights: Factors) -> WordQuery:
    factors, texts = weighed(context, weights)
    keys, first = np.unique(keys_of(factors), return_index=True)
    return WordQuery(
        keys,
        np.array(list(factors.values()), np.float64)[first] * statistics.rarity(keys),
        {name: weights[name] for name in ROW_FEATURES if name in weights},
        keys_of(texts),
        np.array(list(texts.values()), np.float64),
    )


def feature_table(context: ReadContext, table: WordTable) -> NDArray[np.float64]:
    """Return each feature of each row by itself, (N, F), in the order of FEATURES."""
    return np.column_stack([_asked(context, table.statistics, {name: 1.0}).sums(table) for name in FEATURES])
