"""What a row means, whichever format it comes from, what is said of its fields, and the bounds of ids and metadata."""

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from polyrank.index_builder.errors import PoolInvalid
from polyrank.index_builder.pool.documents import Fields, checked_id
from polyrank.index_builder.pool.rows import Candidate, PoolRows, Rejected, read_pool
from polyrank.service.api.pool_requests import DeleteIn, IndexIn, UpsertIn

Row = dict[str, Any]


Form = Callable[[Path, Sequence[Row]], Path]


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


def pool_of(folder: Path, form: Form, *rows: Row) -> tuple[list[Candidate | Rejected], PoolRows]:
    pool = read_pool([form(folder, rows)])
    return list(pool), pool


@FORMS
def test_text_and_id_may_be_named(tmp_path: Path, form: Form) -> None:
    rows = [{"Nr": "7", "Antwort": "Ja.", "Text": "Geht das?"}, {"Nr": "8", "Antwort": "12", "Text": "Wie viele?"}]
    path = form(tmp_path, rows)
    [one, two] = read_pool([path], columns={"text": "Antwort", "id": "Nr"})
    assert one == Candidate("7", "Ja.", {"Text": "Geht das?"})
    assert isinstance(two, Candidate)
    assert (two.id, two.text) == ("8", "12")
    [one, _] = read_pool([path], columns={"text": "Antwort"})
    assert isinstance(one, Candidate)
    assert one.metadata.keys() == {"Nr", "Text"}


@FORMS
@pytest.mark.parametrize(("columns", "reason"), [
    ({"text": "answer"}, "there is no column 'answer', which is to be 'text'"),
    ({"id": "Nummer"}, "there is no column 'Nummer', which is to be 'id'"),
    ({"text": "Antwort"}, "'Antwort' is to be 'text', but there is a column of that name, too"),
])  # fmt: skip
def test_a_name_that_cannot_be_text_or_id_is_told(tmp_path, form: Form, columns: dict[str, str], reason: str) -> None:
    path = form(tmp_path, [{"Nr": "7", "Antwort": "Ja.", "text": "Geht das?"}])
    if form is json_lines:
        [rejected] = read_pool([path], columns=columns)
        assert isinstance(rejected, Rejected)
        assert rejected.reason == reason
    else:
        with pytest.raises(PoolInvalid, match=reason):
            list(read_pool([path], columns=columns))


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
        Candidate("1", "A title and a text", {"url": "u"}), Candidate("2", "text alone"),
        Candidate("3", "text alone, too"), Candidate("4", "title alone"),
    ]  # fmt: skip
    assert pool.fields.lines()[1] == "the title stands in front of the text in 2 rows with _id, as in BEIR's files"


@FORMS
def test_beside_an_id_a_title_is_metadata_and_so_is_another_id(tmp_path: Path, form: Form) -> None:
    [found], pool = pool_of(tmp_path, form, {"id": "a", "_id": "b", "title": "T", "text": "x"})
    assert found == Candidate("a", "x", {"_id": "b", "title": "T"})
    assert len(pool.fields.lines()) == 1


@pytest.mark.parametrize(("row", "reason"), [
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
])  # fmt: skip
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


def test_each_field_has_its_kind_and_its_rows() -> None:
    fields = Fields()
    fields.count({"a": "x", "b": 1, "c": True, "d": [1], "e": {"f": 1}})
    fields.count({"a": "y", "b": 1.5, "g": 1})
    fields.count({"g": "x"})
    fields.count({"g": 2})
    assert fields.described() == {
        "fields": {
            "a": {"kind": "text", "rows": 2},
            "b": {"kind": "number", "rows": 2},
            "c": {"kind": "true/false", "rows": 1},
            "d": {"kind": "list", "rows": 1},
            "e": {"kind": "object", "rows": 1},
            "g": {"kind": "mixed", "rows": 3},
        },
        "repeated_texts": 0,
        "left_out": [],
    }
    assert fields.lines() == [
        "fields: a (text, 2 rows), b (number, 2 rows), c (true/false, 1 row), d (list, 1 row), e (object, 1 row), "
        "g (mixed: number in 2 rows, text in 1 row)"
    ]


def test_a_pool_without_fields_says_so() -> None:
    assert Fields().lines() == ["fields: none besides id and text"]
    assert Fields().described() == {"fields": {}, "repeated_texts": 0, "left_out": []}


def test_names_are_a_pools_to_choose_so_their_number_and_length_are_bounded() -> None:
    fields = Fields()
    for number in range(5000):
        fields.count({f"{number}{'x' * 500}": 1, "a": 1})
        fields.leave_out(f"${number}{'x' * 500}", "why")
    found, left = fields.lines()
    assert "a (number, 5000 rows)" in found
    assert found.endswith("… (number, 1 row) and 970 more; there are more than 1000 names")
    assert left.endswith("… (why; 1 row) and 970 more")
    assert len(found) + len(left) < 5000
    described = fields.described()
    assert (len(described["fields"]), len(described["left_out"])) == (1000, 1000)
    assert described["fields"]["a"]["rows"] == 5000


@pytest.mark.parametrize(("name", "shown"), [("a\nb\x1b[1m", r"'a\nb\x1b[1m'"), ("", "''"), ("Größe 東", "Größe 東")])
def test_no_name_reaches_a_terminal_as_anything_but_letters(name: str, shown: str) -> None:
    fields = Fields()
    fields.count({name: 1})
    fields.leave_out(name, "why")
    assert fields.lines() == [f"fields: {shown} (number, 1 row)", f"left out: {shown} (why; 1 row)"]


def _nested(levels: int, opening: bytes = b'{"a":', closing: bytes = b"}") -> bytes:
    return opening * levels + b"1" + closing * levels


def _taken(tmp_path: Path, row: bytes) -> list[bool]:
    """Whether a pool, an update and a build by HTTP take the row."""
    (tmp_path / "pool.jsonl").write_bytes(row)
    [read] = read_pool([tmp_path / "pool.jsonl"])
    found = [isinstance(read, Candidate)]
    for kind, body in ((UpsertIn, b"[" + row + b"]"), (IndexIn, b'{"candidates":[' + row + b"]}")):
        try:
            kind.model_validate_json(body)
        except ValidationError:
            found.append(False)
        else:
            found.append(True)
    return found


@pytest.mark.parametrize(
    ("metadata", "taken"),
    [
        (_nested(100), True),
        (_nested(102), False),
        (_nested(254), False),
        (_nested(301), False),
        (b'{"a":' + _nested(301, b"[", b"]") + b"}", False),
        (b'{"a": 9223372036854775807, "b": -9223372036854775808}', True),
        (b'{"a": 9223372036854775808}', False),
        (b'{"a": 18446744073709551616}', False),
        (b'{"a": [{"b": -9223372036854775809}]}', False),
        (b'{"a": 1e300, "b": 0.12345678901234567890}', True),
        (b'{"a": "' + b"1" * 30 + b'"}', True),
        (b'{"a": [' + b"1," * 32_000 + b"1]}", True),
        (b'{"a": [' + b"1," * 33_000 + b"1]}", False),
        (b'{"a": "' + b"x" * 65_600 + b'"}', False),
        (b"{" + b",".join(b'"%d":1' % n for n in range(4096)) + b"}", True),
        (b"{" + b",".join(b'"%d":1' % n for n in range(4097)) + b"}", False),
        (b'{"$a": 1}', False),
        (b'{"a": {"$a": 1}}', True),
    ],
    ids=[
        "100-levels", "102-levels", "254-levels", "301-levels", "301-lists", "64-bits",
        "65-bits", "66-bits", "65-bits-inside", "floats", "digits-in-text", "64-kB", "66-kB",
        "66-kB-of-text", "4096-fields", "4097-fields", "operator", "operator-inside",
    ],
)  # fmt: skip
def test_metadata_has_the_same_bounds_everywhere(tmp_path: Path, metadata: bytes, taken: bool) -> None:
    assert _taken(tmp_path, b'{"id": "a", "text": "x", "metadata": ' + metadata + b"}") == [taken] * 3


@pytest.mark.parametrize(("length", "taken"), [(0, False), (1, True), (1024, True), (1025, False)])
def test_ids_have_the_same_bounds_everywhere(tmp_path: Path, length: int, taken: bool) -> None:
    assert _taken(tmp_path, b'{"text": "x", "id": "' + b"i" * length + b'"}') == [taken] * 3


@pytest.mark.parametrize(
    "taken", ["%2F", "a/../b", "/", "//x", "...", " ", "\u00a0", "a\u200db", "\ufeff", "\U0001f600"]
)
def test_an_id_may_hold_whatever_a_path_can(tmp_path: Path, taken: str) -> None:
    assert _taken(tmp_path, json.dumps({"text": "x", "id": taken}).encode()) == [True] * 3


@pytest.mark.parametrize(("given", "says"), [
    ("two\nlines", "must not hold control characters or line separators, as U+000A at character 4 is"),
    ("\x00", "as U+0000 at character 1 is"), ("end\r", "as U+000D at character 4 is"),
    ("\x7f", "as U+007F"), ("\x85", "as U+0085"), ("\u2028", "as U+2028"), ("\u2029", "as U+2029"),
    (".", "must be another than . and .., which programs drop from a path"),
    ("..", "must be another than . and .."),
])  # fmt: skip
def test_an_id_that_no_path_holds_is_refused_with_the_same_words(tmp_path: Path, given: str, says: str) -> None:
    row = json.dumps({"text": "x", "id": given}).encode()
    assert _taken(tmp_path, row) == [False] * 3
    [rejected] = read_pool([tmp_path / "pool.jsonl"])
    assert isinstance(rejected, Rejected)
    assert says in rejected.reason
    with pytest.raises(ValidationError) as refused:
        UpsertIn.model_validate_json(b"[" + row + b"]")
    assert says in str(refused.value)
    with pytest.raises(ValidationError, match=r"control characters|another than"):
        DeleteIn.model_validate({"ids": ["good", given]})


def test_half_a_surrogate_pair_is_no_id() -> None:
    with pytest.raises(ValueError, match="U\\+D800 at character 2"):
        checked_id("a\ud800")


@FORMS
def test_a_build_names_dates_that_ranges_pass_over(tmp_path: Path, form: Form) -> None:
    rows = [
        {"text": "one", "at": "2026-11-28", "until": "31.10.2026", "some": "2026-11-28T12:30Z", "news": "no"},
        {"text": "two", "at": "2026-11-28 12:30:00+01:00", "until": "1.11.2026", "some": "soon", "news": "1.2.2026"},
        {"text": "six", "at": "2026-11-29", "until": "Oct 31, 2026", "some": "2026-11-29", "news": "maybe"},
    ]
    _, pool = pool_of(tmp_path, form, *rows)
    assert pool.fields.described()["fields"]["at"] == {"kind": "time", "rows": 3}
    assert pool.fields.described()["no_times"] == {"until": "31.10.2026", "some": "soon"}
    assert pool.fields.lines()[1:] == [
        "dates that ranges pass over: until (such as 31.10.2026), some (such as soon); they compare those such as"
        " 2026-12-31 alone"
    ]


@FORMS
def test_a_build_names_texts_that_may_be_none(tmp_path: Path, form: Form) -> None:
    rows = [{"text": text} for text in ("<p>Hello</p>", "NaN", "None", "None of them.", "a < b")]
    found, pool = pool_of(tmp_path, form, *rows)
    assert len(found) == 5
    assert pool.fields.lines()[1:] == [
        "texts with marks of HTML, which are kept: 1 row",
        "texts that say NaN, None or NULL, as programs do where there is none: 2 rows",
    ]
    assert (pool.fields.described()["html_texts"], pool.fields.described()["void_texts"]) == (1, 2)


@FORMS
def test_a_text_of_letters_that_nobody_sees_is_empty(tmp_path: Path, form: Form) -> None:
    [found], _ = pool_of(tmp_path, form, {"id": "1", "text": "\u200b \ufeff"})
    assert isinstance(found, Rejected)
    assert found.reason == "'text' is empty"
