"""Texts that show nothing, that stand for nothing, that are HTML, and that stand for true and false."""

import pytest

from polyrank.index_builder.pool.letters import are_true_and_false, has_tags, is_false, says_nothing, shown


@pytest.mark.parametrize("text", ["", " \n", "\u200b", "\ufeff \u200b\u2060", "\xa0"])
def test_nothing_is_shown(text: str) -> None:
    assert shown(text) == ""


@pytest.mark.parametrize(("text", "kept"), [(" a ", "a"), ("\u200ba b\ufeff", "a b"), ("👨\u200d👩", "👨\u200d👩")])
def test_what_is_shown_is_kept(text: str, kept: str) -> None:
    assert shown(text) == kept


def test_what_programs_write_for_nothing() -> None:
    assert all(map(says_nothing, ("NaN", "None", " NULL", "\\N", "<NA>", "undefined")))
    assert not any(map(says_nothing, ("", "no", "none of them", "0", "nano")))


def test_tags() -> None:
    assert has_tags("a<br/>b")
    assert not any(map(has_tags, ("a < b", "<3", "i <- 5", "<>", "<Enter>", "<your name>", "a <b and c>")))
    assert all(map(has_tags, ("<p>", "<P class='x' id=y>", "<img src=x />", "<code>a</code>", "<!doctype html>")))


@pytest.mark.parametrize("cell", ["false", "FALSCH", " Non ", "hayır", "HAYIR", "いいえ", "НЕТ", "0", "0.0", "n"])
def test_a_no_is_false(cell: str) -> None:
    assert is_false(cell)


@pytest.mark.parametrize("cell", ["true", "WAHR", "oui", "1", "none", "", "falsch verbunden", "00"])
def test_nothing_else_is(cell: str) -> None:
    assert not is_false(cell)


def test_both_words_are_of_one_language() -> None:
    assert are_true_and_false({"ja", "nein"})
    assert are_true_and_false({"JA", "nej"})
    assert not are_true_and_false({"ja", "non"})
    assert not are_true_and_false({"ja"})
    assert not are_true_and_false({"nein", "no"})
