"""Tables put together from tables of their parts: of a pool that is read in pieces, or of one update after another."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from polyrank.model.evidence.features import ROW_FEATURES
from polyrank.model.evidence.statistics import Statistics
from polyrank.model.evidence.table import WordTable

# Makes an array of a name in `WordTable.arrays()`, a shape and a type; its content does not matter.
NewArray = Callable[[str, tuple[int, ...], DTypeLike], NDArray[Any]]


def in_memory(_name: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Make an array in memory; a NewArray."""
    return np.empty(shape, dtype)


class TableInParts:
    """A table that is made of tables of its parts. It equals, to the bit, the one of all texts at once.

    Entries are written to their places at once, so that the arrays may be mapped files larger than the memory.

    Args:
        keys: the hash of each distinct word of all rows that tells something, (V,), ascending.
        frequencies: how many of the rows have it, (V,).
        count: how many rows there will be.
        new_array: where the table will be.
    """

    def __init__(
        self,
        keys: NDArray[np.uint64],
        frequencies: NDArray[np.int64],
        count: int,
        new_array: NewArray = in_memory,
    ) -> None:
        entries = int(frequencies.sum())
        self._arrays = {
            "keys": new_array("keys", keys.shape, np.uint64),
            "starts": new_array("starts", (len(keys) + 1,), np.int64),
            "rows": new_array("rows", (entries,), np.int32),
            "weights": new_array("weights", (entries,), np.float32),
            "columns": new_array("columns", (len(ROW_FEATURES), count), np.float32),
            "texts": new_array("texts", (count,), np.uint64),
            "texts_rows": new_array("texts_rows", (count,), np.int32),
        }
        self._arrays["keys"][:] = keys
        self._arrays["starts"][0] = 0
        np.cumsum(frequencies, out=self._arrays["starts"][1:])
        self._free = self._arrays["starts"][:-1].copy()  # where the next entry of each word goes
        self._done = 0

    def add(self, part: WordTable) -> None:
        """Append the rows of a part, whose words are among `keys`."""
        arrays, first, end = self._arrays, self._done, self._done + len(part)
        words = np.searchsorted(arrays["keys"], part.keys)
        counts = np.diff(part.starts)
        places = np.arange(len(part.rows)) + np.repeat(self._free[words] - part.starts[:-1], counts)
        arrays["rows"][places] = part.rows + first
        arrays["weights"][places] = part.weights
        self._free[words] += counts
        arrays["columns"][:, first:end] = part.columns
        arrays["texts"][first + part.texts_rows] = part.texts  # in the order of the rows, until all are there
        self._done = end

    def finished(self, statistics: Statistics) -> WordTable:
        """Return the table; all parts were made with these statistics, and are there."""
        texts = self._arrays["texts"]
        self._arrays["texts_rows"][:] = np.argsort(texts, kind="stable")
        texts.sort()
        return WordTable.from_arrays(self._arrays, statistics)


def joined(tables: Sequence[WordTable]) -> WordTable:
    """Join tables that were made with the same statistics, one behind the other; at least one."""
    keys, words = np.unique(np.concatenate([table.keys for table in tables]), return_inverse=True)
    frequencies = np.zeros(len(keys), np.int64)
    np.add.at(frequencies, words, np.concatenate([np.diff(table.starts) for table in tables]))
    whole = TableInParts(keys, frequencies, sum(map(len, tables)))
    for table in tables:
        whole.add(table)
    return whole.finished(tables[0].statistics)
