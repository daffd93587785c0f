"""Read candidate pools: the usable rows, and for each bad row where it is and why.

Files are streamed: memory holds a row (of Parquet a small batch) and a compression window.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from polyrank.index_builder.errors import PoolEmpty, PoolInvalid
from polyrank.index_builder.pool.limits import check_id, check_metadata
from polyrank.index_builder.pool.parquet import parquet_rows
from polyrank.index_builder.pool.seen import SeenHashes
from polyrank.index_builder.pool.text import RowError, csv_rows, json_rows
from polyrank.index_builder.vectors.ids import hash_id, text_id

MAX_TEXT_CHARACTERS = 20_000
_FIRST_ROWS = 10
_REASON_CHARACTERS = 300  # it may name a key or a column

_READERS: dict[str, Callable[[Path], Iterator[tuple[int, object]]]] = {
    ".jsonl": json_rows,
    ".jsonl.gz": json_rows,
    ".jsonl.zst": json_rows,
    ".csv": csv_rows,
    ".parquet": parquet_rows,
}


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something to rank: its unique id, its text, and metadata for filters."""

    id: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A bad row: its file, its line (in a Parquet file its row; the first is 1) and what is wrong with it."""

    file: str
    line: int
    reason: str


def read_pool(paths: Sequence[Path | str], scratch: Path | None = None) -> Iterator[Candidate | Rejected]:
    """Stream the rows of `.jsonl`, `.jsonl.gz`, `.jsonl.zst`, `.csv` and `.parquet` files, in order.

    A row has `text`, and optionally `id` (made from a hash of the text if absent) and `metadata` (an object; in CSV and
    Parquet every other column). Other JSON fields are ignored, and blank lines are skipped. An id may occur only once
    in all files together.

    A pool of more than 65,536 rows needs a nameless file for the hashes of its ids, 16 to 32 bytes a row. It lies in
    the directory `scratch`; None: the system's temporary directory.

    Raises:
        PoolInvalid: a file is missing or of an unknown kind; this is raised at once. Or, while reading: a file is
            truncated or unreadable, or has no usable columns.
    """
    files = [(Path(path), _suffix(Path(path))) for path in paths]
    return _rows(files, scratch)


def begin_pool(paths: Sequence[Path | str], scratch: Path | None = None) -> Iterator[Candidate | Rejected]:
    """Stream rows as `read_pool`, but read the first ones now, so that a file that is none is refused at once.

    Raises:
        PoolInvalid: as `read_pool`.
        PoolEmpty: there is no row.
    """
    rows = read_pool(paths, scratch)
    first = list(islice(rows, _FIRST_ROWS))
    if not first:
        raise PoolEmpty(f"{', '.join(map(str, paths))}: the pool holds no candidate")
    return chain(first, rows)


def _suffix(path: Path) -> str:
    suffix = next((suffix for suffix in _READERS if path.name.lower().endswith(suffix)), None)
    if suffix is None:
        raise PoolInvalid(path, f"unknown kind of pool; use one of {', '.join(_READERS)}")
    if path.is_dir():
        raise PoolInvalid(path, "is a directory; name the files in it")
    if not path.exists():
        raise PoolInvalid(path, "no such file")
    if not path.is_file():
        raise PoolInvalid(path, "is no regular file")
    return suffix


def _rows(files: list[tuple[Path, str]], scratch: Path | None) -> Iterator[Candidate | Rejected]:
    seen = SeenHashes(scratch)
    for path, suffix in files:
        for line, row in _READERS[suffix](path):
            try:
                yield _candidate(row, seen)
            except RowError as error:
                yield Rejected(str(path), line, str(error)[:_REASON_CHARACTERS])


def _candidate(row: object, seen: SeenHashes) -> Candidate:
    """Check a row and remember its id."""
    if isinstance(row, RowError):
        raise row
    if not isinstance(row, dict):
        raise RowError(f"the row must be an object, not {_json_name(row)}")
    text = _checked_text(row)
    metadata = _checked_metadata(row)
    candidate_id = _checked_id(row)
    if candidate_id is None:
        candidate_id = text_id(text)
    if not seen.add(hash_id(candidate_id)):
        raise RowError(f"the id {candidate_id[:80]!r} was seen before")
    return Candidate(candidate_id, text, metadata)


def _checked_text(row: dict[str, Any]) -> str:
    if "text" not in row:
        raise RowError("'text' is missing")
    text = row["text"]
    if not isinstance(text, str):
        raise RowError(f"'text' must be a string, not {_json_name(text)}")
    if not text or text.isspace():
        raise RowError("'text' is empty")
    if len(text) > MAX_TEXT_CHARACTERS:
        raise RowError(f"'text' has {len(text)} characters, more than {MAX_TEXT_CHARACTERS}")
    return text


def _checked_id(row: dict[str, Any]) -> str | None:
    candidate_id = row.get("id")
    if candidate_id is None:
        return None
    if not isinstance(candidate_id, str):
        raise RowError(f"'id' must be a string, not {_json_name(candidate_id)}")
    try:
        check_id(candidate_id)
    except ValueError as error:
        raise RowError(f"'id' {error}") from None
    return candidate_id


def _checked_metadata(row: dict[str, Any]) -> dict[str, Any]:
    metadata = row.get("metadata")
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise RowError(f"'metadata' must be an object, not {_json_name(metadata)}")
    try:
        check_metadata(metadata)
    except ValueError as error:
        raise RowError(f"'metadata': {error}") from None
    return metadata


def _json_name(value: object) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "null")
