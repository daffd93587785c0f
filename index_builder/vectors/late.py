"""The second block of a generation: what its model keeps of each candidate for a second stage.

late.bin       rows in the store's dtype, little-endian: those of candidate 0, then those of candidate 1, and so on
late.offsets   u64 (N + 1): where the rows of each candidate begin, and the end; not there if all have equally many
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import MatrixMissing
from polyrank.index_builder.vectors.encoder import DTYPES
from polyrank.model.inputs import open_input
from polyrank.model.representations import LateRows, Representations, row_places

LATE_FILE = "late.bin"
OFFSETS_FILE = "late.offsets"

_OFFSET = np.dtype("<u8")


def late_files(late: LateRows | None) -> set[str]:
    """Name the files of the block; none for a model without a second stage."""
    if late is None:
        return set()
    return {LATE_FILE} if late.count is not None else {LATE_FILE, OFFSETS_FILE}


def each_of(rows: NDArray[Any], counts: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Return the rows of each candidate: `counts` of them (N,), one candidate after the other in `rows` (R, D2)."""
    return np.split(rows, np.cumsum(counts)[:-1]) if len(counts) else []


def fits(made: Representations, late: LateRows | None) -> bool:
    """Whether candidates have the rows that their model says it makes."""
    if made.late is None or made.counts is None or late is None:
        return made.late is None and late is None
    return (
        made.counts.shape == (len(made.first),)
        and bool((made.counts >= 0).all())
        and made.late.shape == (made.counts.sum(), late.dim)
        and (late.count is None or bool((made.counts == late.count).all()))
    )


class LateWriter:
    """Writes the block, candidate after candidate."""

    def __init__(self, directory: Path, late: LateRows, dtype: str) -> None:
        self._dtype, self._end = DTYPES[dtype], 0
        self._rows = (directory / LATE_FILE).open("wb")
        self._offsets = None if late.count is not None else (directory / OFFSETS_FILE).open("wb")
        if self._offsets is not None:
            self._offsets.write(np.zeros(1, _OFFSET).data)

    def put_many(self, rows: NDArray[Any], counts: NDArray[np.int64]) -> None:
        """Append the rows (R, D2) of candidates that have so many each, (N,)."""
        self._rows.write(np.ascontiguousarray(rows, self._dtype).reshape(-1).data)
        if self._offsets is not None:
            self._offsets.write((self._end + np.cumsum(counts)).astype(_OFFSET).data)
        self._end += int(counts.sum())

    def sync(self) -> None:
        """Put what was written so far on the disk."""
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    @property
    def _files(self) -> Sequence[IO[bytes]]:
        return [self._rows] if self._offsets is None else [self._rows, self._offsets]


class LateReader:
    """Reads a block that a killed build has left, from its beginning."""

    def __init__(self, directory: Path, late: LateRows, dtype: str) -> None:
        self._late, self._dtype, self._end = late, DTYPES[dtype], 0
        self._rows = open_input(directory / LATE_FILE)
        self._left = os.fstat(self._rows.fileno()).st_size
        self._offsets = None if late.count is not None else open_input(directory / OFFSETS_FILE)
        if self._offsets is not None:
            self._offsets.seek(_OFFSET.itemsize)

    def read(self, candidates: int) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
        """Read the rows of the next candidates and how many each has; None where the files do not hold them."""
        counts = self._counts(candidates)
        size = -1 if counts is None else int(counts.sum()) * self._late.dim * self._dtype.itemsize
        if counts is None or not 0 <= size <= self._left:
            return None
        self._left -= size
        return np.frombuffer(self._rows.read(size), self._dtype).reshape(-1, self._late.dim), counts

    def _counts(self, candidates: int) -> NDArray[np.int64] | None:
        if self._offsets is None:
            return np.full(candidates, self._late.count, np.int64)
        content = self._offsets.read(candidates * _OFFSET.itemsize)
        if len(content) < candidates * _OFFSET.itemsize:
            return None
        ends = np.frombuffer(content, _OFFSET).astype(np.int64)
        counts = np.diff(ends, prepend=self._end)
        self._end = int(ends[-1])
        return counts if (counts >= 0).all() else None

    def close(self) -> None:
        """Close the files."""
        self._rows.close()
        if self._offsets is not None:
            self._offsets.close()


class LocalLateRows:
    """The memory-mapped block of a directory; several threads may read it. The rows themselves may be missing.

    Raises:
        ValueError: the files' sizes do not fit each other or the `count` of candidates, or the offsets do not ascend.
    """

    def __init__(self, directory: Path, late: LateRows, dtype: str, count: int) -> None:
        self.late, self._generation, self._dtype = late, directory.name, DTYPES[dtype]
        self._offsets = _mapped_offsets(directory / OFFSETS_FILE, count) if late.count is None else None
        last_start, last_count = self._runs(np.array([count - 1]))
        self._rows = self._mapped(directory / LATE_FILE, int(last_start[0] + last_count[0]))

    def _mapped(self, path: Path, total: int) -> NDArray[Any] | None:
        if not path.exists():
            return None
        if path.stat().st_size != total * self.late.dim * self._dtype.itemsize:
            raise ValueError(f"{LATE_FILE} has {path.stat().st_size} bytes, which are not {total} x {self.late.dim}")
        if not total:  # nothing can be mapped
            return np.empty((0, self.late.dim), self._dtype)
        # Copy-on-write, as the matrix is: torch warns about arrays that are read-only.
        return np.memmap(path, dtype=self._dtype, mode="c", shape=(total, self.late.dim))

    @property
    def has_rows(self) -> bool:
        """Whether the rows are on this machine."""
        return self._rows is not None

    def counts(self, candidates: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many rows candidates (N,) have, (N,)."""
        return self._runs(candidates)[1]

    def gather(self, candidates: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return the rows of candidates (N,), copied, (R, D2), and how many each has, (N,).

        Raises MatrixMissing if the rows are not on this machine.
        """
        if self._rows is None:
            raise MatrixMissing(self._generation)
        starts, counts = self._runs(candidates)
        return np.take(self._rows, row_places(starts, counts), axis=0), counts

    def _runs(self, candidates: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._offsets is None:
            k = self.late.count or 0
            return candidates * k, np.full(len(candidates), k, np.int64)
        starts = self._offsets[candidates]
        return starts, self._offsets[candidates + 1] - starts

    def close(self) -> None:
        """Drop the map; arrays that were taken from it stay valid."""
        self._rows = np.empty((0, self.late.dim), self._dtype)


def _mapped_offsets(path: Path, count: int) -> NDArray[np.int64]:
    size = path.stat().st_size if path.exists() else 0
    if size != (count + 1) * _OFFSET.itemsize:
        raise ValueError(f"{OFFSETS_FILE} has {size} bytes, which are not {count + 1} offsets")
    offsets = np.asarray(np.memmap(path, dtype=_OFFSET, mode="r")).view("<i8")
    if offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise ValueError(f"the offsets in {OFFSETS_FILE} do not ascend from 0")
    return offsets
