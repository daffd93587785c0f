"""Find a candidate's row by its id, or by its text, without holding ids and texts in memory.

`ids.index` holds the 64-bit hashes of the ids in ascending order, then the row of each. It is memory-mapped, and a
look-up is a binary search. Two of n ids share a hash with a probability of n^2 / 2^65 (3e-6 for ten million); the
second one would have been rejected as a duplicate when the pool was read. `texts.index` holds those of the texts, of
which several may be equal. Whoever finds a row there compares its text.
"""

import os
from collections.abc import Sequence
from hashlib import blake2b, sha256
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

BYTES_PER_ROW = 16
# At most about so many rows are sorted at a time, and half as many at least: hashes are spread evenly. Each takes some
# 50 bytes of memory.
_RANGE_ROWS = 1 << 16
_BLOCK_ROWS = 1 << 16


def text_id(text: str) -> str:
    """Make the id of a candidate that came without one."""
    return sha256(text.encode()).hexdigest()[:32]


def hash_id(candidate_id: str) -> int:
    """Hash an id, or a text, to 64 bits."""
    return int.from_bytes(blake2b(candidate_id.encode(), digest_size=8).digest(), "little")


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

        Raises:
            ValueError: two ids share a hash, and they are to be `unique`.
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
        wanted = np.fromiter((hash_id(candidate_id) for candidate_id in ids), np.uint64, len(ids))
        places = np.minimum(np.searchsorted(self._hashes, wanted), len(self) - 1)
        return np.where(self._hashes[places] == wanted, self._rows[places], np.int64(-1))


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
