"""FAISS: build, save, load and search an index of inner products. The only module that imports faiss."""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from index_builder.index_choice import IndexSpec

_BLOCK_ROWS = 65_536
_RECALL_DEPTH = 10
_RECALL_PROBES = 64


class CandidateIndex:
    """An index over the rows of an embedding matrix, by inner product."""

    def __init__(self, index: Any, spec: IndexSpec) -> None:
        self._index, self._spec = index, spec

    @property
    def count(self) -> int:
        """How many rows it holds."""
        return int(self._index.ntotal)

    @property
    def dim(self) -> int:
        """D."""
        return int(self._index.d)

    @property
    def is_exact(self) -> bool:
        """Whether it misses nothing."""
        return self._spec.kind == "flat"

    @classmethod
    def build(cls, spec: IndexSpec, matrix: NDArray[Any]) -> "CandidateIndex":
        """Index the rows of a matrix (N, D), read in blocks.

        Args:
            spec: an index with a FAISS factory.
            matrix: float16 or float32, usually memory-mapped.
        """
        index: Any = faiss.index_factory(matrix.shape[1], str(spec.factory), faiss.METRIC_INNER_PRODUCT)
        if "efConstruction" in spec.params:
            index.hnsw.efConstruction = spec.params["efConstruction"]
        for start in range(0, len(matrix), _BLOCK_ROWS):
            index.add(np.ascontiguousarray(matrix[start : start + _BLOCK_ROWS], np.float32))
        return cls(index, spec)

    def save(self, path: Path) -> None:
        """Write the index; the file has no checksum of its own."""
        # FAISS's own file writer ignores a failing close: a full disk would leave a short file and no error.
        with path.open("wb") as file:
            faiss.write_index(self._index, faiss.PyCallbackIOWriter(file.write))  # type: ignore[attr-defined]  # not in its stubs

    @classmethod
    def load(cls, path: Path, spec: IndexSpec) -> "CandidateIndex":
        """Read a saved index.

        Raises:
            ValueError: FAISS cannot read the file.
        """
        try:
            return cls(faiss.read_index(str(path)), spec)
        except RuntimeError as error:
            raise ValueError(f"{path.name} is no FAISS index") from error

    def search(
        self,
        codes: NDArray[np.float32],
        depth: int,
        exclude: NDArray[np.int64] | None = None,
        only: NDArray[np.bool_] | None = None,
        threads: int | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Find the rows nearest to each code vector, all codes in one call.

        Args:
            codes: (M, D).
            depth: rows a code, at least 1.
            exclude: rows not to return.
            only: which rows may be returned, (N,); not together with `exclude`.
            threads: of FAISS in the calling thread; None leaves it as it is.

        Returns:
            rows (M, depth), best first, -1 where fewer were found, and their inner products (M, depth).
        """
        if threads is not None:
            faiss.omp_set_num_threads(threads)
        options: dict[str, Any] = {}
        if exclude is not None and len(exclude):
            options["sel"] = faiss.IDSelectorNot(faiss.IDSelectorBatch(np.ascontiguousarray(exclude, np.int64)))
        if only is not None:
            bits = np.packbits(only, bitorder="little")
            options["sel"] = faiss.IDSelectorBitmap(bits)  # type: ignore[call-arg, arg-type]  # its wrapper takes an array
        parameters = faiss.SearchParameters(**options)
        if "efSearch" in self._spec.params:
            options["efSearch"] = max(self._spec.params["efSearch"], depth)
            parameters = faiss.SearchParametersHNSW(**options)  # type: ignore[attr-defined]  # not in its stubs
        products, rows = self._index.search(np.ascontiguousarray(codes, np.float32), depth, params=parameters)
        return rows, products


def union(rows: NDArray[np.int64], products: NDArray[np.float32], limit: int) -> NDArray[np.int64]:
    """Of the rows found for all codes, the `limit` with the largest best inner product, best first; ties by row."""
    found = rows.ravel() >= 0
    distinct, inverse = np.unique(rows.ravel()[found], return_inverse=True)
    best = np.full(len(distinct), -np.inf, np.float32)
    np.maximum.at(best, inverse, products.ravel()[found])
    return distinct[np.lexsort((distinct, -best))[:limit]]


def recall_at_10(index: CandidateIndex, matrix: NDArray[Any], seed: int = 0) -> float:
    """The share of each probe's 10 nearest others that the index finds; probes are at most 64 rows of the matrix.

    A row found counts if its product is no less than that of the tenth nearest, so equal vectors do not count against
    the index. A pool of one candidate has no others: 1.0.
    """
    count = len(matrix)
    depth = min(_RECALL_DEPTH, count - 1)
    if depth == 0:
        return 1.0
    probe_rows = np.sort(np.random.default_rng(seed).choice(count, min(_RECALL_PROBES, count), replace=False))
    probes = np.asarray(matrix[probe_rows], np.float32)
    floor = _nth_product(matrix, probes, probe_rows, depth)
    rows, _ = index.search(probes, depth + 1)
    found = np.asarray(matrix[np.maximum(rows, 0)], np.float32)  # the index's own word is not taken for its products
    products = np.einsum("pd,pkd->pk", probes, found)
    good = (rows >= 0) & (rows != probe_rows[:, None]) & (products >= floor[:, None] - 1e-4 * np.abs(floor[:, None]))
    return float(np.minimum(good.sum(axis=1), depth).mean() / depth)


def _nth_product(
    matrix: NDArray[Any], probes: NDArray[np.float32], probe_rows: NDArray[np.int64], depth: int
) -> NDArray[np.float32]:
    """By brute force, each probe's product with its depth-th nearest other row, (P,)."""
    best = np.full((len(probes), depth), -np.inf, np.float32)
    for start in range(0, len(matrix), _BLOCK_ROWS):
        products = probes @ np.asarray(matrix[start : start + _BLOCK_ROWS], np.float32).T
        own = (probe_rows >= start) & (probe_rows < start + products.shape[1])
        products[own, probe_rows[own] - start] = -np.inf
        both = np.concatenate([best, products], axis=1)
        best = np.partition(both, -depth, axis=1)[:, -depth:]
    return best[:, 0]
