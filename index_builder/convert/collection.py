"""A collection in BEIR's form: a folder of documents, queries, and judgements which document answers which query."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from polyrank.index_builder.convert.rows import Object
from polyrank.index_builder.pool.documents import RowError
from polyrank.model.errors import InvalidInput
from polyrank.model.evaluation.beir import read_judgements, titled
from polyrank.model.text.assembly import Conversation, Turn
from polyrank.model.text.dialogues import Dialogue
from polyrank.model.text.jsonlines import read_objects


def collection(
    folder: Path, table: sqlite3.Connection
) -> Iterator[tuple[Path, int, str, Object | Dialogue | RowError]]:
    """Yield the documents of a collection in BEIR's form, then an example for each query and document that fits it.

    Before each stand its file, its line and the split whose judgements it is of, "" for documents. A document that is
    judged not to fit is a negative of its query.

    Raises InvalidInput where a file cannot be read.
    """
    table.execute("CREATE TABLE texts (kind TEXT, name TEXT, text TEXT, PRIMARY KEY (kind, name)) WITHOUT ROWID")
    for kind in ("queries", "corpus"):
        files = sorted(file for file in folder.glob(f"{kind}*.jsonl*") if file.is_file())
        for file, (number, row) in ((path, each) for path in files for each in read_objects(path, InvalidInput)):
            if isinstance(row, InvalidInput):
                yield file, number, "", RowError(str(row))
                continue
            if kind == "corpus":
                yield file, number, "", row
            text = titled(str(row.get("title", "") if kind == "corpus" else ""), str(row.get("text", "")))
            table.execute("INSERT OR IGNORE INTO texts VALUES (?, ?, ?)", (kind, str(row.get("_id")), text))
    for qrels in sorted((folder / "qrels").glob("*.tsv")):
        for number, (query, judged) in enumerate(read_judgements(qrels).items(), 1):
            yield from ((qrels, number, qrels.stem, found) for found in _judged(table, query, judged))


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
