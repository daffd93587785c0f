"""Texts that show nothing, that stand for nothing, and that are HTML."""

import pytest

from polyrank.index_builder.pool.letters import has_tags, says_nothing, shown


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
    assert not any(map(has_tags, ("a < b", "<3", "i <- 5", "<>")))
