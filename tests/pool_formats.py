"""The same candidates in every format in which people bring them."""

import csv
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq

from polyrank.index_builder.pool.rows import Candidate

Writer = Callable[[Path, Sequence[Candidate]], Path]


def fields_of(rows: Sequence[Candidate]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.metadata))


def _lines(path: Path, objects: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in objects))
    return path


def nested(folder: Path, rows: Sequence[Candidate]) -> Path:
    return _lines(folder / "nested.jsonl", [{"id": row.id, "text": row.text, "metadata": row.metadata} for row in rows])


def flat(folder: Path, rows: Sequence[Candidate]) -> Path:
    """Every line has every field, null where the candidate has none."""
    names = fields_of(rows)
    objects = [{"id": row.id, **{name: row.metadata.get(name) for name in names}, "text": row.text} for row in rows]
    return _lines(folder / "flat.jsonl", objects)


def columns(
    folder: Path, rows: Sequence[Candidate], separator: str = ",", encoding: str = "utf-8", header: tuple[str, ...] = ()
) -> Path:
    names = fields_of(rows)
    path = folder / "columns.csv"
    with path.open("w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow([*(header or ("id", "text")), *names])
        writer.writerows([row.id, row.text, *(row.metadata.get(name) for name in names)] for row in rows)
    return path


def json_column(folder: Path, rows: Sequence[Candidate]) -> Path:
    path = folder / "json_column.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "metadata"])
        writer.writerows([row.id, row.text, json.dumps(row.metadata)] for row in rows)
    return path


def _parquet(path: Path, rows: Sequence[Candidate], more: dict[str, Any]) -> Path:
    pq.write_table(pa.table({"id": [row.id for row in rows], "text": [row.text for row in rows], **more}), path)
    return path


def struct(folder: Path, rows: Sequence[Candidate]) -> Path:
    return _parquet(folder / "struct.parquet", rows, {"metadata": [row.metadata for row in rows]})


def plain_columns(folder: Path, rows: Sequence[Candidate]) -> Path:
    cells = {name: [row.metadata.get(name) for row in rows] for name in fields_of(rows)}
    return _parquet(folder / "plain_columns.parquet", rows, cells)


def _escaped(text: str) -> str:
    kept_from_xml = r"[\x00-\x08\x0b-\x1f\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)"
    return re.sub(kept_from_xml, lambda found: f"_x{ord(found[0]):04X}_", text)


def sheet(folder: Path, rows: Sequence[Candidate]) -> Path:
    """As Excel writes it, which stores control characters and their like as `_x000D_`."""
    names, book = fields_of(rows), openpyxl.Workbook()
    page = book.worksheets[0]
    for number, values in enumerate(
        [["id", "text", *names], *([row.id, row.text, *map(row.metadata.get, names)] for row in rows)], 1
    ):
        for column, value in enumerate(values, 1):
            cell = page.cell(number, column, _escaped(value) if isinstance(value, str) else value)
            cell.data_type = "s" if isinstance(value, str) else cell.data_type  # not a formula, nor an error
    path = folder / "sheet.xlsx"
    book.save(path)
    return path


WRITERS: dict[str, Writer] = {
    writer.__name__: writer for writer in (nested, flat, columns, json_column, struct, plain_columns, sheet)
}
