"""Lists of candidates that are drawn from the replies of other dialogues."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrank.model.text.assembly import Conversation
from polyrank.model.text.conversations import ReplyDraw
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.folding import text_key


def example(context: str, response: str, dialogue: str, *candidates: str) -> Dialogue:
    return Dialogue(Conversation.of(context), response, candidates=candidates, dialogue=dialogue)


examples = st.lists(
    st.builds(
        example,
        st.sampled_from(["hi", "Hi ", "late", "thanks"]),
        st.sampled_from(["a", "A", "b ", "b", "c", "d", "e", "f", "g"]),
        st.sampled_from(["d1", "d2", "d3", "d4", "d5"]),
    ),
    min_size=1,
    max_size=30,
)


@given(examples, st.integers(2, 8), st.integers(0, 3))
def test_lists_hold_the_gold_reply_and_wrong_ones_of_others(known: list[Dialogue], count: int, seed: int) -> None:
    draw = ReplyDraw(known, count, seed)
    every = {text_key(each.response) for each in known}
    for number, one in enumerate(known):
        right = {
            text_key(each.response)
            for each in known
            if each.dialogue == one.dialogue
            or each.conversation.turns[0].text.strip().lower() == one.conversation.turns[0].text.strip().lower()
        }
        listed = draw.candidates(number, one)
        assert listed == ReplyDraw(known, count, seed).candidates(number, one)
        wrong = min(count - 1, len(every - right))
        if not wrong:
            assert listed is one
            continue
        assert len(listed.candidates) == wrong + 1
        assert listed.candidates[listed.label] == one.response
        keys = [text_key(text) for text in listed.candidates]
        assert len(set(keys)) == len(keys)
        assert not right & {key for place, key in enumerate(keys) if place != listed.label}


def test_each_reply_and_each_place_is_as_likely_as_another() -> None:
    known = [example(f"c{n}", f"r{n}", f"d{n}") for n in range(10)]
    drawn, places = Counter[str](), Counter[int]()
    for seed in range(600):
        listed = ReplyDraw(known, 4, seed).candidates(0, known[0])
        drawn.update(listed.candidates)
        places[listed.label] += 1
    assert drawn.pop("r0") == 600
    assert set(drawn) == {f"r{n}" for n in range(1, 10)}
    assert all(150 < times < 250 for times in drawn.values()), "200 are expected, 12 is a standard deviation"
    assert all(100 < places[place] < 200 for place in range(4)), "150 are expected, 11 is a standard deviation"


@pytest.mark.parametrize("number", [0, 7])
def test_a_list_depends_on_place_and_replies_and_listed_ones_stay(number: int) -> None:
    known = [example(f"c{n}", f"r{n}", f"d{n}") for n in range(30)]
    lists = {ReplyDraw(known, 5, 0).candidates(at, known[number]).candidates for at in range(20)}
    assert len(lists) > 15
    own = example("c", "r", "d", "r", "x")
    assert ReplyDraw(known, 5, 0).candidates(number, own) is own
