"""Entities of HTML: read where they stand for a letter, left where they may be meant."""

import pytest

from polyrank.model.text.entities import places_without_entities, without_entities


@pytest.mark.parametrize(("text", "read"), [
    ("R&uuml;ckgabe m&ouml;glich?", "R\u00fcckgabe m\u00f6glich?"),
    ("it&#39;s 5&nbsp;&euro; &#x2014; &quot;now&quot;", 'it\'s 5\xa0\u20ac \u2014 "now"'),
    ("AT&amp;T", "AT&T"),
    ("Zo\u00eb &#128512;", "Zo\u00eb \U0001f600"),
    ("&amp;uuml;", "&uuml;"),
])  # fmt: skip
def test_an_entity_is_its_letters(text: str, read: str) -> None:
    assert without_entities(text) == read
    places = places_without_entities(text)
    assert len(places) == len(read) + 1
    assert (places[0], places[-1]) == (0, len(text))
    assert places == sorted(places)


@pytest.mark.parametrize("text", [
    "AT&T", "a < b && c > d", "&copy 2020, &uuml and &c;", "?a=1&lt=5&gt=6", "&unknown;",
    "why does <b>&uuml;</b> not show?", "what does `&nbsp;` mean?", "&;&#;&#x;", "&" * 100_000, "",
])  # fmt: skip
def test_what_has_another_sense_stays(text: str) -> None:
    assert without_entities(text) == text
    assert places_without_entities(text) == [*range(len(text) + 1)]


def test_numbers_that_no_letter_has_make_no_bad_text() -> None:
    for number in ("0", "55296", "1114112", "9999999"):
        without_entities(f"a&#{number};b").encode()
