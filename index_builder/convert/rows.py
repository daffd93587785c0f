"""Read the rows of any file: JSON lines, JSON documents, tables with separators, Arrow and Parquet; all are streamed.

A JSON document may be a list of rows, or an object around one, as answers of Elasticsearch and Qdrant are. Rows are
numbered from 1: by their line in JSON lines and CSV, by their place elsewhere.
"""

import codecs
import errno
import io
import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import IO, Any

import orjson
import pyarrow as pa

from polyrank.index_builder.errors import PoolInvalid
from polyrank.index_builder.pool.documents import MAX_FIELDS, RowError
from polyrank.index_builder.pool.parquet import plain_rows
from polyrank.index_builder.pool.text import decoded, json_rows, lines_of, marked_encoding, opened, table_of
from polyrank.model.inputs import open_input

Rows = Iterator[tuple[int, dict[str, Any] | RowError]]

BEGINNING_BYTES = 1 << 16  # what is looked at to tell what a file is
_CHUNK = 1 << 18
_MOST_CHARACTERS = 64 << 20  # of one row of a JSON document
_BATCH_ROWS = 128
_PARQUET, _ARROW_FILE, _ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_SPACE = re.compile(r"[\s,]*")
# A list of rows, or an object whose first list is known to hold rows; not one of the lines of JSON lines.
_IN_OBJECT = r'"(?:hits|points|result)"\s*:\s*\[(?=\s*[{\]])'
_LIST = re.compile(rf"\s*(?:\[|\{{(?:(?!\}}\s*\{{)[^\[\]])*?{_IN_OBJECT})")
_NEXT_LIST = re.compile(rf"\A\s*\[|{_IN_OBJECT}")
_BEGUN = 64  # characters of a name that one chunk begins and the next one ends
_BY_LETTER = "polyrank-windows-1252"


def beginning(path: Path) -> bytes:
    """Return the first bytes of a file, unfolded. Raises PoolInvalid where it cannot be read."""
    with opened(path) as stream:
        return stream.read(BEGINNING_BYTES)


def is_table(start: bytes) -> bool:
    """Whether a file that begins so is Arrow's or Parquet's."""
    return start.startswith((_PARQUET, _ARROW_FILE, _ARROW_STREAM))


def is_json(start: bytes) -> bool:
    """Whether a file that begins so is taken for JSON."""
    return _text(start).lstrip().startswith(("{", "["))


def _text(start: bytes) -> str:
    return start.decode(marked_encoding(start) or "UTF-8", "replace")


def rows_of(path: Path, encoding: str | None, known: Callable[[Sequence[str]], int]) -> Rows:
    """Yield the number of each row and the object that it is, or a RowError in its place.

    `encoding` is that of CSV; see `text_lines` for one without. `known` counts the names of a CSV header that mean
    something; it decides between separators.

    Raises PoolInvalid where the file cannot be read, or not to its end.
    """
    for number, row in _values_of(path, encoding, known):
        yield number, row if isinstance(row, dict | RowError) else RowError("the row must be an object")


def _values_of(path: Path, encoding: str | None, known: Callable[[Sequence[str]], int]) -> Iterator[tuple[int, object]]:
    start = beginning(path)
    if is_table(start):
        return _table_rows(path, start)
    if not is_json(start):
        return _csv_rows(path, encoding, known)
    return json_rows(path) if _is_lines(path, start) else _document_rows(path)


def _is_lines(path: Path, start: bytes) -> bool:
    text = _text(start)
    if _LIST.match(text) or marked_encoding(start) not in (None, "UTF-8-SIG"):
        return False
    if re.search(r"\.(jsonl|ndjson)(\.|$)", path.name.lower()):
        return True
    try:
        return isinstance(orjson.loads(text.lstrip().partition("\n")[0]), dict)
    except orjson.JSONDecodeError:
        return False


def _document_rows(path: Path) -> Iterator[tuple[int, object]]:
    """Rows of lists, of objects around lists, or of objects that follow each other."""
    with decoded(path, None, "strict") as stream:
        try:
            yield from enumerate(_values(path, stream), 1)
        except UnicodeDecodeError as error:
            raise PoolInvalid(path, f"is not {error.encoding.upper()}: {error.reason}") from error


def _values(path: Path, stream: IO[str]) -> Iterator[object]:
    decode, text = json.JSONDecoder().raw_decode, stream.read(_CHUNK)
    first = _LIST.match(text)
    at = first.end() if first else 0
    while True:
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        if text.startswith("]", at):
            text = text[at + 1 :] + stream.read(_CHUNK)
            while (found := _NEXT_LIST.search(text)) is None:
                if not (more := stream.read(_CHUNK)):
                    return
                text = f".{text[-_BEGUN:]}{more}"  # the point, because a list that begins there is none of rows
            at = found.end()
            continue
        try:
            value, at = decode(text, at)
            yield value
        except RecursionError:
            raise PoolInvalid(path, "a row is nested too deep") from None
        except json.JSONDecodeError as error:  # perhaps because the row goes on
            more = stream.read(max(_CHUNK, len(text) - at))
            text, at = text[at:] + more, 0
            if not more and not text.strip() and first is None:
                return
            if not more or len(text) > _MOST_CHARACTERS:
                raise PoolInvalid(path, f"is not valid JSON, or cut off: {error.msg}") from None
        except ValueError:  # Python reads no number of more than 4,300 digits
            raise PoolInvalid(path, "a number has too many digits") from None


def _table_rows(path: Path, start: bytes) -> Iterator[tuple[int, object]]:
    try:
        with open_input(path) as raw:
            yield from enumerate(plain_rows(_batches(raw, start)), 1)
    except (OSError, pa.ArrowException) as error:
        raise PoolInvalid(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _batches(raw: io.BufferedReader, start: bytes) -> Iterator[pa.RecordBatch]:
    if start.startswith(_PARQUET):
        import pyarrow.parquet as pq

        return pq.ParquetFile(raw, buffer_size=_CHUNK, pre_buffer=False).iter_batches(_BATCH_ROWS)
    if start.startswith(_ARROW_STREAM):
        return iter(pa.ipc.open_stream(raw))
    file = pa.ipc.open_file(raw)
    return (file.get_batch(at) for at in range(file.num_record_batches))


def text_lines(path: Path, encoding: str | None = None) -> Iterator[str]:
    """Yield the lines of a text with their ends, without an encoding those of UTF-8.

    Each byte that cannot be UTF-8 is a letter of windows-1252 then.
    """
    with _text_of(path, encoding) as stream:
        yield from lines_of(stream)


def _text_of(path: Path, encoding: str | None) -> AbstractContextManager[io.TextIOWrapper]:
    return decoded(path, encoding, "replace" if encoding else _BY_LETTER)


def _letters(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("windows-1252", "replace"), error.end


codecs.register_error(_BY_LETTER, _letters)


def _csv_rows(path: Path, encoding: str | None, known: Callable[[Sequence[str]], int]) -> Rows:
    """Yield the cells by their columns; an empty one is None. Of columns of one name the first counts."""
    with _text_of(path, encoding) as stream:
        columns: dict[str, int] = {}
        count = 0
        for line, cells in table_of(path, stream, known).rows:
            if isinstance(cells, RowError):
                yield line, cells
            elif not columns:
                if len(cells) > MAX_FIELDS:
                    raise PoolInvalid(path, f"there are {len(cells)} columns, more than {MAX_FIELDS}")
                count = len(cells)
                for place, name in enumerate(cells):
                    columns.setdefault(name.strip(), place)
            elif len(cells) != count:
                yield line, RowError(f"the row has another number of cells than the header, {count}")
            else:
                yield line, {name: cells[place] if cells[place].strip() else None for name, place in columns.items()}


@contextmanager
def table_on_disk() -> Iterator[sqlite3.Connection]:
    """Yield a database of SQLite in a temporary file, so that memory does not grow with it; it is gone afterwards."""
    try:
        with closing(sqlite3.connect("")) as table:
            yield table
    except sqlite3.Error as error:
        raise OSError(errno.EIO, f"the rows cannot be kept on the disk of temporary files: {error}") from error
