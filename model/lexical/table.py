"""The words of many candidates, as an inverted index: from a word to the rows that have it.

All arrays may be memory-mapped; a query reads the entries of its own words alone.

A pool that is read in pieces, or updated, has its table put together from tables of its parts.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from polyrank.model.lexical.words import Statistics, WordCounts, count_words, keys_of, normalised

_K1, _B = 0.9, 0.4  # as in Anserini; on held-out training dialogues other values did as well

Factors = Mapping[str, float]  # by which words, texts or features count


def length(word_count: int) -> float:
    """Return the logarithm of a candidate's number of words plus one.

    >>> length(0), length(1)
    (0.0, 0.6931471805599453)
    """
    return math.log1p(word_count)


ROW_FEATURES: Mapping[str, Callable[[int], float]] = {"length": length}
"""The features of a candidate alone, from its number of words."""


@dataclass(frozen=True, slots=True)
class WordTable:
    """What the evidence of N rows is computed from."""

    statistics: Statistics  # of the pool that says how common a word is; the rows need not be part of it
    # The hash of each distinct word of the rows that tells something (`keys_of`), (V,), ascending.
    keys: NDArray[np.uint64]
    starts: NDArray[np.int64]  # where the entries of each word begin, and where the last one's end, (V + 1,)
    rows: NDArray[np.int32]  # the rows that have the word, (entries,), ascending for each word
    weights: NDArray[np.float32]  # the BM25 weight of the word in the row, without its rarity, (entries,)
    columns: NDArray[np.float32]  # the row features of each row, (len(ROW_FEATURES), N)
    texts: NDArray[np.uint64]  # the hash of each row's normalised text (`keys_of`), (N,), ascending
    texts_rows: NDArray[np.int32]  # the row that each of them belongs to, (N,), ascending for equal texts

    @classmethod
    def of(cls, texts: Sequence[str], statistics: Statistics) -> "WordTable":
        counts = _telling(count_words(texts), statistics)
        numbers = [[feature(count) for count in counts.lengths.tolist()] for feature in ROW_FEATURES.values()]
        hashes = keys_of(map(normalised, texts))
        order = np.argsort(hashes, kind="stable")
        return cls(
            statistics,
            counts.keys,
            np.searchsorted(counts.words, np.arange(len(counts.keys) + 1)).astype(np.int64),
            counts.rows.astype(np.int32),
            bm25_weights(counts, statistics.average_length),
            np.array(numbers, np.float32).reshape(len(ROW_FEATURES), len(texts)),
            hashes[order],
            order.astype(np.int32),
        )

    def __len__(self) -> int:
        return len(self.texts)

    def word_sums(self, keys: NDArray[np.uint64], factors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum of factor times weight over each row's words, (N,).

        A row's terms are added in the order of their keys, so its sum is the same to the bit in whatever table it is.

        keys: hashes of words, (n,), distinct and ascending; those that no row has add nothing. factors: (n,).
        """
        if not len(self.keys):
            return np.zeros(len(self))
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        known = self.keys[places] == keys
        places, factors = places[known], factors[known]
        spans = list(zip(self.starts[places].tolist(), self.starts[places + 1].tolist(), strict=True))
        rows = np.concatenate([self.rows[start:end] for start, end in spans] or [self.rows[:0]])
        terms = np.concatenate([self.weights[start:end] for start, end in spans] or [self.weights[:0]]).astype(
            np.float64
        )
        terms *= np.repeat(factors, [end - start for start, end in spans])
        return np.bincount(rows, terms, len(self)).astype(np.float64)

    def column(self, name: str) -> NDArray[np.float32]:
        found: NDArray[np.float32] = self.columns[list(ROW_FEATURES).index(name)]
        return found

    def rows_with(self, keys: NDArray[np.uint64]) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Yield the rows whose normalised text has one of the keys (n,), with the place of the key in `keys`."""
        starts, ends = (np.searchsorted(self.texts, keys, side) for side in ("left", "right"))
        for at in np.flatnonzero(ends > starts).tolist():
            yield at, self.texts_rows[starts[at] : ends[at]]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name, without the statistics."""
        return {name: getattr(self, name) for name in _ARRAYS}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], statistics: Statistics) -> "WordTable":
        """Restore a table from `arrays()`, which may be memory-mapped, and its statistics."""
        return cls(statistics, **{name: arrays[name] for name in _ARRAYS})


_ARRAYS = tuple(field.name for field in fields(WordTable) if field.name != "statistics")


class WordQuery(NamedTuple):
    """What a context asks of every table with the same statistics."""

    keys: NDArray[np.uint64]  # hashes of its words, (n,), ascending
    factors: NDArray[np.float64]  # by which their BM25 weights count, (n,)
    columns: Factors
    texts: NDArray[np.uint64]  # hashes of normalised texts, (t,)
    values: NDArray[np.float64]  # what these texts count, (t,)

    def sums(self, table: WordTable) -> NDArray[np.float64]:
        """Return the sum of all that for each row of a table, (N,)."""
        sums = table.word_sums(self.keys, self.factors)
        for name, weight in self.columns.items():
            sums += weight * table.column(name).astype(np.float64)
        for at, rows in table.rows_with(self.texts):
            sums[rows] += self.values[at]
        return sums

    def values_in(self, table: WordTable) -> NDArray[np.float32]:
        """Return the lexical part of each row's score, (N,), finite; see `LexicalScore.values`."""
        return self.sums(table).astype(np.float32)


def _telling(counts: WordCounts, statistics: Statistics) -> WordCounts:
    """Leave out the words that tell nothing: they are few, and most entries are theirs."""
    tells = statistics.rarity(counts.keys) > 0
    kept = tells[counts.words]
    place = np.cumsum(tells) - 1
    return WordCounts(
        counts.keys[tells], place[counts.words[kept]], counts.rows[kept], counts.times[kept], counts.lengths
    )


def bm25_weights(counts: WordCounts, average_length: float) -> NDArray[np.float32]:
    """Return BM25's weight of each word in each text, without its idf, (entries,).

    `tf (k1 + 1) / (tf + k1 (1 - b + b length / average_length))` (Robertson and Zaragoza 2009, section 3.4). `k1` is
    how much a second occurrence counts, and `b` how much long texts are discounted.

    >>> bm25_weights(count_words(["a a", "b"]), 1.5)
    array([1.2582781, 1.0674157], dtype=float32)
    """
    times = counts.times.astype(np.float64)
    discount = 1 - _B + _B * (counts.lengths[counts.rows] / average_length)
    return (times * (_K1 + 1) / (times + _K1 * discount)).astype(np.float32)


# Makes an array of a name in `WordTable.arrays()`, a shape and a type; its content does not matter.
NewArray = Callable[[str, tuple[int, ...], DTypeLike], NDArray[Any]]


class TableInParts:
    """A table that is made of tables of its parts. It equals, to the bit, the one of all texts at once.

    Entries are written to their places at once, so that the arrays may be mapped files larger than the memory.

    Args:
        keys: the hash of each distinct word of all rows that tells something, (V,), ascending.
        frequencies: how many of the rows have it, (V,).
    """

    def __init__(
        self,
        keys: NDArray[np.uint64],
        frequencies: NDArray[np.int64],
        count: int,
        new_array: NewArray = lambda _name, shape, dtype: np.empty(shape, dtype),
    ) -> None:
        entries = int(frequencies.sum())
        self._arrays = {
            "keys": new_array("keys", keys.shape, np.uint64),
            "starts": new_array("starts", (len(keys) + 1,), np.int64),
            "rows": new_array("rows", (entries,), np.int32),
            "weights": new_array("weights", (entries,), np.float32),
            "columns": new_array("columns", (len(ROW_FEATURES), count), np.float32),
            "texts": new_array("texts", (count,), np.uint64),
            "texts_rows": new_array("texts_rows", (count,), np.int32),
        }
        self._arrays["keys"][:] = keys
        self._arrays["starts"][0] = 0
        np.cumsum(frequencies, out=self._arrays["starts"][1:])
        self._free = self._arrays["starts"][:-1].copy()  # where the next entry of each word goes
        self._done = 0

    def add(self, part: WordTable) -> None:
        """Append the rows of a part, whose words are among `keys`."""
        arrays, first, end = self._arrays, self._done, self._done + len(part)
        words = np.searchsorted(arrays["keys"], part.keys)
        counts = np.diff(part.starts)
        places = np.arange(len(part.rows)) + np.repeat(self._free[words] - part.starts[:-1], counts)
        arrays["rows"][places] = part.rows + first
        arrays["weights"][places] = part.weights
        self._free[words] += counts
        arrays["columns"][:, first:end] = part.columns
        arrays["texts"][first + part.texts_rows] = part.texts  # in the order of the rows, until all are there
        self._done = end

    def finished(self, statistics: Statistics) -> WordTable:
        """Return the table; all parts were made with these statistics, and are there."""
        texts = self._arrays["texts"]
        self._arrays["texts_rows"][:] = np.argsort(texts, kind="stable")
        texts.sort()
        return WordTable.from_arrays(self._arrays, statistics)


def joined(tables: Sequence[WordTable]) -> WordTable:
    """Join tables that were made with the same statistics, one behind the other; at least one."""
    keys, words = np.unique(np.concatenate([table.keys for table in tables]), return_inverse=True)
    frequencies = np.zeros(len(keys), np.int64)
    np.add.at(frequencies, words, np.concatenate([np.diff(table.starts) for table in tables]))
    whole = TableInParts(keys, frequencies, sum(map(len, tables)))
    for table in tables:
        whole.add(table)
    return whole.finished(tables[0].statistics)
