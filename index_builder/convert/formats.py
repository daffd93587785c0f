"""Which tool wrote a file, and what it holds: examples of dialogues, documents, and why a row is neither."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import orjson

from polyrank.index_builder.convert import corpora, documents, exports, messages
from polyrank.index_builder.convert.rows import Rows, beginning, is_json, is_table, rows_of, text_lines
from polyrank.index_builder.errors import PoolInvalid
from polyrank.index_builder.pool.documents import RowError, shown_names
from polyrank.model.inputs import read_input
from polyrank.model.text.dialogues import Dialogue

_SAMPLE = 20  # rows that are looked at
_MOST_LOOKED = 1 << 17  # bad ones included: of an open quote, each of 131,072 characters may be the line of one
_SPLIT = re.compile(r"(train|validation|valid|dev|test)(?![a-z])", re.IGNORECASE)
_NAME = re.compile(r"\w[\w.-]*")

Found = Dialogue | dict[str, Any] | RowError


@dataclass(frozen=True, slots=True)
class Asked:
    """How files are to be read.

    Attributes:
        columns: those of a table of messages by part: conversation, role, text, time.
        text: the field that holds the text of a document; None: one of a common name.
        answering: plain names of the side that answers; empty: the roles tell.
        encoding: of tables with separators; None: UTF-8, or windows-1252.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    text: str | None = None
    answering: frozenset[str] = frozenset()
    encoding: str | None = None


def read(form: str, path: Path, asked: Asked) -> Iterator[tuple[Path, int, str, Found]]:
    """Yield what a file or folder holds: each with its file, its number there and the split that the file is of."""
    if form == "beir":
        if not documents.is_collection(path):
            raise PoolInvalid(
                path, "is no collection of BEIR: name the folder that holds corpus.jsonl and queries.jsonl"
            )
        yield from ((path, number, split, found) for split, number, found in documents.collection(path))
        return
    files = _files(path)
    if not files:
        raise PoolInvalid(path, "holds neither .arrow nor .parquet files; name the files in it")
    for file, split in files:
        if form == "convai2":
            found: Iterator[tuple[int, Found]] = corpora.parlai_examples(text_lines(file, asked.encoding), _stem(file))
        else:
            found = _READERS.get(form, _sniffed)(rows_of(file, asked.encoding, _known), file, asked)
        yield from ((file, number, split, each) for number, each in found)


def recognised(path: Path, columns: Mapping[str, str] | None = None) -> list[str]:
    """Return the names of the formats that a file or folder may be of. Raises PoolInvalid where it cannot be read."""
    if path.is_dir():
        return ["beir"] if documents.is_collection(path) else ["hf-dataset"] if _files(path) else []
    start = beginning(path)
    if is_table(start):
        return ["hf-dataset"]
    if not is_json(start):
        if corpora.is_parlai(next(text_lines(path), "")):
            return ["convai2"]
        forms: Mapping[str, Callable[[dict[str, Any]], bool]] = {"ubuntu-csv": corpora.is_ubuntu}
    else:
        forms = _JSON_FORMS
    rows, _ = _sampled(rows_of(path, None, _known))
    found = ([name for name, is_one in forms.items() if is_one(row)] for row in rows)
    return next(filter(None, found), ["csv"] if any(_is_csv(row, columns or {}) for row in rows) else [])


def _sampled(rows: Rows) -> tuple[list[dict[str, Any]], Rows]:
    """Return the first objects among rows, and all rows."""
    first: list[tuple[int, dict[str, Any] | RowError]] = []
    known: list[dict[str, Any]] = []
    for number, row in islice(rows, _MOST_LOOKED):
        first.append((number, row))
        if isinstance(row, dict):
            known.append(row)
        if len(known) == _SAMPLE:
            break
    return known, chain(first, rows)


def why_unknown(path: Path) -> str:
    """Say why no format of a file is known. Raises PoolInvalid where it cannot be read."""
    known, rows = ([{}], iter(())) if path.is_dir() else _sampled(rows_of(path, None, _known))
    if not known:
        for number, first in rows:
            return f"no row can be read; the first one, in line {number}: {first}"
        return "there are no rows"
    advice = "name it by --from, or the columns of a table by --columns, unless it is polyrank's own"
    return f"what wrote it cannot be told; {advice}"


def _is_sharegpt(row: messages.Object) -> bool:
    listed = messages.list_of(row)
    return listed is not None and bool(row[listed]) and not _is_openai(row) and "_source" not in row


def _is_openai(row: messages.Object) -> bool:
    listed = row.get("messages")
    return isinstance(listed, list) and any(isinstance(each, dict) and "role" in each for each in listed)


_JSON_FORMS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "openai": _is_openai,
    "sharegpt": _is_sharegpt,
    "elasticsearch": lambda row: "_source" in row or documents.action_of(row) is not None,
    "qdrant": lambda row: isinstance(row.get("payload"), dict) and "id" in row,
}


def _files(path: Path) -> list[tuple[Path, str]]:
    """Return the files of a data set with the names of their splits, as `save_to_disk` and the hub lay them out."""
    if not path.is_dir():
        return [(path, "")]
    if (path / "dataset_dict.json").is_file():
        splits = _names(path / "dataset_dict.json", lambda facts: facts["splits"])
        return [(file, split) for split in splits for file, _ in _files(path / split)]
    if (path / "state.json").is_file():
        names = _names(path / "state.json", lambda facts: [each["filename"] for each in facts["_data_files"]])
        return [(path / name, "") for name in names]
    tables = sorted(file for file in path.rglob("*") if file.suffix in (".arrow", ".parquet") and file.is_file())
    return [(file, found[1] if (found := _SPLIT.match(file.name)) else "") for file in tables]


def _names(path: Path, found: Callable[[Any], list[str]]) -> list[str]:
    """Return the names of files or folders that a file of facts holds; none leads elsewhere."""
    try:
        names = found(orjson.loads(read_input(path)))
        if all(_NAME.fullmatch(name) for name in names):
            return names
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        pass
    raise PoolInvalid(path, "is not what the library datasets writes")


def _known(names: Sequence[str]) -> int:
    """Count the columns of a header that mean something."""
    row = dict.fromkeys(names, "")
    return len(exports.columns_of(row, {})) + bool(messages.pair_of(row)) + 2 * corpora.is_ubuntu(row)


def _is_csv(row: messages.Object, columns: Mapping[str, str]) -> bool:
    return exports.is_export(exports.columns_of(row, columns)) or messages.pair_of(row) is not None


def _stem(path: Path) -> str:
    return path.name.partition(".")[0]


def _sniffed(rows: Rows, path: Path, asked: Asked) -> Iterator[tuple[int, Found]]:
    """Read rows as what the first ones are: conversations, messages of conversations, or documents."""
    known, rows = _sampled(rows)
    if known and (missing := [name for name in asked.columns.values() if not any(name in row for row in known)]):
        raise PoolInvalid(path, f"--columns: there is no column {missing[0]!r}, but {_columns(known)}")
    if any(map(messages.list_of, known)):
        return _conversations(rows, path, asked)
    if any(exports.is_export(exports.columns_of(row, asked.columns)) for row in known):
        return exports.examples(rows, asked.columns, asked.answering)
    if any(map(messages.pair_of, known)):
        return _conversations(rows, path, asked)
    return documents.rows(rows, asked.text)


def _messages(rows: Rows, path: Path, asked: Asked) -> Iterator[tuple[int, Found]]:
    """Read a table of messages, or of questions and answers."""
    known, rows = _sampled(rows)
    if known and not any(_is_csv(row, asked.columns) or messages.list_of(row) for row in known):
        advice = "name them: --columns conversation=…,role=…,text=…,time=…"
        raise PoolInvalid(
            path, f"which columns hold a conversation's id and the text? There are {_columns(known)}; {advice}"
        )
    return _sniffed(rows, path, asked)


def _columns(known: Sequence[messages.Object]) -> str:
    return shown_names(list(dict.fromkeys(chain(*known))))


def _conversations(rows: Rows, path: Path, asked: Asked) -> Iterator[tuple[int, Found]]:
    return _each(rows, lambda number, row: messages.examples(row, f"{_stem(path)}:{number}", asked.answering))


def _each(rows: Rows, examples: Callable[[int, Any], Iterator[Found]]) -> Iterator[tuple[int, Found]]:
    for number, row in rows:
        try:
            if isinstance(row, RowError):
                raise row
            yield from ((number, found) for found in examples(number, row))
        except RowError as error:
            yield number, error


_READERS: dict[str, Callable[[Rows, Path, Asked], Iterator[tuple[int, Found]]]] = {
    "csv": _messages,
    "sharegpt": _conversations,
    "openai": _conversations,
    "ubuntu-csv": lambda rows, path, asked: _each(rows, lambda _, row: iter([corpora.ubuntu_example(row)])),
    "elasticsearch": lambda rows, path, asked: documents.hits(rows, asked.text),
    "qdrant": lambda rows, path, asked: documents.points(rows, asked.text),
}
