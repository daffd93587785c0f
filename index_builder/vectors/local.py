"""The embeddings of a generation on disk: the matrix `embeddings.bin`, and `ids.index`, which finds a row by its id.

`embeddings.bin` holds the vectors in the store's dtype, little-endian, row after row: row i is candidate i. What a
model keeps for a second stage lies in a block of its own (late.py).

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

from polyrank.index_builder.vectors.blocks import LATE_FILE, BlockReader, BlockWriter, RowBlock
from polyrank.index_builder.vectors.encoder import DTYPES
from polyrank.model.representations import LateRows, Representations
from polyrank.model.text.folding import hash64

MATRIX_FILE = "embeddings.bin"
IDS_FILE = "ids.index"

BYTES_PER_ROW = 16
# At most about so many rows are sorted at a time, and half as many at least: hashes are spread evenly. Each takes some
# 50 bytes of memory.
_RANGE_ROWS = 1 << 16
_BLOCK_ROWS = 1 << 16


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
