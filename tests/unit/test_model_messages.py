"""What is read of messages in OpenAI's shape."""

import pytest

from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Turn
from polyrank.model.text.dialogues import text_of, turn_of

IMAGE = {"type": "image_url", "image_url": {"url": "http://a/b.png"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "track", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hi", "hi"),
        (None, ""),
        ("", ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b", "annotations": []}], "a\nb"),
        ([{"text": "a"}, "b"], "a\nb"),
        (
            [IMAGE, {"type": "text", "text": "what is this?"}, {"type": "input_audio", "input_audio": {}}],
            "what is this?",
        ),
        ([IMAGE], ""),
        ([{"type": "refusal", "refusal": "no"}], "no"),
        ([{"type": ["text"]}], ""),
    ],
)
def test_the_texts_of_a_content_are_read_and_the_rest_is_skipped(content: object, text: str) -> None:
    assert text_of(content) == text


@pytest.mark.parametrize(
    ("message", "turn"),
    [
        ({"role": "user", "content": "hi", "name": "ann"}, Turn("hi", "user")),
        ({"role": "assistant", "content": "hello", "refusal": None, "tool_calls": None}, Turn("hello", "assistant")),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, Turn("", "assistant")),
        ({"role": "assistant", "content": None, "refusal": "no"}, Turn("no", "assistant")),
        ({"role": "tool", "tool_call_id": "c1", "content": '{"state": "sent"}'}, Turn('{"state": "sent"}', "tool")),
        ({"role": "developer", "content": [{"type": "text", "text": "be short"}]}, Turn("be short", "developer")),
        ({"content": "who?"}, Turn("who?")),
        ({"role": None, "content": [{"type": None, "text": "who?"}]}, Turn("who?")),
    ],
)
def test_a_message_is_a_turn(message: dict[str, object], turn: Turn) -> None:
    assert turn_of(message) == turn


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"content": 5}, "content: must be a string, a list of parts, or null"),
        ({"content": {"text": "a"}}, "content: must be"),
        ({"content": [5]}, "content: part 0 must be a string or an object"),
        ({"content": ["a", {"type": "text", "text": 5}]}, "content: part 1: text must be a string"),
        ({"content": [{"type": "text"}]}, "content: part 0: text must be a string"),
        ({"role": 5, "content": "a"}, "role: must be a string"),
        ({"content": None, "refusal": 5}, "refusal: must be a string"),
    ],
)
def test_what_is_no_message_is_refused(message: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        turn_of(message)
