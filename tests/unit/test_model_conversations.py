"""Which examples are of one conversation; right replies, and wrong ones that are drawn."""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrank.model.text.assembly import Conversation
from polyrank.model.text.conversations import ConversationFinder, Positives, ReplyDraw, identified
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.folding import text_key

Talk = Sequence[str]


def grown(talk: Talk, step: int = 1, window: int = 99) -> list[Dialogue]:
    """An example for every reply, or every other one; of the context only the last turns."""
    return [Dialogue(Conversation.of(talk[max(0, at - window) : at]), talk[at]) for at in range(1, len(talk), step)]


def talk(n: int, turns: int = 8, same: Talk = ()) -> list[str]:
    return [*same, *(f"{n} {at}" for at in range(turns - len(same)))]


def groups(examples: Sequence[Dialogue]) -> list[list[int]]:
    """The places of the examples of each conversation, in order."""
    found: dict[str, list[int]] = {}
    for place, example in enumerate(identified(examples)[0]):
        found.setdefault(example.dialogue, []).append(place)
    return list(found.values())


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("same", [(), ("hi",), ("hi", "hello")], ids=len)
def test_growing_contexts_are_one_conversation(step: int, same: Talk) -> None:
    each = [grown(talk(n, 8, same), step) for n in range(20)]
    size = len(each[0])
    assert groups([*chain(*each)]) == [list(range(n * size, (n + 1) * size)) for n in range(20)]


def test_the_order_of_the_lines_names_no_other_conversations() -> None:
    examples = [one for n in range(20) for one in grown(talk(n))]
    shuffled = random.Random(0).sample(examples, len(examples))
    names = {(one.conversation, one.response): one.dialogue for one in identified(examples)[0]}
    assert names == {(one.conversation, one.response): one.dialogue for one in identified(shuffled)[0]}
    assert len(set(names.values())) == 20


def test_in_a_shuffled_file_conversations_are_apart_that_share_a_greeting() -> None:
    examples = [(n, one) for n in range(20) for one in grown(talk(n, 8, ("hi", "hello")))]
    random.Random(0).shuffle(examples)
    found = identified(one for _, one in examples)[0]
    names = {(n, one.dialogue) for (n, _), one in zip(examples, found, strict=True) if len(one.conversation.turns) > 1}
    assert len(names) == len({n for n, _ in names}) == len({name for _, name in names}) == 20


def test_sampled_lines_of_one_conversation_are_found() -> None:
    examples = [one for n in range(20) for one in random.Random(n).sample(grown(talk(n, 20, ("hi", "hello"))), 3)]
    assert sorted(map(len, groups(examples))) == [3] * 20


@pytest.mark.parametrize("window", [2, 3, 5])
def test_contexts_cut_to_the_last_turns_go_on_from_the_line_before(window: int) -> None:
    closing = ("anything else?", "no, thank you", "good bye")  # the same in all, and so in the last windows
    each = [grown([*talk(n, 9, ("hi", "hello")), *closing], window=window) for n in range(30)]
    assert groups([*chain(*each)]) == [list(range(n * 11, (n + 1) * 11)) for n in range(30)]


def test_a_persona_that_alternates_parts_no_conversation() -> None:
    examples = [
        Dialogue(
            Conversation.of([turn.text for turn in one.conversation.turns], [f"persona {n} {at % 2}"]), one.response
        )
        for n in range(10)
        for at, one in enumerate(grown(talk(n, 8, ("hi",))))
    ]
    assert sorted(map(len, groups(examples))) == [7] * 10


def test_the_answers_to_a_question_are_one_conversation_and_those_to_a_greeting_are_not() -> None:
    asked = [Dialogue(Conversation.of(f"how does {n} work?"), f"answer {m}") for n in range(40) for m in range(5)]
    greeted = [Dialogue(Conversation.of("Hello!"), f"I am {n}") for n in range(40)]
    assert sorted(map(len, groups([*asked, *greeted]))) == [1] * 40 + [5] * 40


def test_a_conversation_that_parts_late_is_one_and_a_script_is_not() -> None:
    told = talk(0, 8)
    forks = [Dialogue(Conversation.of([*told, f"else {n}"]), f"reply {n}") for n in range(8)]
    others = [one for n in range(1, 60) for one in grown(talk(n))]
    first, *rest = groups([*grown(told), *forks, *others])
    assert first == list(range(7 + 8))
    assert set(map(len, rest)) == {7}
    script = ("welcome", "hi", "what is it about?", "a parcel", "its number?")
    assert sorted(map(len, groups([one for n in range(20) for one in grown(talk(n, 8, script))]))) == [7] * 20


def test_case_and_white_space_part_nothing() -> None:
    examples = [one for n in range(20) for one in grown([f"Hello {n}", "How can I  help?", f"{n}", "Well."])]
    changed = [
        Dialogue(Conversation.of([turn.text.upper() for turn in one.conversation.turns]), f" {one.response} ")
        for one in examples[::2]
    ]
    assert len(groups([*examples[1::2], *changed])) == 20


def test_a_name_decides_and_is_no_part_of_what_is_said() -> None:
    named = [Dialogue(Conversation.of("hi"), f"r{n}", dialogue=f"d{n % 3}") for n in range(9)]
    bare = [one for n in range(4) for one in grown(talk(n, 3))]
    examples, found = identified([*named, *bare])
    assert [one.dialogue for one in examples[:9]] == [one.dialogue for one in named]
    assert len({one.dialogue for one in examples[9:]}) == 4
    said = "8 lines do not name their dialogue; by how they begin 8 make 4 conversations, 0 stand alone"
    assert found.assumed() == said
    assert identified(named)[1].assumed() is None
    assert identified([])[0] == []


def test_what_was_assumed_is_counted() -> None:
    examples = [*grown(talk(1)), *grown(talk(2)), Dialogue(Conversation.of("alone"), "yes")]
    said = "no line names its dialogue; by how they begin 14 make 2 conversations, 1 stand alone"
    assert identified(examples)[1].assumed() == said


def test_every_process_finds_the_same() -> None:
    script = (
        "from polyrank.model.text.assembly import Conversation;"
        "from polyrank.model.text.dialogues import Dialogue;"
        "from polyrank.model.text.conversations import identified;"
        "talk = [Dialogue(Conversation.of([str(m) for m in range(n)]), str(n)) for n in range(1, 9)];"
        "print([each.dialogue for each in identified(talk)[0]])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


def test_long_contexts_cost_no_more_than_short_ones() -> None:
    finder = ConversationFinder()
    for one in grown([f"{n}" for n in range(200)]):
        finder.add(one)
    assert len(finder._keys) <= 32 * 199
    assert len(set(finder.conversations().keys.tolist())) == 1


def example(response: str, *context: str, persona: tuple[str, ...] = ()) -> Dialogue:
    return Dialogue(Conversation.of(context, persona), response)


def keys(*texts: str) -> list[int]:
    return sorted(text_key(text) for text in texts)


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


def of_dialogue(context: str, response: str, dialogue: str, *candidates: str) -> Dialogue:
    return Dialogue(Conversation.of(context), response, candidates=candidates, dialogue=dialogue)


examples = st.lists(
    st.builds(
        of_dialogue,
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
    known = [of_dialogue(f"c{n}", f"r{n}", f"d{n}") for n in range(10)]
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
    known = [of_dialogue(f"c{n}", f"r{n}", f"d{n}") for n in range(30)]
    lists = {ReplyDraw(known, 5, 0).candidates(at, known[number]).candidates for at in range(20)}
    assert len(lists) > 15
    own = of_dialogue("c", "r", "d", "r", "x")
    assert ReplyDraw(known, 5, 0).candidates(number, own) is own
