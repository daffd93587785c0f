"""Dialogues: what a line may be, and that a bad one is named by file and line."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import Dialogue, DialoguesInvalid, read_dialogues

ROW = {"context": ["hello", "hi, how can I help?"], "response": "yes", "candidates": ["no", "yes", "maybe"]}

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
    """The message, without the file's directory; it is one line."""
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
    assert read_back == Dialogue(Conversation.of("hello"), "yes", dialogue="hello")
    assert (read_back.candidates, read_back.label) == ((), -1)


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


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b"{", "not JSON"),
        (b'{"context": ["\xff"]}', "not JSON in UTF-8"),
        (b"[" * 100_000, "not JSON"),
        (line(context=["\ud800"]), "not JSON"),
        (b"[]", "not a JSON object"),
        (line(response=None), "response must be a text"),
        (line(response=" "), "response must be a text"),
        (b'{"context": ["hello"]}', "response must be a text"),
        (line(context="hello"), "context must be a list of texts"),
        (line(context=["hello", 3]), "context must be a list of texts"),
        (line(context=[]), "the context is empty"),
        (line(context=[" "]), "the context is empty"),
        (line(persona="I sell lamps."), "persona must be a list of texts"),
        (line(candidates="yes"), "candidates must be a list of texts"),
        (line(candidates=["no", None, "yes"]), "candidates must be a list of texts"),
        (line(candidates=["no"]), "label must be the place of the gold reply"),
        (line(label=0), "label must be the place of the gold reply"),
        (line(label=3), "label must be the place of the gold reply"),
        (line(label=-2), "label must be the place of the gold reply"),
        (line(label="1"), "label must be the place of the gold reply"),
        (line(label=True), "label must be the place of the gold reply"),
        (line(label=1.0), "label must be the place of the gold reply"),
    ],
)
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
