"""Read candidate pools: the usable rows, and for each bad row where it is and why.

Files are streamed: memory holds a row (of Parquet a small batch) and a compression window.
"""

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import Any

from polyrank.index_builder.errors import PoolEmpty, PoolInvalid
from polyrank.index_builder.pool.documents import Fields, RowError, document, renamed
from polyrank.index_builder.pool.excel import excel_rows
from polyrank.index_builder.pool.parquet import parquet_rows
from polyrank.index_builder.pool.text import Typed, column_kinds, csv_rows, json_rows, with_answers, with_commas
from polyrank.index_builder.vectors.local import hash_id, text_id

NO_COLUMNS: Mapping[str, str] = MappingProxyType({})  # to be known by other names
_FIRST_ROWS = 10
_REASON_CHARACTERS = 300  # it may name a key or a column
_CSV, _PARQUET, _EXCEL = ".csv", ".parquet", ".xlsx"
_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", _CSV, _PARQUET, _EXCEL)

_SLOT_BYTES = 8
_BITS_IN_MEMORY = 17  # 2^17 slots are 1 MiB, for 65,536 hashes


class RepeatedText(RowError):
    """A row without an id repeats a text; logs of chat do so all the time."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something to rank: its unique id, its text, and metadata for filters."""

    id: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that is left out: its file, its line (in a Parquet file or a workbook its row; the first is 1) and why.

    is_bad: something is wrong with it; otherwise it repeats a text, and neither row has an id.
    """

    file: str
    line: int
    reason: str
    is_bad: bool = True


class PoolRows(Iterable[Candidate | Rejected]):
    """The rows of files, in order, to be read once.

    `fields`: what metadata the rows read so far have, and what of them was left out.
    """

    def __init__(
        self, files: list[tuple[Path, str]], scratch: Path | None, encoding: str | None, columns: Mapping[str, str]
    ) -> None:
        self.fields = Fields()
        self._files, self._encoding, self._columns = files, encoding, columns
        self._ids, self._texts = SeenHashes(scratch), SeenHashes(scratch)
        self._rows = self._read()

    def __iter__(self) -> Iterator[Candidate | Rejected]:
        return self._rows

    def begin(self) -> bool:
        """Read the first rows, which stay; returns whether there are any. Raises PoolInvalid where a file is none."""
        first = list(islice(self._rows, _FIRST_ROWS))
        self._rows = chain(first, self._rows)
        return bool(first)

    def _read(self) -> Iterator[Candidate | Rejected]:
        typed: Typed | None = None  # once a file of CSV is due: that reads all of them
        for path, suffix in self._files:
            if suffix == _CSV:
                if typed is None:
                    tables = [path for path, suffix in self._files if suffix == _CSV]
                    typed = column_kinds(tables, self._encoding, self._columns)
                    self.fields.decimal_commas, self.fields.answers = with_commas(typed), with_answers(typed)
                rows = csv_rows(path, self._encoding, self._columns, typed)
            elif suffix == _PARQUET:
                rows = parquet_rows(path, self.fields, self._columns)
            elif suffix == _EXCEL:
                rows = excel_rows(path, self.fields, self._columns)
            else:
                rows = ((line, renamed(row, self._columns)) for line, row in json_rows(path))
            for line, row in rows:
                try:
                    yield self._candidate(row)
                except RepeatedText as error:
                    yield Rejected(str(path), line, str(error), is_bad=False)
                except RowError as error:
                    yield Rejected(str(path), line, str(error)[:_REASON_CHARACTERS])

    def _candidate(self, row: object) -> Candidate:
        """Check a row, remember its id and its text, and count its fields."""
        candidate = document(row, self.fields)
        candidate_id = text_id(candidate.text) if candidate.id is None else candidate.id
        if not self._ids.add(hash_id(candidate_id)):
            if candidate.id is None:
                raise RepeatedText("the text, without an id, was seen before")
            raise RowError(f"the id {candidate_id[:80]!r} was seen before")
        self.fields.count(candidate.metadata)
        self.fields.look(candidate.text)
        self.fields.repeated += not self._texts.add(hash_id(candidate.text))
        return Candidate(candidate_id, candidate.text, candidate.metadata)


def read_pool(
    paths: Sequence[Path | str],
    scratch: Path | None = None,
    encoding: str | None = None,
    columns: Mapping[str, str] = NO_COLUMNS,
) -> PoolRows:
    """Stream the rows of `.jsonl`, `.jsonl.gz`, `.jsonl.zst`, `.csv`, `.parquet` and `.xlsx` files, in order.

    What a row means is said in `documents`; a row without an id gets one that is made from a hash of the text. Blank
    lines are skipped. An id may occur only once in all files together. CSV files are read twice: see `text`.

    A pool of more than 65,536 rows needs nameless files for the hashes of its ids and texts, 32 to 64 bytes a row. They
    lie in the directory `scratch`; None: the system's temporary directory. `encoding` is that of CSV files without a
    byte order mark, a name that Python knows; None: UTF-8. `columns`: which columns or fields are to be
    `text` and `id`.

    Raises:
        PoolInvalid: a file is missing or of an unknown kind; this is raised at once. Or, while reading: a file is
            truncated or unreadable, or has no usable columns.
    """
    return PoolRows([(Path(path), _suffix(Path(path))) for path in paths], scratch, encoding, columns)


def begin_pool(
    paths: Sequence[Path | str],
    scratch: Path | None = None,
    encoding: str | None = None,
    columns: Mapping[str, str] = NO_COLUMNS,
) -> PoolRows:
    """Stream rows as `read_pool`, but read the first ones now, so that a file that is none is refused at once.

    Raises PoolEmpty if there is no row.
    """
    pool = read_pool(paths, scratch, encoding, columns)
    if not pool.begin():
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


class SeenHashes:
    """A growing set of 64-bit hashes, of the ids so far, that does not grow in memory.

    It is a hash table with open addressing, at most half full, so that a hash takes 16 to 32 bytes. A small table lies
    in memory. A larger one lies in a mapped file without a name: the kernel can write its pages back and drop them, and
    the file disappears with the process.

    `scratch` is the directory of the file; None: the system's temporary directory.
    """

    def __init__(self, scratch: Path | None = None) -> None:
        self._scratch = scratch
        self._count = 0
        self._has_zero = False  # 0 marks an empty slot
        self._resize(_BITS_IN_MEMORY)

    def add(self, hashed: int) -> bool:
        """Add a hash; returns whether it is new. Raises OSError if the disk has no room for the set."""
        if hashed == 0:
            is_new, self._has_zero = not self._has_zero, True
            return is_new
        at = self._slot(hashed)
        if self._slots[at]:
            return False
        self._slots[at] = hashed
        self._count += 1
        if 2 * self._count > self._mask:
            old = self._slots
            self._resize(self._mask.bit_length() + 1)
            for other in filter(None, old):
                self._slots[self._slot(other)] = other
        return True

    def _slot(self, hashed: int) -> int:
        """Where the hash is or belongs. Its high bits choose, so that growing reads and writes slots in order."""
        at = hashed >> self._shift
        while self._slots[at] not in (0, hashed):
            at = (at + 1) & self._mask
        return at

    def _resize(self, bits: int) -> None:
        self._mask, self._shift = (1 << bits) - 1, 64 - bits
        size = _SLOT_BYTES << bits
        space = bytearray(size) if bits <= _BITS_IN_MEMORY else _mapped(size, self._scratch)
        self._slots = memoryview(space).cast("Q")


def _mapped(size: int, directory: Path | None) -> mmap.mmap:
    """A zeroed map of a file without a name; the map keeps the file alive."""
    with TemporaryFile(dir=directory) as file:
        # Reserve the room now: writing to a hole for which the disk has no room would kill the process.
        os.posix_fallocate(file.fileno(), 0, size)
        return mmap.mmap(file.fileno(), size)
