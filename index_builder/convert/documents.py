"""Documents of search engines and collections become rows of a pool: `id`, `text`, and the other fields as metadata."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from polyrank.index_builder.convert.messages import TEXTS, field_of
from polyrank.index_builder.convert.rows import Rows, table_on_disk
from polyrank.index_builder.convert.turns import words
from polyrank.index_builder.pool.documents import RowError
from polyrank.model.errors import InvalidInput
from polyrank.model.evaluation.beir import read_judgements, titled
from polyrank.model.text.assembly import Conversation, Turn
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.jsonlines import read_objects

Object = dict[str, Any]
_TEXTS = (*words("text content page_content body document passage chunk answer reply response"), *TEXTS)
_ACTIONS = {"index", "create", "update", "delete"}
_VECTOR_NUMBERS = 16  # so many numbers in a list are a vector, of which no filter asks


def action_of(row: Object) -> str | None:
    """Return the action of a line that is none but an action of Elasticsearch's `_bulk`."""
    name = next(iter(row)) if len(row) == 1 else None
    return name if name in _ACTIONS and isinstance(row[name], dict) else None


def hits(rows: Rows, text: str | None) -> Rows:
    """Yield the documents of Elasticsearch: hits, lines of elasticdump, and lines of `_bulk` after their actions."""
    named: Object = {}
    for number, row in rows:
        if isinstance(row, RowError):
            yield number, row
            continue
        if action := action_of(row):
            named = row[action]
            if action == "delete":
                yield number, RowError("a deletion")
                named = {}
            continue
        hit, named = named | row if "_source" in row else named, {}
        source = row.get("_source", row.get("doc", row) if hit else row)
        yield number, _row(source, hit.get("_id"), text)


def points(rows: Rows, text: str | None) -> Rows:
    """Yield the points of Qdrant as rows."""
    for number, row in rows:
        yield number, row if isinstance(row, RowError) else _row(row.get("payload"), row.get("id"), text)


def rows(rows: Rows, text: str | None) -> Rows:
    """Yield plain objects, of which `id` or `_id` is the id."""
    for number, row in rows:
        if isinstance(row, RowError):
            yield number, row
        else:
            named = field_of(row, ("id", "_id"))
            others = {name: value for name, value in row.items() if name != named}
            yield number, _row(others, row[named] if named else None, text)


def _row(source: object, name: object, asked: str | None) -> Object | RowError:
    if not isinstance(source, dict):
        return RowError("the row has no document")
    texts = {name: value for name, value in source.items() if isinstance(value, str)}
    if (field := asked or field_of(texts, _TEXTS)) is None:
        return RowError("no field of a common name holds a text; name one by --text")
    text: Any = source
    for part in field.split(".") if field not in source else [field]:
        text = text.get(part) if isinstance(text, dict) else None
    if not isinstance(text, str):
        return RowError(f"the field '{field}' holds no text")
    others = {key: value for key, value in source.items() if key != field and not _is_vector(value)}
    nested = others.pop("metadata", None)
    inside = nested if isinstance(nested, dict) else {} if nested is None else {"metadata": nested}
    row = {"text": text, "metadata": {**others, **inside}}
    return row if name is None else {"id": str(name), **row}


def _is_vector(value: object) -> bool:
    return isinstance(value, list) and len(value) >= _VECTOR_NUMBERS and {*map(type, value)} <= {int, float}


def is_collection(path: Path) -> bool:
    """Whether a directory is a collection in BEIR's form."""
    return path.is_dir() and bool(_files(path, "corpus") and _files(path, "queries"))


def _files(folder: Path, name: str) -> list[Path]:
    return sorted(file for file in folder.glob(f"{name}*.jsonl*") if file.is_file())


def collection(folder: Path) -> Iterator[tuple[str, int, Object | Dialogue | RowError]]:
    """Yield the documents of a collection in BEIR's form, then an example for each query and document that fits it.

    Before each stands the split whose judgements it is of, "" for documents. A document that is judged not to fit is a
    negative of its query.

    Raises InvalidInput where a file cannot be read.
    """
    with table_on_disk() as table:
        table.execute("CREATE TABLE texts (kind TEXT, name TEXT, text TEXT, PRIMARY KEY (kind, name)) WITHOUT ROWID")
        for kind in ("queries", "corpus"):
            for number, row in (each for file in _files(folder, kind) for each in read_objects(file, InvalidInput)):
                if isinstance(row, InvalidInput):
                    yield "", number, RowError(str(row))
                    continue
                if kind == "corpus":
                    yield "", number, row
                text = titled(str(row.get("title", "") if kind == "corpus" else ""), str(row.get("text", "")))
                table.execute("INSERT OR IGNORE INTO texts VALUES (?, ?, ?)", (kind, str(row.get("_id")), text))
        for qrels in sorted((folder / "qrels").glob("*.tsv")):
            for number, (query, judged) in enumerate(read_judgements(qrels).items(), 1):
                yield from ((qrels.stem, number, found) for found in _judged(table, query, judged))


def _judged(table: sqlite3.Connection, query: str, judged: Mapping[str, int]) -> Iterator[Dialogue | RowError]:
    asked = _texts(table, "queries", [query])
    fitting = _texts(table, "corpus", [name for name, score in judged.items() if score > 0])
    others = _texts(table, "corpus", [name for name, score in judged.items() if score <= 0])
    if not asked or not fitting:
        yield RowError("a judged query without a text" if not asked else "a query that no known document fits")
    for text in fitting if asked else ():
        yield Dialogue(Conversation((Turn(asked[0]),)), text, negatives=tuple(others), dialogue=query)


def _texts(table: sqlite3.Connection, kind: str, names: Sequence[str]) -> list[str]:
    find = "SELECT text FROM texts WHERE kind = ? AND name = ?"
    return [text for name in names for (text,) in table.execute(find, (kind, name)) if text.strip()]
