"""Conversations in rows, under the names that tools give them."""

from typing import Any

import pytest
from foreign import OPENAI, SHAREGPT

from polyrank.index_builder.convert.messages import examples
from polyrank.index_builder.pool.documents import RowError


def read(row: dict[str, Any]) -> list[tuple[list[str], str] | str]:
    return [
        str(each) if isinstance(each, RowError) else ([t.text for t in each.conversation.turns], each.response)
        for each in examples(row, "c", ())
    ]


def test_sharegpt() -> None:
    assert read(SHAREGPT[0]) == [
        (["Wo bleibt mein Päckchen?"], "Wie ist die Nummer?"),
        (["Wo bleibt mein Päckchen?", "Wie ist die Nummer?", "你好 5519"], "مرحبا, unterwegs."),
    ]


def test_openai_with_tools_parts_and_weights() -> None:
    assert read(OPENAI[0]) == [
        "a reply without text",
        (["Answer briefly.", "Six times\nseven?", "42"], "It is 42."),
        "a reply of weight 0",
    ]


@pytest.mark.parametrize(
    "row",
    [
        {"conversation": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
        {"items": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        {"items": [{"user": "q", "assistant": "a"}]},
        {"conversation": [{"human": "q", "assistant": "a"}]},
        {"history": [["q", "a"]]},
        {"data": ["q", "a"]},
        {"dialog": ["q", None, "a"]},
        {"dialog": [{"sender": "Human", "text": "q"}, {"sender": "Bot", "text": "a"}]},
        {"turns": {"turn_id": ["0", "1"], "speaker": [0, 1], "utterance": ["q", "a"]}},
        {"turns": [{"speaker": "USER", "utterance": "q"}, {"speaker": "SYSTEM", "utterance": "a"}]},
        {"Messages": '[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]'},
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "refusal": "a"}]},
        {"prompt": "q", "completion": " a"},
        {"instruction": "q", "input": "", "output": "a"},
        {"Question": "q", "Answer": "a"},
    ],
    ids=str,
)
def test_other_names_of_the_same(row: dict[str, Any]) -> None:
    assert read(row) == [(["q"], "a")]


def test_a_call_of_a_function_is_no_speaker() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    said = [{"role": "user", "content": "q"}, call, {"role": "function", "name": "f", "content": "1"}]
    answer = {"role": "assistant", "content": "a"}
    assert read({"messages": [*said, answer]}) == ["a reply without text", (["q", "1"], "a")]


def test_internal_notes_are_no_replies() -> None:
    said = [("user", "q", False), ("agent", "beware", True), ("agent", "a", False)]
    row = {"messages": [{"role": role, "text": text, "private": private} for role, text, private in said]}
    assert read(row) == [(["q"], "a")]
    said = [("Anna", "beware", True), ("Max", "q", False), ("Anna", "a", False)]  # who asks has spoken first
    row = {"messages": [{"author": role, "text": text, "private": private} for role, text, private in said]}
    assert read(row) == [(["q"], "a")]


def test_instructions_come_first() -> None:
    assert read({"system": "s", "conversations": SHAREGPT[1]["conversations"]}) == [(["s", "hi"], "hello")]
    assert read({"instruction": "do", "input": "this", "output": "a", "system": "s"}) == [(["s", "do\nthis"], "a")]
    weighed = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": 0}]
    assert read({"system": "s", "messages": weighed}) == ["a reply of weight 0"]


@pytest.mark.parametrize(
    ("row", "name"),
    [({"id": "x"}, "x"), ({"id": 7}, "7"), ({"conversation_id": "y", "id": "x"}, "y"), ({"id": None}, "c"), ({}, "c")],
)
def test_the_name_of_the_conversation(row: dict[str, Any], name: str) -> None:
    [found] = examples({**row, "messages": ["q", "a"]}, "c", ())
    assert not isinstance(found, RowError)
    assert found.dialogue == name


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "neither messages nor a question and its answer, but nothing"),
        ({"messages": "hi", "x": 1}, "but 'messages', 'x'"),
        ({"messages": [1]}, "neither a text nor an object"),
        ({"messages": [{"role": "user", "content": {"a": 1}}]}, "content of a message must be a string"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "part 0: text must be a string"),
    ],
)
def test_rows_that_hold_no_conversation(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        list(examples(row, "c", ()))
