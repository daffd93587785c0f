"""What a row means, whichever format it comes from."""

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyrank.index_builder.pool.rows import Candidate, PoolRows, Rejected, read_pool
from polyrank.service.api.pool_requests import UpsertIn

Row = dict[str, Any]


def json_lines(folder: Path, rows: Sequence[Row]) -> Path:
    path = folder / "pool.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(folder: Path, rows: Sequence[Row]) -> Path:
    path = folder / "pool.parquet"
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def sheet(folder: Path, rows: Sequence[Row]) -> Path:
    path = folder / "pool.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for row in rows:
            writer.writerow({name: json.dumps(cell) if isinstance(cell, dict) else cell for name, cell in row.items()})
    return path


FORMS = pytest.mark.parametrize("form", [json_lines, table, sheet])
Form = Callable[[Path, Sequence[Row]], Path]


def pool_of(folder: Path, form: Form, *rows: Row) -> tuple[list[Candidate | Rejected], PoolRows]:
    pool = read_pool([form(folder, rows)])
    return list(pool), pool


@FORMS
def test_other_fields_are_metadata_and_those_of_metadata_join_them(tmp_path: Path, form: Form) -> None:
    row = {"id": "a", "lang": "en", "text": "x", "metadata": {"price": 5, "deep": {"er": 1.0}}, "n": 2}
    [found], _ = pool_of(tmp_path, form, row)
    assert found == Candidate("a", "x", {"lang": "en", "price": 5, "deep": {"er": 1}, "n": 2})


@FORMS
def test_where_both_have_a_name_metadata_counts_and_that_is_said(tmp_path: Path, form: Form) -> None:
    rows: list[Row] = [
        {"text": "x", "price": 1, "metadata": {"price": 2}},
        {"text": "y", "price": 3, "metadata": {"price": 3}},
        {"text": "z", "price": 4, "metadata": {"price": None}},
    ]
    found, pool = pool_of(tmp_path, form, *rows)
    assert [row.metadata for row in found if isinstance(row, Candidate)] == [{"price": 2}, {"price": 3}, {"price": 4}]
    assert pool.fields.described()["left_out"] == [
        {"field": "price", "why": "'metadata' has another value of this name, which counts", "rows": 1}
    ]


@FORMS
def test_null_is_absent(tmp_path: Path, form: Form) -> None:
    rows: list[Row] = [
        {"id": "a", "text": "x", "n": 1, "metadata": {"m": 1, "deep": {"er": None, "est": 1}}},
        {"id": None, "text": "y", "n": None, "metadata": {"m": None, "deep": None}},
        {"id": "c", "text": None, "n": 2, "metadata": None},
    ]
    found, pool = pool_of(tmp_path, form, *rows)
    assert [row.metadata for row in found if isinstance(row, Candidate)] == [{"n": 1, "m": 1, "deep": {"est": 1}}, {}]
    assert isinstance(found[2], Rejected)
    assert found[2].reason in ("'text' is missing", "'text' is empty")
    assert pool.fields.described()["fields"]["n"] == {"kind": "number", "rows": 1}


def test_null_stays_in_lists_where_places_count(tmp_path: Path) -> None:
    [found], _ = pool_of(tmp_path, json_lines, {"text": "x", "n": [1, None, {"a": None, "b": 2.0}]})
    assert isinstance(found, Candidate)
    assert found.metadata == {"n": [1, None, {"b": 2}]}


@FORMS
def test_a_row_of_beirs_form_has_its_title_in_front_of_its_text(tmp_path: Path, form: Form) -> None:
    rows: list[Row] = [
        {"_id": "1", "title": "A title", "text": "and a text", "metadata": {"url": "u"}},
        {"_id": "2", "title": "", "text": "text alone", "metadata": None},
        {"_id": "3", "title": None, "text": "text alone, too", "metadata": None},
        {"_id": "4", "title": "title alone", "text": "", "metadata": None},
    ]
    found, pool = pool_of(tmp_path, form, *rows)
    assert found == [
        Candidate("1", "A title and a text", {"url": "u"}),
        Candidate("2", "text alone"),
        Candidate("3", "text alone, too"),
        Candidate("4", "title alone"),
    ]
    assert pool.fields.lines()[1] == "the title stands in front of the text in 2 rows with _id, as in BEIR's files"


@FORMS
def test_beside_an_id_a_title_is_metadata_and_so_is_another_id(tmp_path: Path, form: Form) -> None:
    [found], pool = pool_of(tmp_path, form, {"id": "a", "_id": "b", "title": "T", "text": "x"})
    assert found == Candidate("a", "x", {"_id": "b", "title": "T"})
    assert len(pool.fields.lines()) == 1


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"_id": 7, "text": "x"}, "'_id' must be a string, not a number"),
        ({"_id": "", "text": "x"}, "'_id' must have 1 to 1024 characters, not 0"),
        ({"_id": "a", "text": "x", "title": 7}, "'title' must be a string, not a number"),
        ({"_id": "a", "title": "T"}, "'text' is missing"),
        ({"_id": "a", "title": "T" * 10_000, "text": "x" * 10_000}, "'text' has 20001 characters, more than 20000"),
        ({"text": "x", "metadata": "note"}, "'metadata' must be an object, or a text with the JSON of one: not valid"),
        ({"text": "x", "metadata": "[1]"}, "'metadata' must be an object, not a list"),
        ({"text": "x", "n": 2**64}, "'metadata': 'n': whole numbers must fit 64 bits"),
        ({"text": "x", "metadata": json.dumps({"n": 2**70})}, "'metadata': 'n': whole numbers must fit 64 bits"),
        ({"text": "x", "html": "y" * 70_000}, "'metadata': must be at most 65536 bytes of JSON"),
    ],
)
def test_a_row_that_cannot_be_a_candidate(tmp_path: Path, row: Row, reason: str) -> None:
    [found], pool = pool_of(tmp_path, json_lines, row)
    assert isinstance(found, Rejected)
    assert reason in found.reason
    assert pool.fields.described()["fields"] == {}


@FORMS
def test_a_field_that_filters_could_not_name_is_left_out_and_said(tmp_path: Path, form: Form) -> None:
    [found], pool = pool_of(tmp_path, form, {"text": "x", "$schema": "s", "n": 1})
    assert isinstance(found, Candidate)
    assert found.metadata == {"n": 1}
    assert pool.fields.lines() == [
        "fields: n (number, 1 row)",
        "left out: $schema (its name begins with '$', as operators of filters do; 1 row)",
    ]


def test_metadata_that_come_by_http_mean_the_same(tmp_path: Path) -> None:
    row = {"id": "a", "text": "x", "metadata": {"n": 5.0, "none": None, "deep": {"er": None}, "list": [None, 1.0]}}
    [pooled], _ = pool_of(tmp_path, json_lines, row)
    [put] = UpsertIn.model_validate_json(json.dumps([row])).rows
    assert isinstance(pooled, Candidate)
    assert json.dumps(put.metadata) == json.dumps(pooled.metadata) == '{"deep": {}, "list": [null, 1], "n": 5}'
