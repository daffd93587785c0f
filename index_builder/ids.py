"""From a candidate's id to its row, without holding the ids in memory.

The file `ids.index` holds the ids' 64-bit hashes in ascending order, then the row of each; it is memory-mapped, and a
look-up is a binary search. That two of n ids share a hash has a chance of n^2 / 2^65 (3e-6 for ten million): such a
pair would have been turned away as a duplicate when the pool was read.
"""

from collections.abc import Sequence
from hashlib import blake2b, sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

BYTES_PER_ROW = 16


def text_id(text: str) -> str:
    """The id of a candidate that came without one."""
    return sha256(text.encode()).hexdigest()[:32]


def hash_id(candidate_id: str) -> int:
    """The id's 64-bit hash."""
    return int.from_bytes(blake2b(candidate_id.encode(), digest_size=8).digest(), "little")


class IdIndex:
    """A memory-mapped `ids.index`.

    Raises:
        ValueError: the file's size is not that of an index.
    """

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
    def write(path: Path, hashes: NDArray[np.uint64]) -> None:
        """Write the index of the ids with these hashes, row i having hashes[i].

        Raises:
            ValueError: two ids share a hash.
        """
        order = np.argsort(hashes, kind="stable")
        ascending = hashes[order]
        if (ascending[1:] == ascending[:-1]).any():
            raise ValueError("two candidates have the same id")
        with path.open("wb") as file:
            file.write(ascending.astype("<u8").data)
            file.write(order.astype("<i8").data)

    def rows(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The rows of the ids, (N,); -1 for an id that is not there."""
        wanted = np.fromiter((hash_id(each) for each in ids), np.uint64, len(ids))
        places = np.minimum(np.searchsorted(self._hashes, wanted), len(self) - 1)
        return np.where(self._hashes[places] == wanted, self._rows[places], np.int64(-1))
