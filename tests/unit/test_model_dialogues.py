"""Files of dialogues and their messages: what is read, written and refused."""

import gzip
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from polyrank.model.errors import InvalidInput
from polyrank.model.text.assembly import Conversation, Turn
from polyrank.model.text.dialogues import (
    Dialogue,
    DialoguesInvalid,
    drawn,
    new_dialogues,
    read_dialogues,
    text_of,
    turn_of,
)

ROW = {"context": ["hello", "hi, how can I help?"], "response": "yes", "candidates": ["no", "yes", "maybe"]}

REPOSITORY = Path(__file__).resolve().parents[2]
NAMES = ["d.jsonl", "d.jsonl.gz", "d.jsonl.zst"]

FULL = Dialogue(Conversation.of(["hi", "hello"], ["I sell lamps."]), "yes", ("no", "yes"), 1, ("never", "no"), "17")
BARE = Dialogue(Conversation.of("hi"), "yes")

Compress = Callable[[bytes], bytes]


def zstd(content: bytes) -> bytes:
    compressed: bytes = pa.compress(content, "zstd", asbytes=True)
    return compressed


def line(**fields: Any) -> bytes:
    return (json.dumps({**ROW, **fields}) + "\n").encode()


def read(tmp_path: Path, content: bytes, name: str = "data.jsonl") -> list[Dialogue]:
    (tmp_path / name).write_bytes(content)
    return list(read_dialogues(tmp_path / name))


def refused(tmp_path: Path, content: bytes, name: str = "data.jsonl") -> str:
    """Return the message of the refusal, without the directory; it must be one line."""
    with pytest.raises(DialoguesInvalid) as caught:
        read(tmp_path, content, name)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/{name}")
    return str(caught.value).removeprefix(f"{tmp_path}/")


def test_a_line_becomes_an_example(tmp_path: Path) -> None:
    [read_back] = read(tmp_path, line(persona=["I sell lamps."], negatives=["never"], dialogue=7, unknown="x"))
    conversation = Conversation.of(["hello", "hi, how can I help?"], ["I sell lamps."])
    assert read_back == Dialogue(conversation, "yes", ("no", "yes", "maybe"), 1, ("never",), "7")


def test_an_example_needs_no_candidates(tmp_path: Path) -> None:
    [read_back] = read(tmp_path, b'{"context": ["hello"], "response": "yes"}')
    assert read_back == Dialogue(Conversation.of("hello"), "yes")
    assert (read_back.candidates, read_back.label) == ((), -1)


OPTIONAL = ["persona", "candidates", "label", "negatives", "dialogue"]


@pytest.mark.parametrize("nulls", [*([name] for name in OPTIONAL), OPTIONAL], ids=lambda nulls: "-".join(nulls))
def test_a_null_is_absent(tmp_path: Path, nulls: list[str]) -> None:
    row = {**ROW, "persona": ["I sell lamps."], "label": 1, "negatives": ["never"], "dialogue": "7"}
    left = {name: value for name, value in row.items() if name not in nulls}
    if "candidates" in nulls:
        row["label"] = left["label"] = None
    with_null = (json.dumps(row | dict.fromkeys(nulls)) + "\n").encode()
    assert read(tmp_path, with_null) == read(tmp_path, (json.dumps(left) + "\n").encode())


def test_a_null_response_leaves_the_class_of_a_single_text(tmp_path: Path) -> None:
    [found] = read(tmp_path, b'{"context": ["where is it?"], "response": null, "label": "track", "persona": null}')
    assert (found.category, found.is_single_text) == ("track", True)


def test_messages_are_turns(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "track", "arguments": "{}"}}
    said = [
        {"role": "user", "content": [{"type": "text", "text": "where is it?"}, {"type": "image_url", "image_url": {}}]},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sent", "name": "track"},
        {"role": "assistant", "content": "It was sent.", "refusal": None, "audio": None, "tool_calls": None},
        {"role": "user", "text": "when?", "name": None},
        "today?",
    ]
    [found] = read(tmp_path, line(context=said, response={"role": "assistant", "content": "yes", "refusal": None}))
    assert [(turn.role, turn.text) for turn in found.conversation.turns] == [
        ("user", "where is it?"), ("tool", "sent"), ("assistant", "It was sent."), ("user", "when?"), (None, "today?"),
    ]  # fmt: skip
    assert found.response == "yes"
    with new_dialogues(tmp_path / "again.jsonl") as write:
        write(found)
    assert list(read_dialogues(tmp_path / "again.jsonl")) == [found]


def test_a_response_that_is_marked_as_not_right_is_no_example(tmp_path: Path) -> None:
    said = {"role": "assistant", "content": "yes"}
    marked = [
        line(label=False),
        *(line(candidates=[], label=label) for label in (False, 0, 0.0)),
        *(line(rejected=True), line(weight=0), line(weight=0.0), line(deleted=True)),
        *(line(response={**said, "weight": 0}), line(response={**said, "deleted": True})),
        *(line(rejected="true"), line(weight="0"), line(weight="0.0"), line(deleted="True")),
    ]
    right = [
        *(line(label=1), line(candidates=[], label=True), line(candidates=[], label=1)),
        *(line(rejected=False), line(weight=0.5), line(weight=False), line(deleted=False)),
        line(candidates=["yes", "no"], label=0),
        line(response={**said, "weight": 1}),
        *(line(rejected="False"), line(weight="1"), line(deleted="false")),
    ]
    (tmp_path / "data.jsonl").write_bytes(b"".join(marked + right))
    left_out = Counter[str]()
    found = list(read_dialogues(tmp_path / "data.jsonl", left_out))
    assert [each.response for each in found] == ["yes"] * len(right)
    assert left_out == {
        "the reply is marked as not right (label: false)": 4,
        "the reply is marked as not right (rejected: true)": 2,
        "the reply is marked as not right (weight: 0)": 5,
        "the reply is marked as not right (deleted: true)": 3,
    }


@pytest.mark.parametrize("rejected", [
    "never", ["never"], {"role": "assistant", "content": "never"},
    [{"role": "user", "content": "hi"}, {"content": "never"}],
])  # fmt: skip
def test_a_reply_that_was_rejected_for_the_response_is_a_negative(tmp_path: Path, rejected: Any) -> None:
    [found] = read(tmp_path, line(negatives=["no"], rejected=rejected))
    assert (found.response, found.negatives) == ("yes", ("no", "never"))
    assert "rejected must be" in refused(tmp_path, line(rejected=7))


def test_marked_turns_are_kept_as_no_replies_and_deleted_ones_are_left_out(tmp_path: Path) -> None:
    context = [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "taken back", "deleted": True},
        {"role": "assistant", "content": "b", "weight": 0}, "c", {"content": "d", "rejected": True},
        {"role": "user", "content": "e", "weight": 1},
    ]  # fmt: skip
    [found] = read(tmp_path, line(context=context))
    assert [turn.text for turn in found.conversation.turns] == ["a", "b", "c", "d", "e"]
    assert found.no_replies == (1, 3)
    with new_dialogues(tmp_path / "again.jsonl") as write:
        write(found)
    assert list(read_dialogues(tmp_path / "again.jsonl")) == [found]


def test_a_class_that_is_no_text_stays_an_error(tmp_path: Path) -> None:
    assert "response must be a text" in refused(tmp_path, b'{"context": ["where is it?"], "label": false}')


def test_the_label_tells_which_of_equal_texts_is_meant(tmp_path: Path) -> None:
    twice = ["yes", "no", "yes"]
    first, last = read(tmp_path, line(candidates=twice) + line(candidates=twice, label=2))
    assert (first.label, last.label) == (0, 2)


def test_blank_lines_a_bom_and_a_missing_last_newline_are_no_harm(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + line() + b"\n  \r\n" + line(response="no").rstrip()
    assert [each.response for each in read(tmp_path, content)] == ["yes", "no"]


def test_an_empty_file_has_no_examples(tmp_path: Path) -> None:
    assert read(tmp_path, b"") == []


@pytest.mark.parametrize(
    ("name", "compress"), [("d.jsonl.gz", gzip.compress), ("d.jsonl.zst", zstd), ("D.JSONL.GZ", gzip.compress)]
)
def test_compressed_files_read_as_plain_ones(tmp_path: Path, name: str, compress: Compress) -> None:
    content = b"".join(line(response=each) for each in ROW["candidates"]) * 100
    assert read(tmp_path, compress(content), name) == read(tmp_path, content)


@pytest.mark.parametrize("cut", [3, 12, 1000])
@pytest.mark.parametrize(("name", "compress"), [("d.jsonl.gz", gzip.compress), ("d.jsonl.zst", zstd)])
def test_a_truncated_file_is_not_taken_for_a_short_one(tmp_path: Path, name: str, compress: Compress, cut: int) -> None:
    content = b"".join(line(context=[f"{n * 7919:x}"]) for n in range(3000))
    assert refused(tmp_path, compress(content)[:-cut], name).startswith(f"{name}: cannot be read to its end")


@pytest.mark.parametrize("name", ["d.jsonl.gz", "d.jsonl.zst"])
def test_a_file_that_only_says_it_is_compressed(tmp_path: Path, name: str) -> None:
    assert refused(tmp_path, line(), name).startswith(f"{name}: cannot be read")


@pytest.mark.parametrize(("bad", "says"), [
    (b"{", "not JSON"),
    (b'{"context": ["\xff"]}', "not JSON in UTF-8"),
    (b"[" * 100_000, "not JSON"),
    (line(context=["\ud800"]), "not JSON"),
    (b"[]", "not a JSON object"),
    (line(response=None), "response must be a text"),
    (line(response={"role": "assistant", "content": None}), "response must be a text"),
    (line(context=[{"from": "human", "value": "hello"}]), "context must be a list of texts, or of messages"),
    (line(context=[{"role": "user", "content": 5}]), "content: must be a string"),
    (line(context=[{"role": "assistant", "content": None, "tool_calls": []}]), "the context is empty"),
    (line(context=None), "context is missing"),
    (line(context=["hello", None]), "context must be a list of texts"),
    (line(response=" "), "response must be a text"),
    (b'{"context": ["hello"]}', "response must be a text"),
    (line(context="hello"), "context must be a list of texts"),
    (line(context=["hello", 3]), "context must be a list of texts"),
    (line(context=[]), "the context is empty"),
    (b'{"text": "hello", "intent": "greet"}', "context is missing: what was said before, as a list of texts"),
    (line(context=[" "]), "the context is empty"),
    (line(persona="I sell lamps."), "persona must be a list of texts"),
    (line(candidates="yes"), "candidates must be a list of texts"),
    (line(candidates=["no", None, "yes"]), "candidates must be a list of texts"),
    (line(candidates=["no"]), "the response is not among the 1 candidates; add it to them"),
    (line(label=0), "label must be the place of the gold reply"),
    (line(label=3), "label must be the place of the gold reply"),
    (line(label=-2), "label must be the place of the gold reply"),
    (line(label="1"), "label must be the place of the gold reply"),
    (line(label=True), "label must be the place of the gold reply"),
    (line(label=1.0), "label must be the place of the gold reply"),
])  # fmt: skip
def test_a_bad_line_is_named(tmp_path: Path, bad: bytes, says: str) -> None:
    message = refused(tmp_path, line() + b"\n" + bad + b"\n" + line())
    assert message.startswith("data.jsonl:3: ")
    assert says in message


def test_what_stands_before_a_bad_line_is_read_first(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_bytes(line() + b"{\n")
    examples = read_dialogues(tmp_path / "data.jsonl")
    assert next(examples).response == "yes"
    with pytest.raises(DialoguesInvalid):
        next(examples)


@pytest.mark.parametrize("name", ["data.json", "data.csv", "data.jsonl.bz2", "data"])
def test_an_unknown_kind_of_file_is_refused(tmp_path: Path, name: str) -> None:
    message = refused(tmp_path, line(), name)
    assert message == f"{name}: unknown kind of file; use one of .jsonl, .jsonl.gz, .jsonl.zst"


def test_a_missing_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    for name in ("none.jsonl", "folder.jsonl"):
        with pytest.raises(DialoguesInvalid, match=f"{name}: no such file"):
            read_dialogues(tmp_path / name)


def written(path: Path, dialogues: list[Dialogue]) -> bytes:
    with new_dialogues(path) as write:
        for dialogue in dialogues:
            write(dialogue)
    return path.read_bytes()


@pytest.fixture(params=[*NAMES, "D.JSONL.GZ"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file to write; the test must leave nothing else beside it."""
    yield tmp_path / request.param
    assert {each.name for each in tmp_path.iterdir()} <= {request.param}


def test_what_is_written_is_read_back(path: Path) -> None:
    first = written(path, [FULL, BARE] * 2000)
    assert list(read_dialogues(path)) == [FULL, BARE] * 2000
    assert written(path, [FULL, BARE] * 2000) == first, "equal examples give equal bytes"
    assert written(path, []) != first
    assert list(read_dialogues(path)) == []


def test_compressed_files_are_compressed(tmp_path: Path) -> None:
    plain, *compressed = (written(tmp_path / name, [FULL] * 1000) for name in NAMES)
    assert all(len(each) < len(plain) / 20 for each in compressed)
    assert [each[:2] for each in compressed] == [b"\x1f\x8b", b"\x28\xb5"]


def test_a_line_holds_what_the_example_has(tmp_path: Path) -> None:
    full, bare = map(json.loads, written(tmp_path / "d.jsonl", [FULL, BARE]).splitlines())
    assert full == {
        "context": ["hi", "hello"], "persona": ["I sell lamps."], "response": "yes",
        "candidates": ["no", "yes"], "label": 1, "negatives": ["never", "no"], "dialogue": "17",
    }  # fmt: skip
    assert bare == {"context": ["hi"], "response": "yes", "negatives": []}


KILLED = """
import sys
from pathlib import Path
from polyrank.model.text.dialogues import Dialogue, new_dialogues
from polyrank.model.text.assembly import Conversation

with new_dialogues(Path(sys.argv[1])) as write:
    for n in range(5000):
        write(Dialogue(Conversation.of(f"hello {n}"), "yes"))
    print("written", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_process_leaves_what_was_there(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    before = written(path, [BARE])
    for expected in (before, None):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        ) as process:
            assert process.stdout.readline() == "written\n"
            process.kill()
        assert (path.read_bytes() if path.exists() else None) == expected
        assert len(list(tmp_path.glob(".*.tmp"))) == 1, "the next to write it removes what was left"
        path.unlink(missing_ok=True)
    written(path, [BARE])
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["data.json", "data.csv", "data.jsonl.bz2", "data"])
def test_an_unknown_kind_of_file_is_not_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(DialoguesInvalid, match=r"unknown kind of file; use one of \.jsonl, "):
        written(tmp_path / name, [])
    assert list(tmp_path.iterdir()) == []


IMAGE = {"type": "image_url", "image_url": {"url": "http://a/b.png"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "track", "arguments": "{}"}}


@pytest.mark.parametrize(("content", "text"), [
    ("hi", "hi"),
    (None, ""),
    ("", ""),
    ([], ""),
    ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
    ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b", "annotations": []}], "a\nb"),
    ([{"text": "a"}, "b"], "a\nb"),
    ([IMAGE, {"type": "text", "text": "what is this?"}, {"type": "input_audio", "input_audio": {}}], "what is this?"),
    ([IMAGE], ""),
    ([{"type": "refusal", "refusal": "no"}], "no"),
    ([{"type": ["text"]}], ""),
    (["See ", {"type": "link", "text": "https://a.example"}, "."], "See https://a.example."),
    ([{"type": "plain", "text": "call "}, {"type": "bold", "text": "now"}], "call now"),
    ([{"type": "text", "text": "See"}, {"type": "link", "text": "a"}, IMAGE, "b", "c"], "See\nab\nc"),
    ([{"type": "thinking", "text": "hm"}, {"type": "reasoning", "text": "hm"}, "yes"], "yes"),
    ([{"type": "list", "text": ["a"]}, "b"], "b"),
])  # fmt: skip
def test_the_texts_of_a_content_are_read_and_the_rest_is_skipped(content: object, text: str) -> None:
    assert text_of(content) == text


@pytest.mark.parametrize(("message", "turn"), [
    ({"role": "user", "content": "hi", "name": "ann"}, Turn("hi", "user")),
    ({"role": "assistant", "content": "hello", "refusal": None, "tool_calls": None}, Turn("hello", "assistant")),
    ({"role": "assistant", "content": None, "tool_calls": [CALL]}, Turn("", "assistant")),
    ({"role": "assistant", "content": None, "refusal": "no"}, Turn("no", "assistant")),
    ({"role": "tool", "tool_call_id": "c1", "content": '{"state": "sent"}'}, Turn('{"state": "sent"}', "tool")),
    ({"role": "developer", "content": [{"type": "text", "text": "be short"}]}, Turn("be short", "developer")),
    ({"content": "who?"}, Turn("who?")),
    ({"role": None, "content": [{"type": None, "text": "who?"}]}, Turn("who?")),
])  # fmt: skip
def test_a_message_is_a_turn(message: dict[str, object], turn: Turn) -> None:
    assert turn_of(message) == turn


@pytest.mark.parametrize(("message", "says"), [
    ({"content": 5}, "content: must be a string, a list of parts, or null"),
    ({"content": {"text": "a"}}, "content: must be"),
    ({"content": [5]}, "content: part 0 must be a string or an object"),
    ({"content": ["a", {"type": "text", "text": 5}]}, "content: part 1: text must be a string"),
    ({"content": [{"type": "text"}]}, "content: part 0: text must be a string"),
    ({"role": 5, "content": "a"}, "role: must be a string"),
    ({"content": None, "refusal": 5}, "refusal: must be a string"),
])  # fmt: skip
def test_what_is_no_message_is_refused(message: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        turn_of(message)


def test_every_example_is_as_likely_to_be_drawn_and_as_likely_to_come_first() -> None:
    examples = [Dialogue(Conversation.of("a"), str(n)) for n in range(16)]
    found = [[int(each.response) for each in drawn(examples, 4, Random(seed))] for seed in range(4000)]
    assert {len(set(each)) for each in found} == {4}
    for place in range(4):
        times = np.bincount([each[place] for each in found], minlength=16)
        assert 250 - 80 < times.min() <= times.max() < 250 + 80  # five standard deviations
    assert found[7] == [int(each.response) for each in drawn(iter(examples), 4, Random(7))]


def test_of_few_examples_all_are_drawn() -> None:
    examples = [Dialogue(Conversation.of("a"), str(n)) for n in range(19)]
    found = drawn(examples, 20, Random(0))
    assert found != examples
    assert sorted(found, key=examples.index) == examples
    assert drawn([], 4, Random(0)) == []
