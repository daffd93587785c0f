"""A table made of parts is the table of all texts, to the bit, however they are cut."""

import numpy as np
import pytest
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrank.model.lexical.table import TableInParts, WordTable, joined
from polyrank.model.lexical.words import Statistics

WORDS = st.sampled_from(["a", "lamp", "Lamp!", "boat", "ord-1-x", "v2.3", "?", "the", "über", "77"])
MANY = Statistics.of(["the a"] * 1000)  # beside them some words are rare, and some common
TEXTS = st.lists(st.lists(WORDS, max_size=6).map(" ".join), max_size=12)


def assert_equal(found: WordTable, expected: WordTable) -> None:
    for name, array in expected.arrays().items():
        assert found.arrays()[name].dtype == array.dtype, name
        np.testing.assert_array_equal(found.arrays()[name], array, name)


@settings(max_examples=cases(200), deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=4), TEXTS)
def test_parts_make_the_whole(parts: list[list[str]], others: list[str]) -> None:
    texts = [text for part in parts for text in part]
    statistics, counted = MANY.plus(Statistics.of(texts + others)), Statistics.of(texts)
    tables = [WordTable.of(part, statistics) for part in parts]
    expected = WordTable.of(texts, statistics)
    assert_equal(joined(tables), expected)
    tells = statistics.rarity(counted.keys) > 0
    whole = TableInParts(counted.keys[tells], counted.frequencies[tells], len(texts))
    for table in tables:
        whole.add(table)
    found = whole.finished(statistics)
    assert_equal(found, expected)
    assert found.statistics is statistics


def test_what_was_joined_is_not_changed_by_joining() -> None:
    statistics = MANY.plus(Statistics.of(["a lamp", "a boat"]))
    first, second = (WordTable.of([text], statistics) for text in ("a lamp", "a boat"))
    before = {name: array.copy() for name, array in first.arrays().items()}
    assert len(joined([first, second])) == 2
    for name, array in before.items():
        np.testing.assert_array_equal(first.arrays()[name], array)
    assert [rows.tolist() for _, rows in joined([first]).rows_with(first.texts[:1])] == [[0]]


@pytest.mark.parametrize("texts", [[], [""], ["?", ""]])
def test_rows_without_words(texts: list[str]) -> None:
    statistics = Statistics.of(texts)
    table = WordTable.of(texts, statistics)
    assert_equal(joined([table, table]), WordTable.of(texts * 2, statistics))
