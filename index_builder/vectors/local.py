"""The embeddings of a generation on disk: blocks of rows, and `ids.index`, which finds a candidate by its id.

    <name>.bin       rows in the store's dtype, little-endian: those of candidate 0, then of candidate 1, and so on
    <name>.offsets   u64 (N + 1): where each candidate's rows begin, and the end; not there if all have equally many

The matrix, `embeddings.bin`, is a block in which each candidate has one row, its vector. The block of a second stage,
`late.bin`, has as many as its model makes.

`ids.index` holds the 64-bit hashes of the ids in ascending order, then the row of each. It is memory-mapped, and a
look-up is a binary search. Two of n ids share a hash with a probability of n^2 / 2^65 (3e-6 for ten million); the
second one would have been rejected as a duplicate when the pool was read. `texts.index` holds those of the texts, of
which several may be equal. Whoever finds a row there compares its text.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import BuildError, MatrixMissing
from polyrank.index_builder.names import DTYPE_NAMES
from polyrank.model.inputs import open_input
from polyrank.model.representations import LateRows, Representations, row_places
from polyrank.model.text.folding import hash64

MATRIX_FILE = "embeddings.bin"
LATE_FILE = "late.bin"  # of the second stage
IDS_FILE = "ids.index"
_OFFSETS_SUFFIX = ".offsets"

DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(name).newbyteorder("<") for name in DTYPE_NAMES}
_OFFSET = np.dtype("<u8")

BYTES_PER_ROW = 16
# At most about so many rows are sorted at a time, and half as many at least: hashes are spread evenly. Each takes some
# 50 bytes of memory.
_RANGE_ROWS = 1 << 16
_BLOCK_ROWS = 1 << 16


def rounded(vectors: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Round vectors to a store's dtype. Raises BuildError if a value is not finite, before or after rounding."""
    with np.errstate(over="ignore", invalid="ignore"):
        stored = vectors.astype(DTYPES[dtype], copy=False)
    if not np.isfinite(stored).all():
        raise BuildError(f"the model gave vectors that are not finite in {dtype}; check its weights")
    return stored


def rounded_all(representations: Representations, dtype: str) -> Representations:
    """Round everything of candidates; errors as `rounded`."""
    late = None if representations.late is None else rounded(representations.late, dtype)
    return Representations(rounded(representations.first, dtype), late, representations.counts)


def late_files(late: LateRows | None) -> set[str]:
    """Name the files of the second stage; none for a model without a second stage."""
    if late is None:
        return set()
    return {LATE_FILE} if late.count is not None else {LATE_FILE, str(Path(LATE_FILE).with_suffix(_OFFSETS_SUFFIX))}


class EmbeddingsWriter:
    """Writes the files, candidate after candidate; `late` is what the model keeps for a second stage."""

    def __init__(self, directory: Path, dim: int, dtype: str, late: LateRows | None = None) -> None:
        self._directory = directory
        self._blocks = [BlockWriter(path, rows, dtype) for path, rows in _blocks(directory / MATRIX_FILE, dim, late)]
        self._hashes = TemporaryFile(dir=directory)  # noqa: SIM115  # has no name; closed with the blocks

    def put_many(self, ids: Sequence[str], representations: Representations) -> None:
        """Append what was made of candidates, rounded to the dtype."""
        for block, (rows, counts) in zip(self._blocks, representations.blocks(), strict=True):
            block.put_many(rows, counts)
        self._hashes.write(np.fromiter(map(hash_id, ids), np.uint64, len(ids)).data)

    def sync(self) -> None:
        for block in self._blocks:
            block.sync()

    def commit(self) -> None:
        """Write `ids.index`; then the embeddings can be opened."""
        for block in self._blocks:
            block.flush()
        self._hashes.flush()
        IdIndex.write(self._directory / IDS_FILE, np.memmap(self._hashes, np.uint64, "r"))

    def close(self) -> None:
        for block in self._blocks:
            block.close()
        self._hashes.close()


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


def _blocks(matrix: Path, dim: int, late: LateRows | None) -> list[tuple[Path, LateRows]]:
    """Return the matrix, in which each candidate has one row, and the block of a second stage beside it."""
    of_matrix = (matrix, LateRows(dim, 1))
    return [of_matrix] if late is None else [of_matrix, (matrix.with_name(LATE_FILE), late)]


def written(
    directory: Path, rows: NDArray[np.int64], count: int, dim: int, dtype: str, late: LateRows | None
) -> Representations:
    """Return what a writer has put on the disk for rows (N,), at least one, of the `count` that are there so far."""
    blocks = [RowBlock(path, of, dtype, count) for path, of in _blocks(directory / MATRIX_FILE, dim, late)]
    return Representations.of_blocks([block.gather(rows) for block in blocks])


class LeftBlocks:
    """What a killed build has left beside, and in, its matrix, read from the beginning."""

    def __init__(self, matrix: Path, dim: int, late: LateRows | None, dtype: str) -> None:
        blocks = _blocks(matrix, dim, late)
        with ExitStack() as files:
            self._blocks = [files.enter_context(closing(BlockReader(path, rows, dtype))) for path, rows in blocks]
            self.close = files.pop_all().close

    def read(self, candidates: int) -> Representations | None:
        """What was made of the next candidates; None where the files do not hold it."""
        parts = [block.read(candidates) for block in self._blocks]
        blocks = [each for each in parts if each is not None]
        return Representations.of_blocks(blocks) if len(blocks) == len(parts) else None


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


class LocalEmbeddings:
    """The memory-mapped embeddings of a directory; several threads may read them.

    The matrix may be missing: then only ids can be looked up, and an error names the `generation`.

    Raises:
        ValueError: the files' sizes do not fit each other or the dimension.
    """

    def __init__(
        self, directory: Path, dim: int, dtype: str, late: LateRows | None = None, generation: str = ""
    ) -> None:
        self.dim, self.dtype = dim, DTYPES[dtype]
        self.ids = IdIndex(directory / IDS_FILE)
        blocks = _blocks(directory / MATRIX_FILE, dim, late)
        self._vectors, *others = (RowBlock(path, of, dtype, len(self.ids), generation) for path, of in blocks)
        self.late = others[0] if others else None  # the block of the second stage; None: the model has none

    @property
    def has_matrix(self) -> bool:
        return self._vectors.has_rows

    @property
    def matrix(self) -> NDArray[Any]:
        """The whole matrix (N, D), memory-mapped; MatrixMissing if it is not on this machine."""
        return self._vectors.rows

    @property
    def is_whole(self) -> bool:
        """Whether the matrix, and with a second stage its rows, are on this machine."""
        return self.has_matrix and (self.late is None or self.late.has_rows)

    def gather(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """The vectors of rows, (N, D), copied; errors as `matrix`."""
        return np.take(self.matrix, rows, axis=0)

    def representations(self, rows: NDArray[np.int64]) -> Representations:
        """The vectors of rows with what is kept for the second stage, copied; errors as `matrix`."""
        late, counts = (None, None) if self.late is None else self.late.gather(rows)
        return Representations(self.gather(rows), late, counts)

    def count(self) -> int:
        return len(self.ids)

    def close(self) -> None:
        self._vectors.close()
        if self.late is not None:
            self.late.close()


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


def text_id(text: str) -> str:
    """Make the id of a candidate that came without one."""
    return sha256(text.encode()).hexdigest()[:32]


def hash_id(candidate_id: str) -> int:
    """Hash an id, or a text, to 64 bits."""
    return hash64(candidate_id.encode())


class IdIndex:
    """A memory-mapped `ids.index` or `texts.index`. Raises ValueError if the file's size is not that of an index."""

    def __init__(self, path: Path) -> None:
        count, rest = divmod(path.stat().st_size, BYTES_PER_ROW)
        if rest or not count:
            raise ValueError(f"{path.name} has {path.stat().st_size} bytes, which is no whole number of entries")
        table = np.memmap(path, dtype="<u8", mode="r", shape=(2, count))
        self._hashes: NDArray[np.uint64] = np.asarray(table[0])
        self._rows: NDArray[np.int64] = np.asarray(table[1]).view("<i8")

    def __len__(self) -> int:
        return len(self._rows)

    @staticmethod
    def write(path: Path, hashes: NDArray[np.uint64], *, unique: bool = True) -> None:
        """Write the index of the ids with these hashes, (N,), in the order of the rows.

        The hashes, usually memory-mapped, are distributed to ranges in the file and sorted there, a range at a time.
        Raises ValueError if two ids share a hash, and they are to be `unique`.
        """
        with path.open("w+b") as file:
            # Without this, writing to a hole in the file would kill the process if the disk is full.
            os.posix_fallocate(file.fileno(), 0, BYTES_PER_ROW * len(hashes))
            table = np.memmap(file, "<u8", "r+", shape=(2, len(hashes)))
            start = 0
            for end in _distribute(hashes, table):
                order = np.argsort(table[0, start:end], kind="stable")
                table[:, start:end] = table[:, start:end][:, order]
                ascending = table[0, start:end]
                if unique and (ascending[1:] == ascending[:-1]).any():
                    raise ValueError("two candidates have the same id")
                start = end

    def rows_between(self, first: int, last: int) -> NDArray[np.int64]:
        """The rows of the ids whose hashes are within `first`..`last`; ascending."""
        start = int(np.searchsorted(self._hashes, np.uint64(first)))
        end = int(np.searchsorted(self._hashes, np.uint64(last), side="right"))
        return np.sort(self._rows[start:end])

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Look up the rows of ids, (N,), the first ones of equal texts; -1 for an id that is not there."""
        hashes = np.fromiter((hash_id(candidate_id) for candidate_id in ids), np.uint64, len(ids))
        places = np.minimum(np.searchsorted(self._hashes, hashes), len(self) - 1)
        return np.where(self._hashes[places] == hashes, self._rows[places], np.int64(-1))


def _distribute(hashes: NDArray[np.uint64], table: NDArray[np.uint64]) -> list[int]:
    """Write hashes and rows into the table, (2, N), range after range in ascending order; returns the ranges' ends."""
    bits = (len(hashes) // _RANGE_ROWS).bit_length()
    counts = _counts(hashes, bits)
    ends = counts.cumsum()
    free = ends - counts
    for start in range(0, len(hashes), _BLOCK_ROWS):
        block = hashes[start : start + _BLOCK_ROWS]
        ranges = _range_of(block, bits)
        order = np.argsort(ranges, kind="stable")
        counts = np.bincount(ranges, minlength=len(ends))
        # The n-th row of a range within the block goes to the n-th place that is free there.
        first = np.repeat(free - (counts.cumsum() - counts), counts)
        places = first + np.arange(len(block))
        table[0, places], table[1, places] = block[order], start + order
        free += counts
    return cast(list[int], ends.tolist())


def _counts(hashes: NDArray[np.uint64], bits: int) -> NDArray[np.int64]:
    counts = np.zeros(1 << bits, np.int64)
    for start in range(0, len(hashes), _BLOCK_ROWS):
        counts += np.bincount(_range_of(hashes[start : start + _BLOCK_ROWS], bits), minlength=1 << bits)
    return counts


def _range_of(hashes: NDArray[np.uint64], bits: int) -> NDArray[np.int64]:
    """The range of each hash: its first bits. With 0 bits there is one range, as a shift by 64 is not defined."""
    return (hashes >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(hashes), np.int64)
