"""Read candidate pools: rows that can be used, and for each that cannot, where it is and why.

Files are streamed: no more than one row (and a compression window) is held, besides a 64-bit hash of each id to find
duplicates. Knows nothing of what becomes of the rows.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import orjson
import pyarrow as pa

from index_builder.errors import PoolInvalid
from index_builder.ids import hash_id

MAX_TEXT_CHARACTERS = 20_000
# A longer line cannot be a sane row (20,000 characters, escaped twice over, are 240 kB); it must not fill the memory.
MAX_LINE_BYTES = 4 << 20

_COMPRESSIONS: dict[str, Literal["gzip", "zstd"] | None] = {
    ".jsonl": None,
    ".jsonl.gz": "gzip",
    ".jsonl.zst": "zstd",
    ".csv": None,
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """One thing to rank: its unique id, its text and what filters may ask about."""

    id: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rejected:
    """One bad row: its file, its line (the first is 1) and what is wrong with it."""

    file: str
    line: int
    reason: str


class _RowError(Exception):
    """Carries the reason from where it is found to where the line is known."""


def read_pool(paths: Sequence[Path | str]) -> Iterator[Candidate | Rejected]:
    """Stream the rows of `.jsonl`, `.jsonl.gz`, `.jsonl.zst` and `.csv` files, in order; blank lines are skipped.

    A row has `text`, and if it likes `id` (made from a hash of the text if absent) and `metadata` (an object; in CSV
    every other column). Other JSON fields are ignored. An id may occur once in all files together.

    Raises:
        PoolInvalid: before the first row, for a file that is missing or of an unknown kind; while reading, for one
            that is truncated or unreadable, or a CSV without a usable header.
    """
    files = [(Path(path), _suffix(Path(path))) for path in paths]
    return _rows(files)


def _suffix(path: Path) -> str:
    suffix = next((suffix for suffix in _COMPRESSIONS if path.name.lower().endswith(suffix)), None)
    if suffix is None:
        raise PoolInvalid(str(path), f"unknown kind of pool; use one of {', '.join(_COMPRESSIONS)}")
    if path.is_dir():
        raise PoolInvalid(str(path), "is a directory; name the files in it")
    if not path.exists():
        raise PoolInvalid(str(path), "no such file")
    return suffix


def _rows(files: list[tuple[Path, str]]) -> Iterator[Candidate | Rejected]:
    seen: set[int] = set()
    for path, suffix in files:
        with _opened(path, suffix) as stream:
            rows = _csv_rows(path, stream) if suffix == ".csv" else _json_rows(stream)
            for line, row in rows:
                try:
                    yield _candidate(row, seen)
                except _RowError as error:
                    yield Rejected(str(path), line, str(error))


@contextmanager
def _opened(path: Path, suffix: str) -> Iterator[BinaryIO]:
    """Open for reading; what the operating system or the decompressor says about the file names the file."""
    try:
        file: Any = pa.OSFile(str(path), "rb")
        if compression := _COMPRESSIONS[suffix]:
            file = pa.CompressedInputStream(file, compression)
        with file, cast(BinaryIO, io.BufferedReader(file, 1 << 18)) as stream:
            if stream.peek(3)[:3] == b"\xef\xbb\xbf":  # type: ignore[attr-defined]  # a BOM, as Windows tools write it
                stream.read(3)
            yield stream
    except OSError as error:
        raise PoolInvalid(str(path), f"cannot be read: {error}") from error


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | _RowError]]:
    """Number the lines; one that is too long is read past in pieces."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES):
        number += 1
        if len(line) < MAX_LINE_BYTES or line.endswith(b"\n"):
            yield number, line
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(MAX_LINE_BYTES)
        yield number, _RowError(f"the line is longer than {MAX_LINE_BYTES} bytes")


def _json_rows(stream: BinaryIO) -> Iterator[tuple[int, object]]:
    for number, line in _lines(stream):
        if isinstance(line, _RowError):
            yield number, line
        elif not line.isspace():
            yield number, _parsed(line)


def _parsed(line: bytes) -> object:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        try:
            line.decode()
        except UnicodeDecodeError as bad:
            return _RowError(f"not valid UTF-8 at byte {bad.start}")
        return _RowError(f"not valid JSON: {error.msg} at character {error.pos}")


def _csv_rows(path: Path, stream: BinaryIO) -> Iterator[tuple[int, object]]:
    """Rows as the objects that JSON lines would have held."""
    reader = csv.reader(_csv_lines(stream), strict=True)
    header: list[str] | None = None
    while True:
        first_line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if header is None:
                raise PoolInvalid(str(path), f"the header is not valid CSV: {error}") from error
            yield first_line, _RowError(f"not valid CSV: {error}")
            continue
        if header is None:
            header = _checked_header(path, cells)
        elif cells:
            yield first_line, _csv_row(header, cells)


def _csv_lines(stream: BinaryIO) -> Iterator[str]:
    """Lines that spoil their own row and not the file: bad bytes as lone surrogates, long lines as too long cells."""
    for _, line in _lines(stream):
        if isinstance(line, _RowError):
            yield "x" * (csv.field_size_limit() + 1) + "\n"
        else:
            yield line.decode(errors="surrogateescape")


def _checked_header(path: Path, cells: list[str]) -> list[str]:
    if "text" not in cells:
        raise PoolInvalid(str(path), "the header has no column 'text'")
    if len(set(cells)) < len(cells):
        raise PoolInvalid(str(path), "the header names a column twice")
    if wrong := [cell for cell in cells if cell.startswith("$") or not _is_utf8(cell)]:
        raise PoolInvalid(str(path), f"the column name {wrong[0]!r} begins with '$' or is not valid UTF-8")
    return cells


def _csv_row(header: list[str], cells: list[str]) -> object:
    if len(cells) != len(header):
        return _RowError(f"{len(cells)} cells, but the header has {len(header)}")
    if not all(map(_is_utf8, cells)):
        return _RowError("not valid UTF-8")
    metadata = dict(zip(header, cells, strict=True))
    return {"id": metadata.pop("id", None) or None, "text": metadata.pop("text"), "metadata": metadata}


def _is_utf8(cell: str) -> bool:
    try:
        cell.encode()
    except UnicodeEncodeError:
        return False
    return True


def _candidate(row: object, seen: set[int]) -> Candidate:
    """Check a row and remember its id."""
    if isinstance(row, _RowError):
        raise row
    if not isinstance(row, dict):
        raise _RowError(f"the row must be an object, not {_json_name(row)}")
    text = _checked_text(row)
    metadata = _checked_metadata(row)
    candidate_id = row.get("id")
    if candidate_id is None:
        candidate_id = sha256(text.encode()).hexdigest()[:32]
    elif not isinstance(candidate_id, str):
        raise _RowError(f"'id' must be a string, not {_json_name(candidate_id)}")
    elif not candidate_id:
        raise _RowError("'id' is empty")
    hashed = hash_id(candidate_id)
    if hashed in seen:
        raise _RowError(f"the id {candidate_id[:80]!r} was seen before")
    seen.add(hashed)
    return Candidate(candidate_id, text, metadata)


def _checked_text(row: dict[str, Any]) -> str:
    if "text" not in row:
        raise _RowError("'text' is missing")
    text = row["text"]
    if not isinstance(text, str):
        raise _RowError(f"'text' must be a string, not {_json_name(text)}")
    if not text or text.isspace():
        raise _RowError("'text' is empty")
    if len(text) > MAX_TEXT_CHARACTERS:
        raise _RowError(f"'text' has {len(text)} characters, more than {MAX_TEXT_CHARACTERS}")
    return text


def _checked_metadata(row: dict[str, Any]) -> dict[str, Any]:
    metadata = row.get("metadata")
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise _RowError(f"'metadata' must be an object, not {_json_name(metadata)}")
    if reserved := [key for key in metadata if key.startswith("$")]:
        raise _RowError(f"the metadata key {reserved[0][:80]!r} begins with '$'")
    return metadata


def _json_name(value: object) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "null")
