"""Read JSON lines as a stream of plain objects, each with its line number."""

import errno
import io
import json
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, AnyStr

import orjson

from polyrank.index_builder.errors import PoolInvalid
from polyrank.model.inputs import BlankLines, Compression, open_unfolded

# A longer line is refused, so that it does not fill the memory: 20,000 characters, escaped twice over, are 240 kB.
MAX_LINE_BYTES = 4 << 20
# A line that goes on for longer ends the reading: a sparse file or a small compressed one may hold terabytes.
_MOST_SKIPPED_BYTES = 1 << 28

_LONG_NUMBER = re.compile(rb"\d{19}")
_COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}


class RowError(Exception):
    """What is wrong with one row. Readers yield it in the row's place, so that the caller can name the line."""


def json_rows(path: Path) -> Iterator[tuple[int, object]]:
    """Yield the line number and value of each line that is not blank; a RowError if the line is not JSON.

    Raises PoolInvalid for a file that is truncated or unreadable.
    """
    with opened(path) as stream:
        first = stream.peek(3)
        if first.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            raise PoolInvalid(path, "is in UTF-16; JSON lines are in UTF-8: save the file so")
        if first.startswith(BOM_UTF8):  # as Windows tools write it
            stream.read(len(BOM_UTF8))
        blank = BlankLines()
        for number, line in bounded_lines(stream, (b"\n",)):
            if isinstance(line, RowError):
                yield number, line
            elif line.isspace():
                blank.skip()
            else:
                yield number, parsed(line)


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """Open for reading; errors of the operating system or the decompressor become PoolInvalid."""
    try:
        with open_unfolded(path, _COMPRESSIONS.get(path.suffix.lower())) as stream:
            yield stream
    except OSError as error:
        raise PoolInvalid(path, f"cannot be read: {error.strerror or error}") from error


def bounded_lines(stream: IO[AnyStr], ends: tuple[AnyStr, ...]) -> Iterator[tuple[int, AnyStr | RowError]]:
    """Number the lines, each with one of the `ends`. A line that is too long is skipped piece by piece."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES):
        number += 1
        if len(line) < MAX_LINE_BYTES or line.endswith(ends):
            yield number, line
            continue
        skipped = 0
        while line and not line.endswith(ends):
            skipped += len(line)
            if skipped > _MOST_SKIPPED_BYTES:
                raise OSError(errno.EINVAL, f"line {number} does not end within {_MOST_SKIPPED_BYTES} bytes")
            line = stream.readline(MAX_LINE_BYTES)
        yield number, RowError(f"the line is longer than {MAX_LINE_BYTES} bytes")


def parsed(line: bytes) -> object:
    """Return the value of a JSON text, or a RowError that says what is wrong with it."""
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
