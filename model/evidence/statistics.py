"""How common each word is in a pool, which says how much it tells."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.model.evidence.counts import count_words

_TEXTS_AT_ONCE = 8192
_COMMON = 3.5  # the best of 0 to 5 on held-out training dialogues; words in more than 3 % of the texts count nothing


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts over a pool of texts, all of them whole numbers.

    Attributes:
        texts: how many texts there are.
        words: how many words they have together.
        keys: the hash of each distinct word (`key_of`), (V,), ascending.
        frequencies: how many texts have the word, (V,).
    """

    texts: int
    words: int
    keys: NDArray[np.uint64]
    frequencies: NDArray[np.int64]

    @classmethod
    def of(cls, pool: Iterable[str]) -> "Statistics":
        """Count a pool's words; memory grows with the distinct words, not with the texts."""
        total = cls(0, 0, np.empty(0, np.uint64), np.empty(0, np.int64))
        remaining = iter(pool)
        while chunk := list(islice(remaining, _TEXTS_AT_ONCE)):
            counts = count_words(chunk)
            frequencies = np.bincount(counts.words, minlength=len(counts.keys))
            total = total.plus(cls(len(chunk), int(counts.lengths.sum()), counts.keys, frequencies))
        return total

    def plus(self, other: "Statistics") -> "Statistics":
        """Return the statistics of two pools together."""
        keys, place = np.unique(np.concatenate([self.keys, other.keys]), return_inverse=True)
        frequencies = np.zeros(len(keys), np.int64)
        np.add.at(frequencies, place, np.concatenate([self.frequencies, other.frequencies]))
        return Statistics(self.texts + other.texts, self.words + other.words, keys, frequencies)

    @property
    def average_length(self) -> float:
        """Words of an average text; 1 where there are none."""
        return self.words / self.texts if self.words else 1.0

    def rarity(self, keys: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Return how much a word tells that context and candidate share, (n,): 0 for common words, and never less.

        `max(0, log(1 + (N - n + 0.5) / (n + 0.5)) - 3.5)` of N texts, n of which have the word. The logarithm is
        BM25's idf, as Lucene computes it (Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework"). It
        takes for granted that half of all right replies repeat a word. Croft and Harper 1979 ("Using probabilistic
        models of document retrieval without relevance information") add the log odds of that: -3.5 for 3 %.

        >>> from polyrank.model.evidence.words import key_of
        >>> pool = Statistics(1000, 9000, np.array([key_of("the")], np.uint64), np.array([600]))
        >>> pool.rarity(np.array([key_of("the"), key_of("ord-1-x")], np.uint64)).round(3)
        array([0.   , 4.102])
        """
        # One by one: NumPy's logarithm may differ between processors in the last bit.
        odds = (1 + (self.texts - n + 0.5) / (n + 0.5) for n in self._frequencies_of(keys).tolist())
        return np.array([max(0.0, math.log(each) - _COMMON) for each in odds])

    def shares_of(self, keys: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Return the share of the texts that has each word, (n,)."""
        return self._frequencies_of(keys) / max(1, self.texts)

    def _frequencies_of(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        if not len(self.keys):
            return np.zeros(len(keys), np.int64)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, self.frequencies[places], 0)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what `from_arrays` wants, by name."""
        return {
            "totals": np.array([self.texts, self.words], np.int64),
            "keys": self.keys,
            "frequencies": self.frequencies,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> "Statistics":
        """Restore statistics from `arrays()`, which may be memory-mapped."""
        texts, words = arrays["totals"].tolist()
        return cls(texts, words, arrays["keys"], arrays["frequencies"])
