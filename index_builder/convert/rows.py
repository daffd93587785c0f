"""Read the records of any file: JSON lines, JSON documents, tables with separators, lines of text, Arrow and Parquet.

All are streamed. Records are numbered from 1: by their line in JSON lines, CSV and texts, by their place elsewhere. In
a JSON document they may lie deep: `tickets[]` are the elements of the list `tickets`, `*` the values of an object, each
with its name as `_key`. A list is always opened, and documents may follow each other. Of a list in a list, `_part` is
the number of the outer one's element.
"""

import codecs
import errno
import io
import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import IO, Any

import orjson
import pyarrow as pa

from polyrank.index_builder.errors import PoolInvalid
from polyrank.index_builder.pool.documents import MAX_FIELDS, Fields, RowError
from polyrank.index_builder.pool.excel import sheet_rows
from polyrank.index_builder.pool.parquet import plain_rows
from polyrank.index_builder.pool.text import decoded, json_rows, lines_of, marked_encoding, opened, table_of
from polyrank.index_builder.pool.values import SAMPLE_BYTES, guessed
from polyrank.model.inputs import open_input

Object = dict[str, Any]
Rows = Iterator[tuple[int, Object | RowError]]

_BEGINNING_BYTES = 1 << 16  # what is looked at to tell what a file is
_CHUNK = 1 << 18
_MOST_CHARACTERS = 64 << 20  # of one value of a JSON document
_BATCH_ROWS = 128
_PARQUET, _ARROW_FILE, _ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_NO_TEXTS = (b"PK\x03\x04", b"%PDF", b"\xd0\xcf\x11\xe0", b"7z\xbc\xaf", b"Rar!", b"SQLite format")
_JSON = re.compile(r"\{|\[\s*([\[{\"\]]|$)")  # not [31.12.2026], as chats begin
_SPACE = re.compile(r"[\s,]*")
_BY_LETTER = "polyrank-windows-1252"
_MOST_MESSAGE = 1 << 20  # characters of one record of a text


def beginning(path: Path) -> bytes:
    """Return the first bytes of a file, unfolded. Raises PoolInvalid where it cannot be read."""
    with opened(path) as stream:
        return stream.read(_BEGINNING_BYTES)


def is_text(start: bytes) -> bool:
    """Whether a file that begins so is neither JSON nor a table of Arrow or Parquet."""
    marks = (_PARQUET, _ARROW_FILE, _ARROW_STREAM, *_NO_TEXTS)
    return not start.startswith(marks) and not _JSON.match(_text(start))


def _text(start: bytes) -> str:
    return start.decode(marked_encoding(start) or "UTF-8", "replace").lstrip("\ufeff \t\r\n")


def records(
    path: Path, encoding: str | None, each: str = "", lines: str | None = None, most: int | None = None
) -> Rows:
    """Yield the number of each record and the object that it is, or a RowError in its place.

    Args:
        path: the file.
        encoding: that of CSV and texts; None: UTF-8, with single bytes of windows-1252, or else `guessed_encoding`.
        each: where records lie in a document.
        lines: a regular expression for the lines of a text; a line that does not match goes on with the record before.
        most: how many characters of a JSON document are looked at.

    Raises PoolInvalid where the file cannot be read, or not to its end.
    """
    names = [name.removesuffix("[]") for name in each.split(".")] if each else []
    start = beginning(path)
    rows: Iterator[tuple[int, object]]
    if start.startswith((_PARQUET, _ARROW_FILE, _ARROW_STREAM)):
        rows = _table_rows(path, start)
    elif path.suffix.lower() == ".xlsx":
        rows = _sheet_rows(path)
    elif start.startswith(_NO_TEXTS):
        raise PoolInvalid(path, "is an archive or a document of pages; unpack it, or save it as .csv, .json or .txt")
    elif is_text(start):
        rows = _text_records(path, encoding, lines) if lines else _csv_rows(path, encoding)
    elif not _is_lines(path, start):
        rows, names = _document_rows(path, names, most), []
    else:
        rows = json_rows(path)
    for number, row in rows:
        inside = _inside(row, names) if isinstance(row, dict) else [row]
        yield from ((number, each if isinstance(each, dict | RowError) else _NO_OBJECT) for each in inside)


_NO_OBJECT = RowError("the row must be an object")


def _inside(value: Any, names: Sequence[str]) -> Iterator[Any]:
    if isinstance(value, list):
        for each in value:
            yield from _inside(each, names)
    elif not names:
        yield value
    elif isinstance(value, dict):
        inner = value.items() if names[0] == "*" else [(names[0], value[names[0]])] if names[0] in value else []
        yield from (_keyed(each, key, names[0]) for key, it in inner for each in _inside(it, names[1:]))


def _keyed(value: Any, key: str, name: str) -> Any:
    return {**value, "_key": key} if name == "*" and isinstance(value, dict) else value


def _counted(value: Any, number: int) -> Any:
    """Tell a record in which element of the outermost list it lies, as the chat of a message."""
    return {**value, "_part": number} if isinstance(value, dict) else value


def _is_lines(path: Path, start: bytes) -> bool:
    text = _text(start)
    if marked_encoding(start) not in (None, "UTF-8-SIG") or text.startswith("["):
        return False
    if re.search(r"\.(jsonl|ndjson)(\.|$)", path.name.lower()):
        return True
    try:
        return isinstance(orjson.loads(text.partition("\n")[0]), dict)
    except orjson.JSONDecodeError:
        return False


def _document_rows(path: Path, names: Sequence[str], most: int | None) -> Iterator[tuple[int, object]]:
    with decoded(path, None, "strict") as stream:
        source, number = _Source(path, stream, most), 0
        try:
            while source.next():
                for value in source.values(names):
                    number += 1
                    yield number, value
        except UnicodeDecodeError as error:
            raise PoolInvalid(path, f"is not {error.encoding.upper()}: {error.reason}") from error
        except RecursionError:
            raise PoolInvalid(path, "a row is nested too deep") from None
        except ValueError:  # Python reads no number of more than 4,300 digits
            raise PoolInvalid(path, "a number has too many digits") from None


class _Source:
    """The values of a JSON text, which is read piece by piece."""

    def __init__(self, path: Path, stream: IO[str], most: int | None) -> None:
        self._path, self._stream, self._left = path, stream, most
        self._text, self._at, self._decode = "", 0, json.JSONDecoder().raw_decode

    def _more(self, count: int) -> bool:
        count = count if self._left is None else min(count, self._left)
        more = self._stream.read(count)
        if more:
            self._left = None if self._left is None else self._left - len(more)
            self._text, self._at = self._text[self._at :] + more, 0
        return bool(more)

    def next(self) -> str:
        """Return the next character that is neither space nor comma; "" at the end."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]  # it matches nothing, too
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more(_CHUNK):
                return ""

    def values(self, names: Sequence[str]) -> Iterator[Any]:
        """Yield the values to which names lead from here."""
        first = self.next()
        if first == "[":
            for number, _ in enumerate(self._until("]"), 1):
                yield from (_counted(each, number) for each in self.values(names)) if names else [self._value()]
        elif first == "{" and names:
            for _ in self._until("}"):
                key = self._value()
                if self.next() != ":":
                    raise self._broken("a colon is missing")
                self._at += 1
                self.next()
                if names[0] not in (key, "*"):
                    self._value()
                    continue
                yield from (_keyed(each, key, names[0]) for each in self.values(names[1:]))
        else:
            yield self._value()

    def _until(self, end: str) -> Iterator[None]:
        self._at += 1
        while (mark := self.next()) != end:
            if not mark:
                raise self._broken(f"{end} is missing")
            yield None
        self._at += 1

    def _value(self) -> Any:
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:  # perhaps because the value goes on
                if len(self._text) - self._at > _MOST_CHARACTERS or not self._more(max(_CHUNK, len(self._text))):
                    raise self._broken(error.msg) from None
                continue
            if end < len(self._text) or not self._more(_CHUNK):  # a number may go on
                self._at = end
                return value

    def _broken(self, why: str) -> PoolInvalid:
        return PoolInvalid(self._path, f"is not valid JSON, or cut off: {why}")


def _table_rows(path: Path, start: bytes) -> Iterator[tuple[int, object]]:
    try:
        with open_input(path) as raw:
            if start.startswith(_PARQUET):
                import pyarrow.parquet as pq

                batches = pq.ParquetFile(raw, buffer_size=_CHUNK, pre_buffer=False).iter_batches(_BATCH_ROWS)
            elif start.startswith(_ARROW_STREAM):
                batches = iter(pa.ipc.open_stream(raw))
            else:
                file = pa.ipc.open_file(raw)
                batches = (file.get_batch(at) for at in range(file.num_record_batches))
            yield from enumerate(plain_rows(batches), 1)
    except (OSError, pa.ArrowException) as error:
        raise PoolInvalid(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _sheet_rows(path: Path) -> Iterator[tuple[int, object]]:
    fields = Fields()
    yield from sheet_rows(path, fields, lambda _, cells: _numbered(cells))
    for other in fields.described()["left_out"]:
        yield 1, RowError(f"{other['field']}: {other['why']}")


def _text_records(path: Path, encoding: str | None, lines: str) -> Iterator[tuple[int, object]]:
    """Yield what a regular expression names in each line; other lines go on with `text`."""
    pattern, record, first = re.compile(lines), None, 0
    with _text_of(path, encoding) as stream:
        for number, line in enumerate(lines_of(stream), 1):
            marked = line.rstrip("\r\n").lstrip(_MARKS)
            line = marked.translate(_WITHOUT_MARKS)
            # A map may tell a message by its marks, and most do not know of them.
            if len(marked) <= _MOST_MESSAGE and (match := pattern.fullmatch(marked) or pattern.fullmatch(line)):
                if record is not None:
                    yield first, record
                groups = match.groupdict().items()
                record, first = {name: it and it.translate(_WITHOUT_MARKS) for name, it in groups}, number
            elif not line.strip():
                continue
            elif record is None or len(line) + len(record.get("text") or "") > _MOST_MESSAGE:
                yield number, RowError("the line is not as the map says, or too long")
            elif record.get("text") is None:
                yield number, RowError("the line is not as the map says")
            else:
                record["text"] += f"\n{line}"
        if record is not None:
            yield first, record


_MARKS = "\u200e\u200f\ufeff"  # of direction, which phones write before names
_WITHOUT_MARKS = dict.fromkeys(map(ord, _MARKS))


def _text_of(path: Path, encoding: str | None) -> AbstractContextManager[io.TextIOWrapper]:
    codec = encoding or guessed_encoding(path)
    return decoded(path, codec, "replace" if codec else _BY_LETTER)


def guessed_encoding(path: Path) -> str | None:
    """Return the encoding of a table or a text that is not in UTF-8 but for some letters; None: it is, or is JSON."""
    with opened(path) as stream:
        start = stream.read(SAMPLE_BYTES)
    return None if marked_encoding(start) or not is_text(start) else guessed(start)


def _letters(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("windows-1252", "replace"), error.end


codecs.register_error(_BY_LETTER, _letters)


def _csv_rows(path: Path, encoding: str | None) -> Rows:
    """Yield the cells by their columns; an empty one is None. Columns after the first of their name have a number."""
    with _text_of(path, encoding) as stream:
        columns: list[str] = []
        for line, cells in table_of(path, stream, lambda names: 0).rows:
            if isinstance(cells, RowError):
                yield line, cells
            elif not columns:
                if len(cells) > MAX_FIELDS:
                    raise PoolInvalid(path, f"there are {len(cells)} columns, more than {MAX_FIELDS}")
                columns = _numbered(cells)
            elif len(cells) != len(columns):
                yield line, RowError(f"the row has another number of cells than the header, {len(columns)}")
            else:
                yield line, {name: cell if cell.strip() else None for name, cell in zip(columns, cells, strict=True)}


def _numbered(names: Sequence[str]) -> list[str]:
    """Return the names of columns; those after the first of a name have their number."""
    stripped = [name.strip() for name in names]
    return [f"{name} ({at + 1})" if name in stripped[:at] else name for at, name in enumerate(stripped)]


@contextmanager
def table_on_disk() -> Iterator[sqlite3.Connection]:
    """Yield a database of SQLite in a temporary file, so that memory does not grow with it; it is gone afterwards."""
    try:
        with closing(sqlite3.connect("")) as table:
            yield table
    except sqlite3.Error as error:
        raise OSError(errno.EIO, f"the rows cannot be kept on the disk of temporary files: {error}") from error
