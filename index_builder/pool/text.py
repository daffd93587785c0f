"""Read JSON lines and CSV as a stream of plain objects, each with its line number."""

import csv
import errno
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

import orjson
import pyarrow as pa

from polyrank.index_builder.errors import PoolInvalid
from polyrank.model.inputs import open_input

# A longer line is refused, so that it does not fill the memory: 20,000 characters, escaped twice over, are 240 kB.
MAX_LINE_BYTES = 4 << 20
# A line that goes on for longer ends the reading: a sparse file or a small compressed one may hold terabytes.
_MOST_SKIPPED_BYTES = 1 << 28

_LONG_NUMBER = re.compile(rb"\d{19}")
_COMPRESSIONS: dict[str, Literal["gzip", "zstd"]] = {".gz": "gzip", ".zst": "zstd"}


class RowError(Exception):
    """What is wrong with one row. Readers yield it in the row's place, so that the caller can name the line."""


def json_rows(path: Path) -> Iterator[tuple[int, object]]:
    """Yield the line number and value of each line that is not blank; a RowError if the line is not JSON.

    Raises PoolInvalid for a file that is truncated or unreadable.
    """
    with _opened(path) as stream:
        for number, line in _lines(stream):
            if isinstance(line, RowError):
                yield number, line
            elif not line.isspace():
                yield number, _parsed(line)


def csv_rows(path: Path) -> Iterator[tuple[int, object]]:
    """Yield the line number of each row and the object that a JSON line would hold, or a RowError.

    Raises PoolInvalid as `json_rows` does, and for a file without a usable header.
    """
    header: list[str] | None = None
    with _opened(path) as stream:
        reader = csv.reader(_csv_lines(stream), strict=True)
        while True:
            first_line = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                if header is None:
                    raise PoolInvalid(path, f"the header is not valid CSV: {error}") from error
                yield first_line, RowError(f"not valid CSV: {error}")
                continue
            if header is None:
                header = _checked_header(path, cells)
            elif cells:
                yield first_line, _csv_row(header, cells)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open for reading; errors of the operating system or the decompressor become PoolInvalid."""
    try:
        compression = _COMPRESSIONS.get(path.suffix.lower())
        with open_input(path) as file, _decompressed(file, compression) as stream:
            if stream.peek(3)[:3] == b"\xef\xbb\xbf":  # a byte order mark, as Windows tools write it
                stream.read(3)
            yield stream
    except OSError as error:
        raise PoolInvalid(path, f"cannot be read: {error}") from error


def _decompressed(file: io.BufferedReader, compression: Literal["gzip", "zstd"] | None) -> io.BufferedReader:
    raw: Any = pa.CompressedInputStream(file, compression) if compression else file
    return io.BufferedReader(raw, 1 << 18)


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | RowError]]:
    """Number the lines. A line that is too long is skipped piece by piece."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES):
        number += 1
        if len(line) < MAX_LINE_BYTES or line.endswith(b"\n"):
            yield number, line
            continue
        skipped = 0
        while line and not line.endswith(b"\n"):
            skipped += len(line)
            if skipped > _MOST_SKIPPED_BYTES:
                raise OSError(errno.EINVAL, f"line {number} does not end within {_MOST_SKIPPED_BYTES} bytes")
            line = stream.readline(MAX_LINE_BYTES)
        yield number, RowError(f"the line is longer than {MAX_LINE_BYTES} bytes")


def _parsed(line: bytes) -> object:
    try:
        value = orjson.loads(line)
        # Of a whole number beyond 64 bits orjson makes a float. It is read again as it is, and refused.
        return json.loads(line) if _LONG_NUMBER.search(line) else value
    except RecursionError:
        return RowError("nested too deep")
    except orjson.JSONDecodeError as error:
        try:
            line.decode()
        except UnicodeDecodeError as bad:
            return RowError(f"not valid UTF-8 at byte {bad.start}")
        return RowError(f"not valid JSON: {error.msg} at character {error.pos}")


def _csv_lines(stream: BinaryIO) -> Iterator[str]:
    """Lines whose faults spoil only their own row: bad bytes become lone surrogates, a long line a cell too long."""
    for _, line in _lines(stream):
        if isinstance(line, RowError):
            yield "x" * (csv.field_size_limit() + 1) + "\n"
        else:
            yield line.decode(errors="surrogateescape")


def _checked_header(path: Path, cells: list[str]) -> list[str]:
    if "text" not in cells:
        raise PoolInvalid(path, "the header has no column 'text'")
    if len(set(cells)) < len(cells):
        raise PoolInvalid(path, "the header names a column twice")
    if wrong := [cell for cell in cells if cell.startswith("$") or not _is_utf8(cell)]:
        raise PoolInvalid(path, f"the column name {wrong[0]!r} begins with '$' or is not valid UTF-8")
    return cells


def _csv_row(header: list[str], cells: list[str]) -> object:
    if len(cells) != len(header):
        return RowError(f"{len(cells)} cells, but the header has {len(header)}")
    if not all(map(_is_utf8, cells)):
        return RowError("not valid UTF-8")
    metadata = dict(zip(header, cells, strict=True))
    return {"id": metadata.pop("id", None) or None, "text": metadata.pop("text"), "metadata": metadata}


def _is_utf8(cell: str) -> bool:
    try:
        cell.encode()
    except UnicodeEncodeError:
        return False
    return True
