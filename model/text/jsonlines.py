"""Read `.jsonl`, `.jsonl.gz` and `.jsonl.zst`: one JSON object a line, streamed. A field that is null is absent."""

import errno
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import orjson

from polyrank.model.errors import InvalidInput
from polyrank.model.inputs import BlankLines, Compression, open_unfolded

MAX_LINE_BYTES = 64 << 20  # a line may hold thousands of candidates

Object = dict[str, Any]

_COMPRESSIONS: dict[str, Compression | None] = {".jsonl": None, ".jsonl.gz": "gzip", ".jsonl.zst": "zstd"}


def compression_of(path: Path, invalid: type[InvalidInput]) -> Compression | None:
    """Return the compression that a file's name shows; raises `invalid` for any other kind of file."""
    for suffix, compression in _COMPRESSIONS.items():
        if path.name.lower().endswith(suffix):
            return compression
    raise invalid(f"{path}: unknown kind of file; use one of {', '.join(_COMPRESSIONS)}")


def read_objects(path: Path, invalid: type[InvalidInput]) -> Iterator[tuple[int, Object | InvalidInput]]:
    """Stream the lines of a file with their numbers, from 1: the object, or what is wrong with it. Skips blank lines.

    Raises `invalid`: at once where the file is missing or of an unknown kind, while reading where it is damaged.
    """
    compression = compression_of(path, invalid)
    if not path.is_file():
        raise invalid(f"{path}: no such file")
    return _objects(path, compression, invalid)


def _objects(
    path: Path, compression: Compression | None, invalid: type[InvalidInput]
) -> Iterator[tuple[int, Object | InvalidInput]]:
    try:
        with open_unfolded(path, compression) as stream:
            for number, line in written_lines(stream):
                yield number, _parse(line)
    except OSError as error:
        raise invalid(f"{path}: cannot be read to its end: {error.strerror or error}") from error


def written_lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank with their numbers, from 1; raises OSError for a line that is too long."""
    number, blank = 0, BlankLines()
    while line := stream.readline(MAX_LINE_BYTES):
        number += 1
        if len(line) == MAX_LINE_BYTES:
            raise OSError(errno.EINVAL, f"a line is longer than {MAX_LINE_BYTES} bytes")
        text = line.removeprefix(BOM_UTF8) if number == 1 else line  # Windows tools write a BOM
        if text.strip():
            yield number, text
        else:
            blank.skip()


def _parse(line: bytes) -> Object | InvalidInput:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:  # also bad UTF-8, half a surrogate pair, and endless nesting
        return InvalidInput("the line is not JSON in UTF-8")
    if not isinstance(value, dict):
        return InvalidInput("the line is not a JSON object")
    return {name: content for name, content in value.items() if content is not None}
