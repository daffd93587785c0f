"""What a word is, and when two texts count as the same."""

import time

import pytest

from polyrank.model.evidence.words import key_of, normalised, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" ?! \n", []),
        ("Hello, WORLD", ["hello", "world"]),
        ("straße STRASSE", ["strasse", "strasse"]),
        ("don't don\u2019t dont", ["dont", "dont", "dont"]),
        ("a-b c_d e.f", ["a", "b", "c", "d", "e", "f"]),
        ("__init__ _ -", ["init"]),
        ("order #ORD-123-X.", ["order", "ord-123-x"]),
        ("error:0x80070057!", ["error", "0x80070057"]),
        ("v2.3.1-rc_4, 3.5mm", ["v2.3.1-rc_4", "3.5mm"]),
        ("10:30 and 1/2", ["10", "30", "and", "1", "2"]),
        ("\u0397\u039b\u0399\u039f\u03a3 42", ["\u03b7\u03bb\u03b9\u03bf\u03c3", "42"]),
        ("\ud800x", ["x"]),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize("piece", ["a.", "a", "1-", "'", "_", "a'", "\u0315\u0300", "a_1."])
def test_no_text_takes_long(piece: str) -> None:
    """Twenty times the text takes nothing like four hundred times as long."""

    def seconds(text: str) -> float:
        began = time.process_time()
        words(text)
        return time.process_time() - began

    small = min(seconds(piece * 5_000) for _ in range(5))
    assert seconds(piece * 100_000) < 100 * small + 0.1


@pytest.mark.parametrize(("one", "other"), [("Yes!", "yes"), ("Ok,  then.", "ok then"), (":-)", " :-) "), ("?", "?")])
def test_the_same_text(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(("one", "other"), [("yes", "no"), ("a b", "ab"), ("a b", "b a"), (":-)", ":-("), ("?", "")])
def test_another_text(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)


def test_lone_surrogates_have_keys() -> None:
    assert key_of("\ud800") != key_of("\ud801")
