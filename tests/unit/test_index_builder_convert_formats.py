"""Files are told apart by what they hold, and read as that."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from foreign import (
    BULK,
    CONVAI2,
    HELPDESK,
    HITS,
    OPENAI,
    PARLAI,
    SCROLL,
    SEARCH,
    SHAREGPT,
    UBUNTU_TRAIN,
    UBUNTU_VALID,
    beir,
    lines,
    saved,
)

from polyrank.index_builder.convert.formats import Asked, read, recognised
from polyrank.index_builder.errors import PoolInvalid
from polyrank.index_builder.pool.documents import RowError
from polyrank.model.text.dialogues import Dialogue

FILES = [
    ("sharegpt", json.dumps(SHAREGPT, indent=2)),
    ("sharegpt", lines(SHAREGPT)),
    ("sharegpt", lines([{"id": "0", "data": ["q", "a"]}])),
    ("openai", lines(OPENAI)),
    ("openai", json.dumps([{"messages": []}, *OPENAI])),
    ("convai2", CONVAI2),
    ("convai2", PARLAI),
    ("ubuntu-csv", UBUNTU_TRAIN),
    ("ubuntu-csv", UBUNTU_VALID),
    ("csv", HELPDESK),
    ("csv", "question,answer\nq,a\n"),
    ("csv", "ticket,role,text\n1,system,\n1,agent,a\n"),
    ("csv", 'ticket,text\n1,"no end\n' + "1,a\n" * 50_000),
    ("csv", json.dumps([{"instruction": "q", "input": "", "output": "a"}])),
    ("csv", lines([{"conv_id": "1", "speaker": "0", "utterance": "q"}])),
    ("elasticsearch", json.dumps(SEARCH)),
    ("elasticsearch", json.dumps(SEARCH, indent=2)),
    ("elasticsearch", lines(HITS)),
    ("elasticsearch", BULK),
    ("qdrant", json.dumps(SCROLL)),
    ("qdrant", lines(SCROLL["result"]["points"])),  # type: ignore[index]
]
OTHERS = [
    "",
    "\n\n",
    "\x00\x01",
    "a,b\n1,2\n",
    "id,text\n1,x\n",
    "[]",
    "[1, 2]",
    "{}",
    lines([{"context": ["q"], "response": "a"}]),
    lines([{"data": {"a": 1}}]),
    lines([{"id": "1", "text": "x", "lang": "en"}]),
    lines([{"_id": "1", "title": "x", "text": "y"}]),
]


@pytest.mark.parametrize(("form", "content"), FILES, ids=range(len(FILES)))
def test_each_format_is_known_by_its_content(tmp_path: Path, form: str, content: str) -> None:
    for bom in ("", "\ufeff"):
        (tmp_path / "file.txt").write_text(bom + content, newline="\r\n" if bom else "\n")
        assert recognised(tmp_path / "file.txt") == [form]


@pytest.mark.parametrize("content", OTHERS, ids=range(len(OTHERS)))
def test_polyranks_own_files_and_others_are_none_of_them(tmp_path: Path, content: str) -> None:
    (tmp_path / "file").write_text(content)
    assert recognised(tmp_path / "file") == []


def test_a_file_that_may_be_of_two_formats(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_text(lines([{"id": 1, "payload": {"text": "x"}, **OPENAI[0]}]))
    assert recognised(tmp_path / "f.jsonl") == ["openai", "qdrant"]


def test_folders(tmp_path: Path) -> None:
    assert recognised(beir(tmp_path / "beir")) == ["beir"]
    assert recognised(saved(tmp_path / "saved", SHAREGPT)) == ["hf-dataset"]
    (tmp_path / "other").mkdir()
    assert recognised(tmp_path / "other") == []


def test_columns_that_are_named_make_a_table(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("Vorgang,Was\n1,x\n")
    assert recognised(tmp_path / "f.csv") == []
    assert recognised(tmp_path / "f.csv", {"conversation": "Vorgang", "text": "Was"}) == ["csv"]


def test_splits_are_told_by_folders_and_names_of_files(tmp_path: Path) -> None:
    whole = tmp_path / "dict"
    for split in ("train", "test"):
        saved(whole / split, SHAREGPT)
    (whole / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    hub = tmp_path / "hub" / "data"
    hub.mkdir(parents=True)
    for name in ("train-00000-of-00001", "validation-00000-of-00001", "testimony"):
        pq.write_table(pa.Table.from_pylist(SHAREGPT), hub / f"{name}.parquet")
    for folder, splits in ((whole, ["train", "test"]), (tmp_path / "hub", ["", "train", "validation"])):
        found = [split for _, _, split, _ in read("hf-dataset", folder, Asked())]
        assert [split for split in dict.fromkeys(found)] == splits


@pytest.mark.parametrize(
    ("rows", "kinds"),
    [
        (SHAREGPT, {Dialogue}),
        ([{"turns": {"speaker": [0, 1], "utterance": ["q", "a"]}}], {Dialogue}),
        ([{"conv_id": "1", "context": "sad", "utterance": text} for text in ("q", "a")], {Dialogue}),
        ([{"question": "q", "answer": "a"}], {Dialogue}),
        ([{"id": 1, "text": "x", "lang": "en"}], {dict}),
        ([{"x": 1}], {RowError}),
    ],
)
def test_a_data_set_is_read_by_its_columns(tmp_path: Path, rows: list[dict[str, object]], kinds: set[type]) -> None:
    found = [each for *_, each in read("hf-dataset", saved(tmp_path / "d", rows), Asked())]
    assert {type(each) for each in found} == kinds


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (Asked(), "which columns hold .* There are 'a', 'b'; .*--columns"),
        (Asked({"conversation": "c", "text": "a"}), "--columns: there is no column 'c', but 'a', 'b'"),
    ],
)
def test_a_table_whose_columns_are_not_known_is_refused(tmp_path: Path, asked: Asked, reason: str) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(PoolInvalid, match=reason):
        list(read("csv", tmp_path / "t.csv", asked))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("dataset_dict.json", '{"splits": ["../elsewhere"]}'),
        ("dataset_dict.json", '{"splits": [5]}'),
        ("dataset_dict.json", "[]"),
        ("state.json", "{}"),
        ("state.json", '{"_data_files": ["a"]}'),
        ("state.json", "{"),
    ],
)
def test_a_folder_that_says_something_else_is_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(PoolInvalid, match="is not what the library datasets writes"):
        list(read("hf-dataset", tmp_path, Asked()))


def test_folders_without_what_a_format_needs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PoolInvalid, match=r"holds neither \.arrow nor \.parquet files"):
        list(read("openai", tmp_path, Asked()))
    with pytest.raises(PoolInvalid, match="name the folder that holds"):
        list(read("beir", tmp_path, Asked()))
