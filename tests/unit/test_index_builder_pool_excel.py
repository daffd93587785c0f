"""Workbooks as spreadsheets write them: types, dates, sheets, errors, and files that are none."""

import sys
from datetime import date, datetime, time
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import openpyxl
import pytest

from polyrank.index_builder.errors import PoolInvalid
from polyrank.index_builder.pool.rows import Candidate, PoolRows, Rejected, read_pool


def book(path: Path, rows: list[list[Any]], **others: list[list[Any]]) -> Path:
    workbook = openpyxl.Workbook()
    for cells in rows:
        workbook.worksheets[0].append(cells)
    for title, more in others.items():
        sheet = workbook.create_sheet(title)
        for cells in more:
            sheet.append(cells)
    workbook.save(path)
    return path


def read(path: Path) -> tuple[list[Candidate | Rejected], PoolRows]:
    pool = read_pool([path])
    return list(pool), pool


def refused(path: Path) -> str:
    with pytest.raises(PoolInvalid) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    return caught.value.reason


def test_cells_have_types_of_their_own(tmp_path: Path) -> None:
    head = [" ID", "Text", "price", "sale", "day", "at", "from", "zip", None]
    said = [17, "yes", 49.9, True, date(2026, 7, 1), datetime(2026, 7, 1, 12, 30), time(8, 15), "007", None]
    rows = [[], head, said, [], [18.0, 5, 3, None, date(2026, 7, 2), " "]]
    found, _ = read(book(tmp_path / "pool.xlsx", rows))
    assert found == [
        Candidate(
            "17",
            "yes",
            {
                "at": "2026-07-01T12:30:00",
                "day": "2026-07-01",
                "from": "08:15:00",
                "price": 49.9,
                "sale": True,
                "zip": "007",
            },
        ),
        Candidate("18", "5", {"day": "2026-07-02", "price": 3}),
    ]


def test_bad_rows_are_named_as_the_sheet_counts_them(tmp_path: Path) -> None:
    rows = [["text", "n"], ["a", 1], [], [None, 2], ["#N/A", 3], ["b", "#REF!"], ["a", 4], ["c", None, "beside"]]
    path = book(tmp_path / "pool.xlsx", rows)
    found, pool = read(path)
    assert [each for each in found if isinstance(each, Rejected)] == [
        Rejected(str(path), 4, "'text' is missing"),
        Rejected(str(path), 5, "'text' holds the error #N/A"),
        Rejected(str(path), 6, "'n' holds the error #REF!"),
        Rejected(str(path), 7, "the text, without an id, was seen before", is_bad=False),
    ]
    assert [each.text for each in found if isinstance(each, Candidate)] == ["a", "c"]
    assert pool.fields.described()["left_out"] == [{"field": "", "why": "its name is empty", "rows": 1}]


def test_the_first_sheet_is_read_and_others_are_told(tmp_path: Path) -> None:
    found, pool = read(book(tmp_path / "pool.xlsx", [["text"], ["a"]], Notes=[["x"], ["y"], ["z"]]))
    assert found == [next(each for each in found if isinstance(each, Candidate) and each.text == "a")]
    assert "left out: sheet Notes (only the first sheet is read; 3 rows)" in pool.fields.lines()


def test_what_a_formula_was_computed_to_counts(tmp_path: Path) -> None:
    path = book(tmp_path / "pool.xlsx", [["text", "n"], ["a", "=1+2"]])
    with ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    assert (
        b"<f>1+2</f><v />" in files[sheet] or b"<f>1+2</f><v></v>" in files[sheet] or b"<f>1+2</f><v/>" in files[sheet]
    )
    for empty in (b"<v />", b"<v></v>", b"<v/>"):
        files[sheet] = files[sheet].replace(b"<f>1+2</f>" + empty, b"<f>1+2</f><v>3</v>")
    with ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    [found], _ = read(path)
    assert isinstance(found, Candidate)
    assert found.metadata == {"n": 3}


@pytest.mark.parametrize(("rows", "says"), [
    ([["reply"], ["a"]], "there is no column 'text': the first row of sheet 'Sheet' names 'reply'; name one so"),
    ([["text", "n", "n"]], "the header names twice: 'n'"),
    ([], "sheet 'Sheet' is empty"),
])  # fmt: skip
def test_a_sheet_without_a_usable_header_is_refused(tmp_path: Path, rows: list[list[Any]], says: str) -> None:
    assert refused(book(tmp_path / "pool.xlsx", rows)).startswith(says)


def test_what_is_no_workbook_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool.xlsx"
    path.write_bytes(b"id,text\n1,a\n")
    assert refused(path).startswith("cannot be read as a workbook: ")
    whole = book(tmp_path / "whole.xlsx", [["text"], ["a"]]).read_bytes()
    for end in range(0, len(whole), 97):
        path.write_bytes(whole[:end])
        assert refused(path).startswith("cannot be read as a workbook: ")


def test_a_workbook_that_unfolds_to_much_more_than_its_size_is_refused(tmp_path: Path) -> None:
    path = book(tmp_path / "pool.xlsx", [["text"], ["a"]])
    with ZipFile(path, "a", ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("xl/more.xml", bytes(70 << 20))
    assert "more than 100 times its size" in refused(path)


def test_the_extra_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = book(tmp_path / "pool.xlsx", [["text"], ["a"]])
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    assert refused(path) == "workbooks need an extra: pip install 'polyrank[excel]'"
