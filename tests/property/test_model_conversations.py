"""Growing contexts are found in any order, and no conversation is lost to another."""

import random

from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrank.model.text.assembly import Conversation
from polyrank.model.text.conversations import identified
from polyrank.model.text.dialogues import Dialogue

TALKS = st.lists(
    st.lists(st.sampled_from(["hi", "hello", "yes", "no", "Yes ", ""]), min_size=1, max_size=6), min_size=1, max_size=12
)


@settings(max_examples=cases(200))
@given(TALKS, st.integers(0, 9))
def test_lines_of_one_talk_have_one_name_wherever_their_first_turns_are_their_own(
    talks: list[list[str]], seed: int
) -> None:
    lines = [
        (n, Dialogue(Conversation.of([f"talk {n}", *talk[:at]]), talk[at]))
        for n, talk in enumerate(talks)
        for at in range(len(talk))
    ]
    random.Random(seed).shuffle(lines)
    found = identified(one for _, one in lines)[0]
    names = {(n, one.dialogue) for (n, _), one in zip(lines, found, strict=True)}
    assert len(names) == len({n for n, _ in names}) == len({name for _, name in names})


@settings(max_examples=cases(200))
@given(TALKS, st.integers(1, 4))
def test_any_lines_have_names(talks: list[list[str]], window: int) -> None:
    lines = [
        Dialogue(Conversation.of(["hi", *talk[max(0, at - window) : at]]), talk[at])
        for talk in talks
        for at in range(len(talk))
    ]
    found, conversations = identified(lines)
    assert all(one.dialogue for one in found)
    assert len(conversations.keys) == len(lines)
    assert identified(lines)[0] == found
