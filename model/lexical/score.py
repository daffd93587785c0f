"""The lexical part of the score: a weighted sum of features over all rows of a table."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.config import LexicalConfig
from polyrank.model.errors import CheckpointInvalid
from polyrank.model.lexical.features import (
    FEATURES,
    ROW_FEATURES,
    TEXT_FEATURES,
    TURN_FEATURES,
    WORD_FEATURES,
    Factors,
    ReadContext,
    read,
    weighed,
)
from polyrank.model.lexical.table import WordQuery, WordTable
from polyrank.model.lexical.words import Statistics, keys_of, normalised
from polyrank.model.representations import Additions
from polyrank.model.text.assembly import Conversation

# By which words of turns lose most of their weight. Over crowded lists of training dialogues 0.05 to 0.2 are level; of
# these 0.2 costs drawn lists the least.
_CROWDED = 0.2


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
        return self.query(conversation, table.statistics).values_in(table)

    def query(self, conversation: Conversation, statistics: Statistics) -> WordQuery:
        """Return what gives `values` for each of several tables, all of them with these statistics.

        The conversation is read once, which takes longer than a small table.
        """
        return _word_query(read(conversation), statistics, self._weights)

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
        query = _word_query(read(conversation), statistics, dict.fromkeys(TURN_FEATURES, 1.0))
        sums = np.concatenate([query.sums(table) for table in tables])
        others = (math.fsum(sums) - float(sums.max())) / (len(sums) - 1)  # in whatever order
        expected = float(query.factors @ (statistics.frequencies_of(query.keys) / max(1, statistics.texts)))
        return math.exp(-max(0.0, others - expected) / _CROWDED)

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
        terms = []
        for name, weight in self._weights.items():
            if name in WORD_FEATURES:
                values = _shared(WORD_FEATURES[name](context), table)
                terms += [Term(name, word, weight * value) for word, value in values.items()]
            elif name in TEXT_FEATURES:
                terms.append(Term(name, None, weight * TEXT_FEATURES[name](context).get(normalised(text), 0.0)))
            else:
                terms.append(Term(name, None, weight * float(table.column(name)[0])))
        return sorted((term for term in terms if term.value), key=lambda term: -abs(term.value))


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


def _word_query(context: ReadContext, statistics: Statistics, weights: Factors) -> WordQuery:
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
    return np.column_stack([_word_query(context, table.statistics, {name: 1.0}).sums(table) for name in FEATURES])
