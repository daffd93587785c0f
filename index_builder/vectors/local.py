"""The embeddings of a generation on disk: the matrix `embeddings.bin`, and `ids.index`, which finds a row by its id.

`embeddings.bin` holds the vectors in the store's dtype, little-endian, row after row: row i is candidate i.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import MatrixMissing
from polyrank.index_builder.vectors.codec import DTYPES
from polyrank.index_builder.vectors.ids import IdIndex, hash_id

MATRIX_FILE = "embeddings.bin"
IDS_FILE = "ids.index"


class LocalEmbeddings:
    """A memory-mapped embedding matrix with its ids; several threads may read it.

    The matrix may be missing if the files exist already; then only ids can be looked up.

    Args:
        directory: where the two files are.
        dim: D.
        dtype: "float16" or "float32".
        create: begin an empty matrix, to be filled by `put_many` and read after `commit`.

    Attributes:
        dim: D.
        dtype: of the vectors.

    Raises:
        ValueError: the files' sizes do not fit each other or the dimension.
    """

    def __init__(self, directory: Path, dim: int, dtype: str, *, create: bool = False) -> None:
        self._directory, self.dim, self.dtype = directory, dim, DTYPES[dtype]
        self._ids: IdIndex | None = None
        self._matrix: NDArray[Any] | None = np.empty((0, dim), self.dtype)
        self._file: BinaryIO | None = None
        if create:
            self._file = (directory / MATRIX_FILE).open("wb")
            self._hashes = TemporaryFile(dir=directory)  # noqa: SIM115  # has no name; closed with the matrix's
        else:
            self._map()

    def _map(self) -> None:
        self._ids = IdIndex(self._directory / IDS_FILE)
        path, shape = self._directory / MATRIX_FILE, (len(self._ids), self.dim)
        if not path.exists():
            self._matrix = None
            return
        if path.stat().st_size != shape[0] * shape[1] * self.dtype.itemsize:
            raise ValueError(f"{MATRIX_FILE} has {path.stat().st_size} bytes, which are not {shape[0]} x {shape[1]}")
        # Copy-on-write: nothing writes to it, but torch warns about arrays that are read-only.
        self._matrix = np.memmap(path, dtype=self.dtype, mode="c", shape=shape)

    @property
    def has_matrix(self) -> bool:
        """Whether the matrix is on this machine."""
        return self._matrix is not None

    def require_matrix(self) -> None:
        """Raise MatrixMissing if the matrix is not on this machine."""
        if self._matrix is None:
            raise MatrixMissing(self._directory.name)

    @property
    def matrix(self) -> NDArray[Any]:
        """The whole matrix (N, D), memory-mapped.

        Raises:
            MatrixMissing: it is not on this machine.
        """
        self.require_matrix()
        assert self._matrix is not None
        return self._matrix

    @property
    def ids(self) -> IdIndex:
        """The rows by id."""
        assert self._ids is not None, "embeddings are read after commit"
        return self._ids

    def gather(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """The vectors of rows, (N, D), copied; errors as `matrix`."""
        return np.take(self.matrix, rows, axis=0)

    def count(self) -> int:
        """The number of embeddings; 0 before commit."""
        return 0 if self._ids is None else len(self._ids)

    def put_many(self, ids: Sequence[str], vectors: NDArray[Any]) -> None:
        """Append rows (N, D), rounded to the store's dtype."""
        assert self._file is not None, "embeddings are put before commit"
        self._file.write(np.ascontiguousarray(vectors, self.dtype).data.cast("B"))
        self._hashes.write(np.fromiter(map(hash_id, ids), np.uint64, len(ids)).data)

    def sync(self) -> None:
        """Put the rows so far on the disk."""
        assert self._file is not None, "embeddings are put before commit"
        self._file.flush()
        os.fsync(self._file.fileno())

    def commit(self) -> None:
        """Write `ids.index`, then map both files for reading."""
        assert self._file is not None, "embeddings are committed once"
        try:
            self._file.flush()
            self._hashes.flush()
            IdIndex.write(self._directory / IDS_FILE, np.memmap(self._hashes, np.uint64, "r"))
        finally:
            self._close_files()
        self._map()

    def _close_files(self) -> None:
        if self._file is not None:
            self._file.close()
            self._hashes.close()
            self._file = None

    def close(self) -> None:
        """Drop the maps; arrays that were taken from them stay valid."""
        self._close_files()
        self._matrix, self._ids = np.empty((0, self.dim), self.dtype), None
