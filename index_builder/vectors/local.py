"""The embeddings of a generation on disk: the matrix `embeddings.bin`, and `ids.index`, which finds a row by its id.

`embeddings.bin` holds the vectors in the store's dtype, little-endian, row after row: row i is candidate i.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import MatrixMissing
from polyrank.index_builder.vectors.codec import DTYPES
from polyrank.index_builder.vectors.ids import IdIndex, hash_id

MATRIX_FILE = "embeddings.bin"
IDS_FILE = "ids.index"


class EmbeddingsWriter:
    """Writes the two files, row after row."""

    def __init__(self, directory: Path, dtype: str) -> None:
        self._directory, self._dtype = directory, DTYPES[dtype]
        self._file = (directory / MATRIX_FILE).open("wb")
        self._hashes = TemporaryFile(dir=directory)  # noqa: SIM115  # has no name; closed with the matrix's

    def put_many(self, ids: Sequence[str], vectors: NDArray[Any]) -> None:
        """Append rows (N, D), rounded to the dtype."""
        self._file.write(np.ascontiguousarray(vectors, self._dtype).data.cast("B"))
        self._hashes.write(np.fromiter(map(hash_id, ids), np.uint64, len(ids)).data)

    def sync(self) -> None:
        """Put the rows so far on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def commit(self) -> None:
        """Write `ids.index`; then the embeddings can be opened."""
        self._file.flush()
        self._hashes.flush()
        IdIndex.write(self._directory / IDS_FILE, np.memmap(self._hashes, np.uint64, "r"))

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        self._hashes.close()


class LocalEmbeddings:
    """The memory-mapped embeddings of a directory; several threads may read them.

    The matrix may be missing: then only ids can be looked up.

    Raises:
        ValueError: the files' sizes do not fit each other or the dimension.
    """

    def __init__(self, directory: Path, dim: int, dtype: str) -> None:
        self._generation, self.dim, self.dtype = directory.name, dim, DTYPES[dtype]
        self.ids = IdIndex(directory / IDS_FILE)
        self._matrix = self._mapped(directory / MATRIX_FILE)

    def _mapped(self, path: Path) -> NDArray[Any] | None:
        shape = len(self.ids), self.dim
        if not path.exists():
            return None
        if path.stat().st_size != shape[0] * shape[1] * self.dtype.itemsize:
            raise ValueError(f"{MATRIX_FILE} has {path.stat().st_size} bytes, which are not {shape[0]} x {shape[1]}")
        # Copy-on-write: nothing writes to it, but torch warns about arrays that are read-only.
        return np.memmap(path, dtype=self.dtype, mode="c", shape=shape)

    @property
    def has_matrix(self) -> bool:
        """Whether the matrix is on this machine."""
        return self._matrix is not None

    @property
    def matrix(self) -> NDArray[Any]:
        """The whole matrix (N, D), memory-mapped; MatrixMissing if it is not on this machine."""
        if self._matrix is None:
            raise MatrixMissing(self._generation)
        return self._matrix

    def require_matrix(self) -> None:
        """Raise MatrixMissing if the matrix is not on this machine."""
        _ = self.matrix

    def gather(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """The vectors of rows, (N, D), copied; errors as `matrix`."""
        return np.take(self.matrix, rows, axis=0)

    def count(self) -> int:
        """The number of embeddings."""
        return len(self.ids)

    def close(self) -> None:
        """Drop the map of the matrix; arrays that were taken from it stay valid."""
        self._matrix = np.empty((0, self.dim), self.dtype)
