"""Which replies are right for a context, whatever their case, white space and encoding."""

import numpy as np
import pytest

from polyrank.model.text.assembly import Conversation
from polyrank.model.text.conversations import Positives
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.folding import text_key


def example(response: str, *context: str, persona: tuple[str, ...] = ()) -> Dialogue:
    return Dialogue(Conversation.of(context, persona), response)


def keys(*texts: str) -> list[int]:
    return sorted(text_key(text) for text in texts)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Yes, please", " yes,\tPLEASE\n"),
        ("STRASSE", "straße"),
        ("a\u00a0b", "A b"),
        ("", " \n"),
        ("Gru\u0308\u00dfe", "gr\u00fcsse"),
        ("a\u00ad\u200bb\ufeff", "AB"),
        ("\uff21", "a"),
        ("हिन्दी", "हि\u200dन्दी"),
    ],
)
def test_case_white_space_and_encoding_make_no_other_text(one: str, other: str) -> None:
    assert text_key(one) == text_key(other)


@pytest.mark.parametrize(("one", "other"), [("yes", "yes."), ("a b", "ab"), ("a b", "b a"), ("ä", "a")])
def test_everything_else_does(one: str, other: str) -> None:
    assert text_key(one) != text_key(other)


def test_a_context_has_the_gold_replies_of_all_its_examples() -> None:
    positives = Positives(
        [
            example("yes", "hello", "do you sell lamps?"),
            example("no", "hello"),
            example("We do.", "Hello ", "", "do you  sell lamps?"),
            example("no", "do you sell lamps?", "hello"),
        ]
    )
    assert len(positives) == 4
    asked = Conversation.of(["hello", "do you sell lamps?"])
    assert sorted(positives.of(asked).tolist()) == keys("yes", "we do.")
    assert positives.of(Conversation.of("hello")).tolist() == keys("no")


def test_the_turns_are_told_apart_and_so_are_personas() -> None:
    persona = ("I sell lamps.",)
    positives = Positives([example("one", "a b"), example("two", "a", "b"), example("three", "a b", persona=persona)])
    assert positives.of(Conversation.of("a b")).tolist() == keys("one")
    assert positives.of(Conversation.of(["a", "b"])).tolist() == keys("two")
    assert positives.of(Conversation.of("a b", ["i sell LAMPS."])).tolist() == keys("three")
    assert positives.of(Conversation.of(["a b", "I sell lamps."])).tolist() == []


def test_nothing_is_right_for_a_context_that_was_not_read() -> None:
    for positives in (Positives([]), Positives([example("yes", "hello")])):
        found = positives.of(Conversation.of("good morning"))
        assert (found.dtype, found.tolist()) == (np.uint64, [])
