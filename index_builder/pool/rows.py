"""Read candidate pools: the usable rows, and for each bad row where it is and why.

Files are streamed: memory holds a row (of Parquet a small batch) and a compression window.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from polyrank.index_builder.errors import PoolEmpty, PoolInvalid
from polyrank.index_builder.pool.documents import document
from polyrank.index_builder.pool.fields import Fields
from polyrank.index_builder.pool.parquet import parquet_rows
from polyrank.index_builder.pool.seen import SeenHashes
from polyrank.index_builder.pool.spreadsheet import column_kinds, csv_rows
from polyrank.index_builder.pool.text import RowError, json_rows
from polyrank.index_builder.vectors.ids import hash_id, text_id

_FIRST_ROWS = 10
_REASON_CHARACTERS = 300  # it may name a key or a column
_CSV, _PARQUET = ".csv", ".parquet"
_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", _CSV, _PARQUET)


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


class PoolRows(Iterable[Candidate | Rejected]):
    """The rows of files, in order, to be read once.

    Attributes:
        fields: what metadata the rows read so far have, and what of them was left out.
    """

    def __init__(self, files: list[tuple[Path, str]], scratch: Path | None, encoding: str | None) -> None:
        self.fields = Fields()
        self._files, self._encoding, self._seen = files, encoding, SeenHashes(scratch)
        self._rows = self._read()

    def __iter__(self) -> Iterator[Candidate | Rejected]:
        return self._rows

    def has_rows(self) -> bool:
        """Look at the first rows, which are read again later; raises PoolInvalid where a file is none."""
        return bool(list(islice(self._raw(frozenset(), Fields()), _FIRST_ROWS)))

    def _read(self) -> Iterator[Candidate | Rejected]:
        typed = column_kinds([path for path, suffix in self._files if suffix == _CSV], self._encoding)
        for path, line, row in self._raw(typed, self.fields):
            try:
                yield self._candidate(row)
            except RowError as error:
                yield Rejected(str(path), line, str(error)[:_REASON_CHARACTERS])

    def _raw(self, typed: frozenset[str], fields: Fields) -> Iterator[tuple[Path, int, object]]:
        for path, suffix in self._files:
            if suffix == _CSV:
                rows = csv_rows(path, self._encoding, typed)
            else:
                rows = parquet_rows(path, fields) if suffix == _PARQUET else json_rows(path)
            for line, row in rows:
                yield path, line, row

    def _candidate(self, row: object) -> Candidate:
        """Check a row, remember its id and count its fields."""
        found = document(row, self.fields)
        candidate_id = text_id(found.text) if found.id is None else found.id
        if not self._seen.add(hash_id(candidate_id)):
            raise RowError(f"the id {candidate_id[:80]!r} was seen before")
        self.fields.count(found.metadata)
        return Candidate(candidate_id, found.text, found.metadata)


def read_pool(paths: Sequence[Path | str], scratch: Path | None = None, encoding: str | None = None) -> PoolRows:
    """Stream the rows of `.jsonl`, `.jsonl.gz`, `.jsonl.zst`, `.csv` and `.parquet` files, in order.

    What a row means is said in `documents`; a row without an id gets one that is made from a hash of the text. Blank
    lines are skipped. An id may occur only once in all files together. CSV files are read twice: see `spreadsheet`.

    A pool of more than 65,536 rows needs a nameless file for the hashes of its ids, 16 to 32 bytes a row. It lies in
    the directory `scratch`; None: the system's temporary directory. `encoding` is that of CSV files without a byte
    order mark, a name that Python knows; None: UTF-8.

    Raises:
        PoolInvalid: a file is missing or of an unknown kind; this is raised at once. Or, while reading: a file is
            truncated or unreadable, or has no usable columns.
    """
    return PoolRows([(Path(path), _suffix(Path(path))) for path in paths], scratch, encoding)


def begin_pool(paths: Sequence[Path | str], scratch: Path | None = None, encoding: str | None = None) -> PoolRows:
    """Stream rows as `read_pool`, but look at the first ones now, so that a file that is none is refused at once.

    Raises:
        PoolInvalid: as `read_pool`.
        PoolEmpty: there is no row.
    """
    pool = read_pool(paths, scratch, encoding)
    if not pool.has_rows():
        raise PoolEmpty(f"{', '.join(map(str, paths))}: the pool holds no candidate")
    return pool


def _suffix(path: Path) -> str:
    suffix = next((suffix for suffix in _SUFFIXES if path.name.lower().endswith(suffix)), None)
    if suffix is None:
        raise PoolInvalid(path, f"unknown kind of pool; use one of {', '.join(_SUFFIXES)}")
    if path.is_dir():
        raise PoolInvalid(path, "is a directory; name the files in it")
    if not path.exists():
        raise PoolInvalid(path, "no such file")
    if not path.is_file():
        raise PoolInvalid(path, "is no regular file")
    return suffix
