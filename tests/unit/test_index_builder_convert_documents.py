"""Documents of Elasticsearch, Qdrant and BEIR as rows of a pool."""

import json
from pathlib import Path
from typing import Any

import pytest
from foreign import BULK, HITS, SCROLL, beir

from polyrank.index_builder.convert.documents import collection, hits, is_collection, points, rows
from polyrank.index_builder.pool.documents import RowError
from polyrank.model.text.dialogues import Dialogue


def shown(found: Any) -> list[object]:
    return [str(row) if isinstance(row, RowError) else row for _, row in found]


def test_hits_keep_their_ids_and_fields_but_no_vectors() -> None:
    expected = [{"id": str(n), "text": f"text [{n}]", "metadata": {"tags": ["a"]}} for n in range(3)]
    assert shown(hits(enumerate(HITS, 1), None)) == expected


def test_lines_of_bulk_are_documents_after_their_actions() -> None:
    lines = [json.loads(line) for line in BULK.splitlines()]
    assert shown(hits(enumerate(lines, 1), None)) == [
        {"id": "1", "text": "one", "metadata": {"n": 1}},
        {"id": "2", "text": "two", "metadata": {}},
        "a deletion",
        {"id": "3", "text": "three", "metadata": {}},
        {"text": "four", "metadata": {}},
    ]


def test_points() -> None:
    found = SCROLL["result"]["points"]  # type: ignore[index]
    assert shown(points(enumerate(found, 1), None)) == [
        {"id": "1", "text": "one", "metadata": {"source": "a"}},
        {"id": "6f1c", "text": "two", "metadata": {"lang": "en"}},
        "the row has no document",
    ]


@pytest.mark.parametrize(
    ("asked", "source", "found"),
    [
        ("body.en", {"body": {"en": "x"}, "text": "y"}, "x"),
        ("body.en", {"body.en": "x"}, "x"),
        ("name", {"name": 5, "text": "y"}, "the field 'name' holds no text"),
        ("name", {"text": "y"}, "the field 'name' holds no text"),
        (None, {"n": 5}, "no field of a common name holds a text; name one by --text"),
        (None, {"text": 5, "Body": "x"}, "x"),
    ],
)
def test_the_field_of_the_text(asked: str | None, source: dict[str, Any], found: str) -> None:
    [row] = shown(points([(1, {"id": 1, "payload": source})], asked))
    assert (row["text"] if isinstance(row, dict) else row) == found


def test_rows_that_cannot_be_read_are_passed_on() -> None:
    for reader in (hits, points, rows):
        assert shown(reader(iter([(1, RowError("bad"))]), None)) == ["bad"]


def test_plain_rows() -> None:
    found = shown(rows(enumerate([{"_id": 7, "body": "x", "n": 1}, {"text": "y"}], 1), None))
    assert found == [{"id": "7", "text": "x", "metadata": {"n": 1}}, {"text": "y", "metadata": {}}]


def test_a_collection(tmp_path: Path) -> None:
    folder = beir(tmp_path / "beir")
    assert is_collection(folder)
    assert not is_collection(tmp_path)
    found = list(collection(folder))
    assert [row["_id"] for _, _, row in found if isinstance(row, dict)] == ["d0", "d1", "d2"]
    examples = [(split, each) for split, _, each in found if isinstance(each, Dialogue)]
    assert [(split, each.conversation.turns[0].text, each.response, each.negatives) for split, each in examples] == [
        ("test", "query 1", "Title 2 text 2", ()),
        ("train", "query 0", "Title 0 text 0", ("Title 1 text 1",)),
    ]
    assert [str(each) for *_, each in found if isinstance(each, RowError)] == ["a judged query without a text"]
