"""What a model keeps of each candidate, in blocks of rows on disk.

The matrix is a block in which each candidate has one row, its vector. The block of a second stage has as many as its
model makes.

<name>.bin       rows in the store's dtype, little-endian: those of candidate 0, then those of candidate 1, and so on
<name>.offsets   u64 (N + 1): where the rows of each candidate begin, and the end; not there if all have equally many
"""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import MatrixMissing
from polyrank.index_builder.vectors.encoder import DTYPES
from polyrank.model.inputs import open_input
from polyrank.model.representations import LateRows, Representations, row_places

LATE_FILE = "late.bin"  # of the second stage
_OFFSETS_SUFFIX = ".offsets"
_OFFSET = np.dtype("<u8")


def late_files(late: LateRows | None) -> set[str]:
    """Name the files of the block; none for a model without a second stage."""
    if late is None:
        return set()
    return {LATE_FILE} if late.count is not None else {LATE_FILE, str(Path(LATE_FILE).with_suffix(_OFFSETS_SUFFIX))}


def each_of(rows: NDArray[Any], counts: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Return the rows of each candidate: `counts` of them (N,), one candidate after the other in `rows` (R, D2)."""
    return np.split(rows, np.cumsum(counts)[:-1]) if len(counts) else []


def fits(representations: Representations, late: LateRows | None) -> bool:
    """Whether candidates have the rows that their model says it makes."""
    if representations.late is None or representations.counts is None or late is None:
        return representations.late is None and late is None
    return (
        representations.counts.shape == (len(representations.first),)
        and bool((representations.counts >= 0).all())
        and representations.late.shape == (representations.counts.sum(), late.dim)
        and (late.count is None or bool((representations.counts == late.count).all()))
    )


class BlockWriter:
    """Writes a block, candidate after candidate."""

    def __init__(self, path: Path, rows: LateRows, dtype: str) -> None:
        self._dtype, self._end = DTYPES[dtype], 0
        self._files = [path.open("wb")]
        if rows.count is None:
            self._files.append(path.with_suffix(_OFFSETS_SUFFIX).open("wb"))
            self._files[1].write(np.zeros(1, _OFFSET).data)

    def put_many(self, rows: NDArray[Any], counts: NDArray[np.int64]) -> None:
        """Append the rows (R, D) of candidates that have so many each, (N,)."""
        self._files[0].write(np.ascontiguousarray(rows, self._dtype).reshape(-1).data)
        for offsets in self._files[1:]:
            offsets.write((self._end + np.cumsum(counts)).astype(_OFFSET).data)
        self._end += int(counts.sum())

    def flush(self) -> None:
        for file in self._files:
            file.flush()

    def sync(self) -> None:
        self.flush()
        for file in self._files:
            os.fsync(file.fileno())

    def close(self) -> None:
        for file in self._files:
            file.close()


class BlockReader:
    """Reads a block that a killed build has left, from its beginning."""

    def __init__(self, path: Path, rows: LateRows, dtype: str) -> None:
        self._of, self._dtype, self._end = rows, DTYPES[dtype], 0
        self._offsets = None
        with ExitStack() as files:
            self._rows = files.enter_context(open_input(path))
            self._left = os.fstat(self._rows.fileno()).st_size
            if rows.count is None:
                self._offsets = files.enter_context(open_input(path.with_suffix(_OFFSETS_SUFFIX)))
                self._offsets.seek(_OFFSET.itemsize)
            self.close = files.pop_all().close

    def read(self, candidates: int) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
        """Read the rows of the next candidates and how many each has; None where the files do not hold them."""
        counts = self._counts(candidates)
        size = -1 if counts is None else int(counts.sum()) * self._of.dim * self._dtype.itemsize
        if counts is None or not 0 <= size <= self._left:
            return None
        self._left -= size
        return np.frombuffer(self._rows.read(size), self._dtype).reshape(-1, self._of.dim), counts

    def _counts(self, candidates: int) -> NDArray[np.int64] | None:
        if self._offsets is None:
            return np.full(candidates, self._of.count, np.int64)
        content = self._offsets.read(candidates * _OFFSET.itemsize)
        if len(content) < candidates * _OFFSET.itemsize:
            return None
        ends = np.frombuffer(content, _OFFSET).astype(np.int64)
        counts = np.diff(ends, prepend=self._end)
        self._end = int(ends[-1])
        return counts if (counts >= 0).all() else None


class RowBlock:
    """A memory-mapped block of `candidates`; several threads may read it. The rows themselves may be missing.

    Attributes:
        of: how many rows a candidate has, and of which size.

    Raises:
        ValueError: the files' sizes do not fit each other or the number of candidates, or the offsets do not ascend.
    """

    def __init__(self, path: Path, rows: LateRows, dtype: str, candidates: int, generation: str = "") -> None:
        self.of, self._dtype, self._generation = rows, DTYPES[dtype], generation
        offsets = path.with_suffix(_OFFSETS_SUFFIX)
        self._offsets = _mapped_offsets(offsets, candidates) if rows.count is None else None
        last_start, last_count = self._runs(np.array([candidates - 1]))
        total, size = int(last_start[0] + last_count[0]), path.stat().st_size if path.exists() else None
        self._rows: NDArray[Any] | None = None
        if size not in (None, total * rows.dim * self._dtype.itemsize):
            raise ValueError(f"{path.name} has {size} bytes, which are not {total} x {rows.dim}")
        if size:  # Copy-on-write: nothing writes to it, but torch warns about arrays that are read-only.
            self._rows = np.memmap(path, dtype=self._dtype, mode="c", shape=(total, rows.dim))
        elif size == 0:  # nothing can be mapped
            self._rows = np.empty((0, rows.dim), self._dtype)

    @property
    def has_rows(self) -> bool:
        return self._rows is not None

    @property
    def rows(self) -> NDArray[Any]:
        """All rows, memory-mapped; MatrixMissing if they are not on this machine, which names the `generation`."""
        if self._rows is None:
            raise MatrixMissing(self._generation)
        return self._rows

    def gather(self, candidates: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the rows of candidates (N,), copied, (R, D), and how many each has, (N,); errors as `rows`."""
        starts, counts = self._runs(candidates)
        return np.take(self.rows, row_places(starts, counts), axis=0), counts

    def _runs(self, candidates: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._offsets is None:
            k = self.of.count or 0
            return candidates * k, np.full(len(candidates), k, np.int64)
        starts = self._offsets[candidates]
        return starts, self._offsets[candidates + 1] - starts

    def close(self) -> None:
        """Drop the map; arrays that were taken from it stay valid."""
        self._rows = np.empty((0, self.of.dim), self._dtype)


def _mapped_offsets(path: Path, candidates: int) -> NDArray[np.int64]:
    size = path.stat().st_size if path.exists() else 0
    if size != (candidates + 1) * _OFFSET.itemsize:
        raise ValueError(f"{path.name} has {size} bytes, which are not {candidates + 1} offsets")
    offsets = np.asarray(np.memmap(path, dtype=_OFFSET, mode="r")).view("<i8")
    if offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise ValueError(f"the offsets in {path.name} do not ascend from 0")
    return offsets
