"""The form in which texts are compared."""

import time
from itertools import pairwise
from unicodedata import combining, normalize

import pytest

from polyrank.model.text.folding import drawn_order, folded, folded_line


@pytest.mark.parametrize(("text", "expected"), [
    ("Stra\u00dfe", "strasse"),
    ("Mu\u0308ller", "m\u00fcller"),
    ("co\u00adop\u200be\u200cr\u200da\u2060te\ufeff", "cooperate"),
    ("\u202babc\u202c \u2066x\u2069", "abc x"),
    ("\u2764\ufe0f", "\u2764"),
    ("\uff2f\uff32\uff24\uff0d\uff11", "ord-1"),
    ("\ufb01ne \u2167", "fine viii"),
    ("\u0130ZM\u0130R Isparta \u0131sparta", "izmir isparta isparta"),
    ("\u039f\u03b4\u03cc\u03c2 \u039f\u0394\u039f\u03a3", "\u03bf\u03b4\u03cc\u03c3 \u03bf\u03b4\u03bf\u03c3"),
    ("\uff76\uff9e", "\u30ac"),
    ("e\u034f\u0301", "\u00e9"),
    ("\U0001f469\u200d\U0001f4bb a\u200d\U0001f4bb", "\U0001f469\u200d\U0001f4bb a\U0001f4bb"),
    ("\u2764\ufe0f\u200d\U0001f525 \u2764\u200d\U0001f525", "\u2764\u200d\U0001f525 \u2764\u200d\U0001f525"),
    ("\ud800", "\ud800"),
])  # fmt: skip
def test_folded(text: str, expected: str) -> None:
    assert folded(text) == expected


def test_white_space_of_a_line() -> None:
    assert folded_line(" A\u00a0 b\t\nC\u3000") == "a b c"


def test_every_form_of_a_character_folds_to_one() -> None:
    """All that have several, or are marks, alone and with a mark between other letters."""
    several = [
        letter
        for letter in map(chr, range(0x110000))
        if combining(letter) or letter.casefold() != letter or normalize("NFKD", letter) != letter
    ]
    assert len(several) > 10_000
    for letter in several:
        for text in (letter, f"a{letter}\u0301b"):
            once = folded(text)
            assert folded(once) == once
            assert folded(normalize("NFD", text)) == once, hex(ord(letter))


@pytest.mark.parametrize("piece", ["\u0315\u0300", "\u0315\uff9e", "\u0315\u200b\u0300", "\u200d", "\U0001f469\u200d"])
def test_no_text_takes_long(piece: str) -> None:
    """Twenty times the text takes nothing like four hundred times as long: normalising sorts the marks of a letter."""

    def seconds(text: str) -> float:
        began = time.process_time()
        folded(text)
        return time.process_time() - began

    small = min(seconds("a" + piece * 5_000) for _ in range(5))
    assert seconds("a" + piece * 100_000) < 100 * small + 0.1


def test_an_order_looks_drawn_and_is_that_of_the_names_alone() -> None:
    names = [f"{number:03}" for number in range(100)]
    drawn = drawn_order(names)
    assert drawn == drawn_order(names[::-1])
    assert sorted(drawn) == names
    assert 40 < sum(one < other for one, other in pairwise(drawn)) < 60
