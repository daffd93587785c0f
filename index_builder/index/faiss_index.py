"""The FAISS index over a pool's vectors: build, save, load and search it by inner product."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import BuildError
from polyrank.index_builder.index.choice import IndexSpec, core_of, lists_of, reason

_BLOCK_ROWS = 65_536
_EF_CONSTRUCTION = 200
# The sample for training, in memory as float32: so many rows, or so many a list if that is more.
_TRAINING_ROWS, _ROWS_A_LIST = 65_536, 64
_TRAINING_SEED = 0
_ROTATION_BITS = 8  # those of the quantizer that FAISS would make itself
# How hard an index is searched before it is tuned: docs/measurements/index.md.
_EF_SEARCH, _MOST_EF_SEARCH = 64, 2048
_NPROBE = 32
RETRIEVE_K = 200  # rows to retrieve where the request does not say
MOST_DEPTH = 1600  # rows to retrieve at most when an index is tuned

Rows = NDArray[np.int64]
Products = NDArray[np.float32]

_MOST = 2048  # rows or lists of one GPU search: faiss/gpu/utils/DeviceDefs.cuh


class CandidateIndex:
    """An index over the rows of an embedding matrix, by inner product."""

    def __init__(self, index: Any, spec: IndexSpec) -> None:
        self._index = index
        effort = _effort_of(index)
        self.spec = replace(spec, params={effort.name: effort.default, **spec.params}) if effort else spec
        self._takes_selectors = self._tried_selectors()
        self._gpu = copy_to_gpu(index)

    @property
    def count(self) -> int:
        return int(self._index.ntotal)

    @property
    def dim(self) -> int:
        return int(self._index.d)

    @property
    def depth(self) -> int:
        """The least number of rows to retrieve."""
        return self.spec.params.get("depth", 0)

    @property
    def is_exact(self) -> bool:
        """Whether a search misses nothing and its products are as precise as the scan's."""
        return self._gpu is None and isinstance(faiss.downcast_index(self._index), faiss.IndexFlat)

    @classmethod
    def build(cls, spec: IndexSpec, matrix: NDArray[Any]) -> "CandidateIndex":
        """Index the rows of a matrix (N, D), read in blocks; train the index on a seeded sample if it needs training.

        Equal matrices give equal bytes on one machine with one number of threads. Graphs are built by one thread, since
        their links depend on the order of the threads. The spec must have a factory string. Raises BuildError if FAISS
        cannot build it.
        """
        try:
            index: Any = faiss.index_factory(matrix.shape[1], str(spec.factory), faiss.METRIC_INNER_PRODUCT)
            core = core_of(index)
            if isinstance(core, faiss.IndexHNSW):
                core.hnsw.efConstruction = _EF_CONSTRUCTION
            graphs = (faiss.IndexHNSW, faiss.IndexNSG)  # of the rows, or of the centroids of lists
            quantizer = faiss.downcast_index(core.quantizer) if isinstance(core, faiss.IndexIVF) else None
            has_graph = isinstance(core, graphs) or isinstance(quantizer, graphs)
            with faiss_threads(1 if has_graph else faiss.omp_get_max_threads()):
                if not index.is_trained:
                    _train(index, _sample(matrix, max(_TRAINING_ROWS, _ROWS_A_LIST * lists_of(core))))
                for start in range(0, len(matrix), _BLOCK_ROWS):
                    index.add(np.ascontiguousarray(matrix[start : start + _BLOCK_ROWS], np.float32))
        except RuntimeError as error:
            raise BuildError(f"FAISS cannot build {spec.factory}: {reason(error)}; choose another --index") from error
        return cls(index, spec)

    def save(self, path: Path) -> None:
        """Write the index. The file has no checksum of its own."""
        # FAISS's own file writer ignores a failing close: a full disk would leave a short file without an error.
        with path.open("wb") as file:
            faiss.write_index(self._index, faiss.PyCallbackIOWriter(file.write))  # type: ignore[attr-defined]  # not in its stubs

    @classmethod
    def load(cls, path: Path, spec: IndexSpec) -> "CandidateIndex":
        """Read a saved index; ValueError if FAISS cannot read the file."""
        try:
            return cls(faiss.read_index(str(path)), spec)
        except RuntimeError as error:
            raise ValueError(f"{path.name} is no FAISS index") from error

    def search(
        self,
        codes: NDArray[np.float32],
        depth: int,
        exclude: Rows | None = None,
        only: NDArray[np.bool_] | None = None,
        threads: int | None = None,
    ) -> tuple[Rows, Products]:
        """Find the rows with the largest inner product with each code vector, all codes in one call.

        Args:
            codes: (M, D).
            depth: rows a code, at least 1.
            exclude: rows not to return.
            only: (N,), true for the rows that may be returned; None: all.
            threads: how many FAISS uses from now on when this thread calls it; None leaves that as it is.

        Returns:
            rows (M, depth), best first, -1 where fewer were found, and their inner products (M, depth).
        """
        if threads is not None:
            faiss.omp_set_num_threads(threads)
        codes = np.ascontiguousarray(codes, np.float32)
        dropped = np.empty(0, np.int64) if exclude is None else exclude
        if only is None and self._gpu is not None and self._gpu.takes(depth + len(dropped), self.spec.params):
            products, rows = self._gpu.search(codes, depth + len(dropped), self.spec.params)
            return _first_rows(rows, products, ~np.isin(rows, dropped), depth)
        if only is None and not len(dropped):
            there = min(depth, self.count)  # FAISS's NSG looks for more rows than there are without an end
            products, rows = self._index.search(codes, there, params=self._parameters(there, None))
            return (rows, products) if there == depth else _first_rows(rows, products, rows >= 0, depth)
        if not self._takes_selectors:
            return self._overfetched(codes, depth, dropped, only)
        if only is None:
            selector: Any = faiss.IDSelectorNot(faiss.IDSelectorBatch(np.ascontiguousarray(dropped, np.int64)))
        else:
            allowed = only.copy()
            allowed[dropped] = False
            selector = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))  # type: ignore[call-arg,arg-type]  # stubs of the C++ form
        products, rows = self._index.search(codes, depth, params=self._parameters(depth, selector))
        return rows, products

    def harder(self) -> list["CandidateIndex"]:
        """The index with more search effort, in all ways in which it can still be raised."""
        ways: list[dict[str, int]] = []
        effort = _effort_of(self._index)
        if effort is not None and (value := self.spec.params[effort.name]) < effort.most:
            ways.append({effort.name: min(2 * value, effort.most)})
        depth = max(self.depth, RETRIEVE_K)
        if depth < min(MOST_DEPTH, self.count):
            ways.append({"depth": 2 * depth})
        return [self.with_params(way) for way in ways]

    def with_params(self, params: dict[str, int]) -> "CandidateIndex":
        """The same index, searched with these parameters instead of its own."""
        other = copy.copy(self)
        other.spec = replace(self.spec, params={**self.spec.params, **params})
        return other

    def _parameters(self, depth: int, selector: Any) -> Any:
        return _nested(self._index, self.spec.params, depth, selector)

    def _tried_selectors(self) -> bool:
        """Whether a search returns only rows that a selector lets through: some kinds refuse or ignore selectors."""
        nothing = faiss.IDSelectorRange(0, 0)
        try:
            _, rows = self._index.search(np.ones((1, self.dim), np.float32), 1, params=self._parameters(1, nothing))
        except RuntimeError:
            return False
        return bool((rows < 0).all())

    def _overfetched(
        self, codes: NDArray[np.float32], depth: int, dropped: Rows, only: NDArray[np.bool_] | None
    ) -> tuple[Rows, Products]:
        """Search for ever more rows without a selector until enough of them are allowed."""
        allowed = np.ones(self.count, bool) if only is None else only.copy()
        allowed[dropped] = False
        limit = depth + len(dropped)
        while True:
            limit = min(limit, self.count)
            products, rows = self._index.search(codes, limit, params=self._parameters(limit, None))
            fits = (rows >= 0) & allowed[rows]
            if limit == self.count or (fits.sum(axis=1) >= depth).all():
                return _first_rows(rows, products, fits, depth)
            limit *= 2


class _Effort(NamedTuple):
    """The search parameter that trades time for recall."""

    name: str
    default: int
    most: int


def _effort_of(index: Any) -> _Effort | None:
    """The index's effort parameter; None where FAISS has none for its kind."""
    core = core_of(index)
    if isinstance(core, faiss.IndexHNSW):
        return _Effort("efSearch", _EF_SEARCH, _MOST_EF_SEARCH)
    if isinstance(core, faiss.IndexIVF):
        return _Effort("nprobe", min(_NPROBE, core.nlist), core.nlist)
    return None


@contextmanager
def faiss_threads(count: int) -> Iterator[None]:
    """Set the number of FAISS's threads for the block."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _train(index: Any, sample: NDArray[np.float32]) -> None:
    """Train an index. FAISS's warnings of a small sample are turned off: there are thousands of lines for one index."""
    core, rotations = core_of(index), _rotations(index)
    quantizers = [core.pq] if hasattr(core, "pq") else []
    for rotation in rotations:
        rotation.pq = faiss.ProductQuantizer(rotation.d_out, rotation.M, _ROTATION_BITS)
        quantizers.append(rotation.pq)
    for clustered in [*quantizers, *([core] if isinstance(core, faiss.IndexIVF) else [])]:
        clustered.cp.min_points_per_centroid = 1
    try:
        index.train(sample)
    finally:
        for rotation in rotations:
            rotation.pq = None  # its owner ends here


def _rotations(index: Any) -> list[Any]:
    """Return the transforms before an index that train a quantizer of their own."""
    if isinstance(index, faiss.IndexRefine):
        return _rotations(faiss.downcast_index(index.base_index))
    if not isinstance(index, faiss.IndexPreTransform):
        return []
    chain: Any = index.chain
    transforms = [faiss.downcast_VectorTransform(chain.at(at)) for at in range(chain.size())]
    return [each for each in transforms if isinstance(each, faiss.OPQMatrix)]


def _sample(matrix: NDArray[Any], count: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(_TRAINING_SEED)
    rows = np.sort(rng.choice(len(matrix), min(count, len(matrix)), replace=False))
    return np.asarray(matrix[rows], np.float32)


def _nested(index: Any, params: dict[str, int], depth: int, selector: Any) -> Any:
    """Search parameters, nested as the index is; None where it takes none."""
    untyped: Any = faiss  # the stubs lack the keyword arguments
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexPreTransform):
        inner = _nested(index.index, params, depth, selector)
        return inner and untyped.SearchParametersPreTransform(index_params=inner)
    if isinstance(index, faiss.IndexRefine):
        inner = _nested(index.base_index, params, depth, selector)
        return inner and untyped.IndexRefineSearchParameters(k_factor=index.k_factor, base_index_params=inner)
    options = {} if selector is None else {"sel": selector}
    if isinstance(index, faiss.IndexHNSW):
        return untyped.SearchParametersHNSW(efSearch=max(params["efSearch"], depth), **options)
    if isinstance(index, faiss.IndexIVF):
        return untyped.SearchParametersIVF(nprobe=params["nprobe"], **options)
    return untyped.SearchParameters(**options) if options else None


def _first_rows(rows: Rows, products: Products, allowed: NDArray[np.bool_], depth: int) -> tuple[Rows, Products]:
    """The first `depth` kept rows of each line, filled up with -1."""
    first = np.argsort(~allowed, axis=1, kind="stable")[:, :depth]
    filled = np.take_along_axis(allowed, first, axis=1)
    rows = np.where(filled, np.take_along_axis(rows, first, axis=1), -1)
    products = np.where(filled, np.take_along_axis(products, first, axis=1), -np.inf).astype(np.float32)
    missing = depth - rows.shape[1]
    return (
        np.pad(rows, ((0, 0), (0, missing)), constant_values=-1),
        np.pad(products, ((0, 0), (0, missing)), constant_values=-np.inf),
    )


class GpuCopy:
    """A copy of an index in the first GPU's memory, for one thread at a time.

    GPU indexes ignore ID selectors. The caller therefore asks for more rows and drops the excluded ones, and searches
    the index in main memory where only some rows are allowed.
    """

    def __init__(self, index: Any) -> None:
        self._resources = faiss.StandardGpuResources()  # must outlive the copy
        self._index = faiss.index_cpu_to_gpu(self._resources, 0, index)

    def takes(self, depth: int, params: dict[str, int]) -> bool:
        """Whether the GPU can search for `depth` rows a code with these parameters."""
        return max(depth, params.get("nprobe", 1)) <= _MOST

    def search(
        self, codes: NDArray[np.float32], depth: int, params: dict[str, int]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Find the nearest rows to each of the codes (M, D): inner products and rows, both (M, depth)."""
        if "nprobe" in params:
            faiss.GpuParameterSpace().set_index_parameter(self._index, "nprobe", params["nprobe"])
        products, rows = self._index.search(codes, depth)
        return products, rows


def copy_to_gpu(index: Any) -> GpuCopy | None:
    """Copy an index; None without a GPU, and for kinds that have no form there, such as graphs."""
    if not hasattr(faiss, "StandardGpuResources") or faiss.get_num_gpus() == 0:
        return None
    try:
        return GpuCopy(index)
    except RuntimeError:
        return None
