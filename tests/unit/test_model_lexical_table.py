"""The inverted index and the statistics: against BM25 counted text by text, and through files."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from polyrank.model.lexical.table import WordTable
from polyrank.model.lexical.words import Statistics, keys_of, normalised, words

TEXTS = ["A lamp for a desk", "a desk", "", "...", "lamp lamp lamp, LAMP", "Chairs and ord-1-x", "a desk!"]
POOL = [*TEXTS, *["what is common"] * 500]


def keys(*given: str) -> NDArray[np.uint64]:
    return np.sort(keys_of(given))


def brute_force(texts: list[str], pool: list[str], factors: dict[str, float]) -> list[float]:
    """BM25 as the books write it, its idf less 3.5, or in a small pool less."""
    k1, b = 0.9, 0.4
    lengths = [len(words(text)) for text in pool]
    average = sum(lengths) / len(lengths)
    found = []
    for text in texts:
        counts, total = Counter(words(text)), 0.0
        for word, factor in factors.items():
            n = sum(word in words(other) for other in pool)
            rarest = math.log(1 + (len(pool) - 0.5) / 1.5)
            idf = math.log(1 + (len(pool) - n + 0.5) / (n + 0.5)) - min(3.5, max(0.0, rarest - 1.5))
            idf = max(0.0, idf)
            tf = counts[word]
            if tf == 0:
                continue
            total += factor * idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * len(words(text)) / average))
        found.append(total)
    return found


def test_sums_are_bm25() -> None:
    statistics = Statistics.of(POOL)
    table = WordTable.of([*TEXTS, "common"], statistics)
    factors = {"a": 1.0, "lamp": 0.5, "ord-1-x": 2.0, "unknown": 3.0, "common": 9.0}
    asked = keys(*factors)
    given = np.array(list(factors.values()))[np.argsort(keys_of(factors))]
    sums = table.word_sums(asked, given * statistics.rarity(asked))
    np.testing.assert_allclose(sums, brute_force([*TEXTS, "common"], POOL, factors), rtol=1e-6)
    assert sums[2] == sums[3] == sums[7] == 0
    assert sums[4] > 0


def test_many_texts_are_counted_in_chunks() -> None:
    statistics = Statistics.of("one two" if row % 2 else "two" for row in range(10_001))
    assert (statistics.texts, statistics.words) == (10_001, 15_001)
    assert len(statistics.keys) == 2
    assert statistics.frequencies_of(keys_of(["one", "two"])).tolist() == [5_000, 10_001]


def test_a_rarer_word_tells_more() -> None:
    statistics = Statistics.of(POOL)
    common, frequent, rare, unknown = (statistics.rarity(keys(word))[0] for word in ("is", "a", "chairs", "unknown"))
    assert 0 == common < frequent < rare < unknown


def test_the_table_leaves_out_words_that_tell_nothing() -> None:
    table = WordTable.of(POOL, Statistics.of(POOL))
    assert table.keys.tolist() == keys("a", "lamp", "for", "desk", "chairs", "and", "ord-1-x").tolist()
    assert len(table.rows) == 12


@pytest.mark.parametrize("count", [5, 20, 49, 50, 100, 200, 221, 222, 5000])
def test_of_few_texts_a_word_that_one_has_keeps_what_it_tells(count: int) -> None:
    statistics = Statistics.of(f"word{at} the" for at in range(count))
    rare, common = (statistics.rarity(keys(word))[0] for word in ("word3", "the"))
    idf = math.log(1 + (count - 0.5) / 1.5)
    assert rare == pytest.approx(min(idf, max(1.5, idf - 3.5)))
    assert common < 0.1


def test_nothing_at_all() -> None:
    statistics = Statistics.of([])
    assert (statistics.texts, statistics.words, statistics.average_length) == (0, 0, 1.0)
    assert statistics.rarity(keys("x")) == [0]
    table = WordTable.of([], statistics)
    assert len(table) == 0
    assert table.word_sums(keys("x"), np.ones(1)).shape == (0,)
    assert len(WordTable.of(["", "?"], statistics).word_sums(keys("x"), np.ones(1))) == 2


def test_rows_of_a_text() -> None:
    table = WordTable.of(TEXTS, Statistics.of(TEXTS))
    keys = keys_of(["no such text", normalised("A DESK")])
    assert [(at, rows.tolist()) for at, rows in table.rows_with(keys)] == [(1, [1, 6])]


def test_tables_and_statistics_come_back_from_files(tmp_path: Path) -> None:
    statistics = Statistics.of(POOL)
    table = WordTable.of(TEXTS, statistics)
    read = []
    for part in (statistics, table):
        mapped = {}
        for name, array in part.arrays().items():
            np.save(tmp_path / f"{name}.npy", array)
            mapped[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
        read.append(mapped)
    restored = WordTable.from_arrays(read[1], Statistics.from_arrays(read[0]))
    asked, factors = keys("lamp", "desk"), np.array([0.25, 4.0])
    np.testing.assert_array_equal(restored.word_sums(asked, factors), table.word_sums(asked, factors))
    assert restored.word_sums(asked, factors).any()
    assert (restored.statistics.texts, len(restored)) == (507, 7)
