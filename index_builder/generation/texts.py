"""Find the first row of a generation that has a text: `texts.index` beside the candidate table.

A network gives one text slightly other vectors in other batches, by some 1e-7 of their size, and rounding to 16 bits
can make a digit of that. So a text that is stored is not encoded again: equal texts share what was made of the first.
Texts are equal here if all their characters are.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.generation.candidates import CandidateTable
from polyrank.index_builder.vectors.local import IdIndex, hash_id
from polyrank.model.representations import Representations

TEXTS_FILE = "texts.index"


class KnownTexts(NamedTuple):
    """Which of some texts are stored, as positions (n,), ascending, and what was made of these."""

    positions: NDArray[np.int64]
    made: Representations


FindTexts = Callable[[Sequence[str]], KnownTexts]


class TextIndex:
    """The rows of a candidate table by their texts; several threads may read it.

    Raises ValueError if the file's size is not that of an index.
    """

    def __init__(self, directory: Path, table: CandidateTable) -> None:
        self._rows, self._table = IdIndex(directory / TEXTS_FILE), table

    def __len__(self) -> int:
        return len(self._rows)

    @staticmethod
    def write(directory: Path, table: CandidateTable) -> None:
        with TemporaryFile(dir=directory) as hashes:
            for _, texts in table.batches():
                hashes.write(np.fromiter(map(hash_id, texts), np.uint64, len(texts)).data)
            hashes.flush()
            IdIndex.write(directory / TEXTS_FILE, np.memmap(hashes, np.uint64, "r"), unique=False)

    def first_rows(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return the first row of each text, (N,); -1 for a text that is not there."""
        rows = self._rows.rows(texts)
        found = np.flatnonzero(rows >= 0)
        stored = zip(found.tolist(), self._table.texts(rows[found]), strict=True)
        rows[[at for at, text in stored if text != texts[at]]] = -1  # another text of the same hash
        return rows
