"""Read the rows of any file: JSON lines, JSON documents, tables with separators, Arrow and Parquet; all are streamed.

A JSON document may be a list of rows, or an object around one, as answers of Elasticsearch and Qdrant are. Rows are
numbered from 1: by their line in JSON lines and CSV, by their place elsewhere.
"""

import codecs
import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any

import orjson
import pyarrow as pa

from polyrank.index_builder.errors import PoolInvalid
from polyrank.index_builder.pool.documents import RowError
from polyrank.index_builder.pool.parquet import plain_rows
from polyrank.index_builder.pool.text import bounded_lines, json_rows, opened
from polyrank.model.inputs import open_input

Rows = Iterator[tuple[int, object]]

BEGINNING_BYTES = 1 << 16  # what is looked at to tell what a file is
_CHUNK = 1 << 18
_MOST_CHARACTERS = 64 << 20  # of one row of a JSON document
_BATCH_ROWS = 128
_PARQUET, _ARROW_FILE, _ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_SEPARATORS = ",;\t|"
_SAID = re.compile(r"sep=(.)\r?\n?", re.IGNORECASE)
_SPACE = re.compile(r"[\s,]*")
# A list of rows, or an object whose first list is known to hold rows; not one of the lines of JSON lines.
_IN_OBJECT = r'\{(?:(?!\}\s*\{)[^\[\]])*?"(?:hits|points|result)"\s*:\s*\['
_LIST = re.compile(rf"\s*(?:\[|{_IN_OBJECT})")
_NEXT_LIST = re.compile(rf"\s*\[|[\s\S]*?{_IN_OBJECT}")
_BETWEEN = 4096  # characters between two lists in which the second one is looked for


def beginning(path: Path) -> bytes:
    """Return the first bytes of a file, unfolded. Raises PoolInvalid where it cannot be read."""
    with opened(path) as stream:
        return stream.read(BEGINNING_BYTES)


def is_table(start: bytes) -> bool:
    """Whether a file that begins so is Arrow's or Parquet's."""
    return start.startswith((_PARQUET, _ARROW_FILE, _ARROW_STREAM))


def is_json(start: bytes) -> bool:
    """Whether a file that begins so is taken for JSON."""
    return start.removeprefix(codecs.BOM_UTF8).lstrip().startswith((b"{", b"["))


def rows_of(path: Path, encoding: str | None, known: Callable[[Sequence[str]], int]) -> Rows:
    """Yield the number and value of each row, or a RowError in its place.

    `encoding` is that of CSV, whose lines are else UTF-8 or, those that are not, windows-1252. `known` counts the names
    of a CSV header that mean something; it decides between separators.

    Raises PoolInvalid where the file cannot be read, or not to its end.
    """
    start = beginning(path)
    if is_table(start):
        return _table_rows(path, start)
    if not is_json(start):
        return _csv_rows(path, encoding, known)
    return json_rows(path) if _is_lines(path, start) else _document_rows(path)


def _is_lines(path: Path, start: bytes) -> bool:
    text = start.removeprefix(codecs.BOM_UTF8).decode(errors="replace")
    if _LIST.match(text):
        return False
    if re.search(r"\.(jsonl|ndjson)(\.|$)", path.name.lower()):
        return True
    try:
        return isinstance(orjson.loads(text.lstrip().partition("\n")[0]), dict)
    except orjson.JSONDecodeError:
        return False


def _document_rows(path: Path) -> Rows:
    """Rows of lists, of objects around lists, or of objects that follow each other."""
    with opened(path) as raw:
        stream = io.TextIOWrapper(raw, "utf-8-sig")
        try:
            yield from enumerate(_values(path, stream), 1)
        except UnicodeDecodeError as error:
            raise PoolInvalid(path, f"is not UTF-8: {error.reason}") from error


def _values(path: Path, stream: IO[str]) -> Iterator[object]:
    decode, text = json.JSONDecoder().raw_decode, stream.read(_CHUNK)
    first = _LIST.match(text)
    at = first.end() if first else 0
    while True:
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        if text.startswith("]", at):
            text = text[at + 1 :] + stream.read(_BETWEEN)
            if (found := _NEXT_LIST.match(text, 0, _BETWEEN)) is None:
                return
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


def _table_rows(path: Path, start: bytes) -> Rows:
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
    """Yield the lines of a text with their ends; in place of one that is too long, a cell that is too long for CSV.

    Without an encoding each line is UTF-8, else windows-1252, unless a byte order mark tells UTF-16.
    """
    with opened(path) as raw:
        if encoding is None and raw.peek(2).startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            encoding = "utf-16"
        stream: Any = raw if encoding is None else io.TextIOWrapper(raw, encoding, "replace", newline="")
        ends = (b"\n",) if encoding is None else ("\n", "\r")
        for number, line in bounded_lines(stream, ends):
            if isinstance(line, RowError):
                yield "x" * (csv.field_size_limit() + 1) + "\n"
            else:
                yield line if encoding else _decoded(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line)


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("windows-1252", "replace")


def _csv_rows(path: Path, encoding: str | None, known: Callable[[Sequence[str]], int]) -> Rows:
    lines = text_lines(path, encoding)
    first, skipped = next(lines, ""), 0
    if said := _SAID.fullmatch(first):
        first, skipped = next(lines, ""), 1

    def fits(separator: str) -> tuple[int, int]:
        cells = next(csv.reader([first], delimiter=separator), [])
        return known(cells), len(cells)

    reader = csv.reader(chain([first], lines), delimiter=said[1] if said else max(_SEPARATORS, key=fits))
    header: list[str] | None = None
    while True:
        line = reader.line_num + 1 + skipped
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, RowError(f"not valid CSV: {error}")
            continue
        if not any(map(str.strip, cells)):
            continue
        if header is None:
            header = [name.strip() for name in cells]
        elif len(cells) != len(header):
            yield line, RowError(f"the row has another number of cells than the header, {len(header)}")
        else:
            yield line, _object(header, cells)


def _object(header: Sequence[str], cells: Sequence[str]) -> dict[str, Any]:
    return {name: cell for name, cell in zip(header, cells, strict=True) if cell.strip()}
