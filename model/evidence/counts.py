"""How often each word stands in each text."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.model.evidence.words import key_of, words


class WordCounts(NamedTuple):
    """The words of N texts, as a sparse table of V distinct words, sorted by word and then by text.

    Attributes:
        keys: the hash of each distinct word, (V,), ascending.
        words: place of the word in `keys`, (entries,).
        rows: the text that it stands in, (entries,).
        times: how often it stands there, (entries,).
        lengths: words of each text, (N,).
    """

    keys: NDArray[np.uint64]
    words: NDArray[np.int64]
    rows: NDArray[np.int64]
    times: NDArray[np.int64]
    lengths: NDArray[np.int64]


def count_words(texts: Sequence[str]) -> WordCounts:
    """Count the words of each text."""
    place_of: dict[str, int] = {}
    places, lengths = array("q"), array("q")
    for text in texts:
        found = words(text)
        places.extend([place_of.setdefault(word, len(place_of)) for word in found])
        lengths.append(len(found))
    keys, rank = np.unique(np.array([key_of(word) for word in place_of], np.uint64), return_inverse=True)
    of_row = np.repeat(np.arange(len(texts)), np.array(lengths, np.int64))
    entries, times = np.unique(rank[np.array(places, np.int64)] * len(texts) + of_row, return_counts=True)
    by_word, rows = np.divmod(entries, max(1, len(texts)))
    return WordCounts(keys, by_word, rows, times, np.array(lengths, np.int64))
