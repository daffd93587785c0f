"""Read objects from `.jsonl`, `.jsonl.gz` or `.jsonl.zst`, one a line, streamed."""

import io
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, cast

import orjson
import pyarrow as pa

from polyrank.model.errors import InvalidInput

COMPRESSIONS: dict[str, Literal["gzip", "zstd"] | None] = {".jsonl": None, ".jsonl.gz": "gzip", ".jsonl.zst": "zstd"}

Object = dict[str, Any]


def read_objects(path: Path, invalid: type[InvalidInput]) -> Iterator[tuple[int, Object | InvalidInput]]:
    """Stream a file's lines with their numbers, from 1: an object, or what is wrong with the line; blank ones skipped.

    Args:
        path: the file; its name tells how it is compressed.
        invalid: the error to raise.

    Raises:
        InvalidInput: of the type `invalid`; before the first line for a file that is missing or of an unknown kind,
            while reading for one that is damaged.
    """
    suffix = next((suffix for suffix in COMPRESSIONS if path.name.lower().endswith(suffix)), None)
    if suffix is None:
        raise invalid(f"{path}: unknown kind of file; use one of {', '.join(COMPRESSIONS)}")
    if not path.is_file():
        raise invalid(f"{path}: no such file")
    return _objects(path, COMPRESSIONS[suffix], invalid)


def _objects(
    path: Path, compression: Literal["gzip", "zstd"] | None, invalid: type[InvalidInput]
) -> Iterator[tuple[int, Object | InvalidInput]]:
    try:
        with pa.input_stream(path, compression=compression) as stream:  # type: ignore[arg-type]  # None: as it is
            for number, line in enumerate(io.BufferedReader(cast(io.RawIOBase, stream)), 1):
                text = line.removeprefix(BOM_UTF8) if number == 1 else line  # a BOM, as Windows tools write it
                if text.strip():
                    yield number, _parse(text)
    except OSError as error:
        raise invalid(f"{path}: cannot be read to its end: {error}") from error


def _parse(line: bytes) -> Object | InvalidInput:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:  # also bad UTF-8, half a surrogate pair, and nesting without end
        return InvalidInput("the line is not JSON in UTF-8")
    return value if isinstance(value, dict) else InvalidInput("the line is not a JSON object")
