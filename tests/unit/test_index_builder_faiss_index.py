import errno
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from polyrank.index_builder.errors import BuildError
from polyrank.index_builder.index.choice import IndexSpec, choose_index
from polyrank.index_builder.index.faiss_index import CandidateIndex, copy_to_gpu

FLAT, HNSW = choose_index("flat", 1, 16), choose_index("hnsw", 1, 16)
BOTH = pytest.mark.parametrize("spec", [FLAT, HNSW], ids=["flat", "hnsw"])


CODES = np.random.default_rng(1).standard_normal((6, 16)).astype(np.float32)
MATRIX = np.random.default_rng(0).standard_normal((500, 8)).astype(np.float16)
SMALL = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)


def matrix(count: int = 2000, dim: int = 16) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, dim)).astype(np.float16)


def best_by_hand(codes: np.ndarray, rows: np.ndarray, depth: int) -> np.ndarray:
    return np.argsort(-(codes @ rows.astype(np.float32).T), axis=1)[:, :depth]


@BOTH
def test_the_largest_inner_products_are_found_best_first(spec: IndexSpec) -> None:
    rows, products = CandidateIndex.build(spec, matrix()).search(CODES, 20)
    assert rows.shape == products.shape == (6, 20)
    assert (np.diff(products) <= 0).all()
    assert np.allclose(products, np.take_along_axis(CODES @ matrix().astype(np.float32).T, rows, 1), atol=1e-4)
    expected = best_by_hand(CODES, matrix(), 20)
    shared = [len(set(found) & set(wanted)) for found, wanted in zip(rows, expected, strict=True)]
    assert sum(shared) >= (120 if spec is FLAT else 116)


@BOTH
def test_a_saved_index_answers_as_before(spec: IndexSpec, tmp_path: Path) -> None:
    built = CandidateIndex.build(spec, matrix())
    built.save(tmp_path / "index")
    loaded = CandidateIndex.load(tmp_path / "index", spec)
    assert (loaded.count, loaded.dim) == (2000, 16)
    for before, after in zip(built.search(CODES, 50), loaded.search(CODES, 50), strict=True):
        assert (before == after).all()


def test_the_matrix_is_added_in_blocks() -> None:
    many = matrix(70_000)  # more than one block
    index = CandidateIndex.build(FLAT, many)
    assert index.count == 70_000
    assert (index.search(CODES, 20)[0] == best_by_hand(CODES, many, 20)).all()


@pytest.mark.slow
@BOTH
def test_the_file_does_not_depend_on_the_number_of_threads(spec: IndexSpec, tmp_path: Path) -> None:
    contents, before = set(), faiss.omp_get_max_threads()
    for threads in (1, 2, 5):
        faiss.omp_set_num_threads(threads)
        CandidateIndex.build(spec, matrix()).save(tmp_path / "i")
        contents.add((tmp_path / "i").read_bytes())
    faiss.omp_set_num_threads(before)
    assert len(contents) == 1


def test_what_is_no_index_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index").write_bytes(b"garbage")
    with pytest.raises(ValueError, match="index is no FAISS index"):
        CandidateIndex.load(tmp_path / "index", FLAT)


def test_a_full_disk_is_noticed_however_small_the_index() -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        CandidateIndex.build(FLAT, matrix(3)).save(Path("/dev/full"))
    assert caught.value.errno == errno.ENOSPC


def test_search_parameters_reach_an_index_inside_a_transform_and_a_refinement() -> None:
    few = CandidateIndex.build(IndexSpec("custom", "PCA16,IVF32,SQ8,RFlat", {"nprobe": 1}), matrix())
    assert (few.search(CODES, 500)[0] < 0).any()  # one list holds fewer than 500
    assert few.spec.params == {"nprobe": 1}
    many = CandidateIndex.build(IndexSpec("custom", "PCA16,IVF32,SQ8,RFlat", {"nprobe": 32}), matrix())
    assert (many.search(CODES, 500)[0] >= 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factory", "params"),
    [("HNSW8", {"efSearch": 64}), ("IVF64,SQ8", {"nprobe": 32}), ("PCA8,IVF3,PQ4x4", {"nprobe": 3}), ("PQ4x4fs", {})],
)
def test_an_index_says_how_hard_it_is_searched(factory: str, params: dict[str, int]) -> None:
    assert CandidateIndex.build(IndexSpec("custom", factory), matrix()).spec == IndexSpec("custom", factory, params)


def test_an_index_is_searched_harder_up_to_its_end() -> None:
    index = CandidateIndex.build(IndexSpec("custom", "IVF7,Flat", {"nprobe": 2}), matrix())
    seen = []
    while ways := index.harder():
        index = ways[0]
        seen.append(index.spec.params)
    assert seen == [{"nprobe": 4}, {"nprobe": 7}, *({"nprobe": 7, "depth": depth} for depth in (400, 800, 1600))]
    assert index.depth == 1600
    assert CandidateIndex.build(FLAT, matrix(150)).harder() == []


@pytest.mark.slow
@pytest.mark.parametrize("factory", ["HNSW16", "IVF40,SQ8", "OPQ4,IVF40,PQ4x4", "IVF16_HNSW8,Flat"])
def test_equal_matrices_give_equal_bytes(factory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrank.index_builder.index.faiss_index._TRAINING_ROWS", 500)  # a sample, not all
    monkeypatch.setattr("polyrank.index_builder.index.faiss_index._ROWS_A_LIST", 10)
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(4)
    try:
        for name in ("one", "other"):
            CandidateIndex.build(IndexSpec("custom", factory), matrix()).save(tmp_path / name)
        assert faiss.omp_get_max_threads() == 4
    finally:
        faiss.omp_set_num_threads(before)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


@pytest.mark.parametrize("factory", ["PQ2x4", "IVF16,SQ8", "OPQ2,IVF2,PQ2x4", "OPQ2,IVF2,PQ2x4,RFlat"])
def test_training_on_few_rows_says_nothing(factory: str, capfd: pytest.CaptureFixture[str]) -> None:
    CandidateIndex.build(IndexSpec("custom", factory, asked=factory), matrix(300))
    assert capfd.readouterr() == ("", "")


def test_what_faiss_cannot_build_is_told_in_its_words() -> None:
    with pytest.raises(BuildError, match=r"cannot build IVF50,Flat: .*at least as large as number of clusters \(50\)"):
        CandidateIndex.build(IndexSpec("custom", "IVF50,Flat"), matrix(20))


def test_only_a_flat_index_misses_nothing() -> None:
    factories = ["Flat", "SQ8", "HNSW8", "IVF1,Flat"]
    found = [CandidateIndex.build(IndexSpec("custom", each), matrix(50)).is_exact for each in factories]
    assert found == [True, False, False, False]


class OnGpu:
    """Counts its searches; takes no search parameters, and at most 2048 rows."""

    def __init__(self, index: Any) -> None:
        self.index = index
        self.depths: list[int] = []

    def search(self, codes: NDArray[np.float32], depth: int) -> Any:
        assert depth <= 2048
        self.depths.append(depth)
        return self.index.search(codes, depth)


class ParameterSpace:
    def set_index_parameter(self, copy: OnGpu, name: str, value: int) -> None:
        faiss.ParameterSpace().set_index_parameter(copy.index, name, value)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[OnGpu]:
    """The copies made."""
    made: list[OnGpu] = []

    def copy(_resources: object, device: int, index: Any) -> OnGpu:
        assert device == 0
        if isinstance(faiss.downcast_index(index), faiss.IndexHNSW):
            raise RuntimeError("This index type is not implemented on GPU.")
        made.append(OnGpu(faiss.clone_index(index)))
        return made[-1]

    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1)
    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", copy, raising=False)
    monkeypatch.setattr(faiss, "GpuParameterSpace", ParameterSpace, raising=False)
    return made


def built(factory: str, matrix: NDArray[np.float16] = MATRIX, **params: int) -> CandidateIndex:
    return CandidateIndex.build(IndexSpec("custom", factory, params), matrix)


def in_memory(monkeypatch: pytest.MonkeyPatch, factory: str, **params: int) -> CandidateIndex:
    with monkeypatch.context() as context:
        context.setattr(faiss, "get_num_gpus", lambda: 0)
        return built(factory, **params)


def test_without_a_gpu_there_is_no_copy() -> None:
    assert copy_to_gpu(faiss.IndexFlatIP(8)) is None


@pytest.mark.parametrize(("factory", "params"), [("Flat", {}), ("IVF8,Flat", {"nprobe": 3})])
def test_the_gpu_is_asked_and_finds_the_same(monkeypatch, copies: list[OnGpu], factory: str, params: dict) -> None:
    index = built(factory, **params)
    rows, products = index.search(SMALL, 20)
    assert copies[0].depths == [20]
    expected = in_memory(monkeypatch, factory, **params).search(SMALL, 20)
    assert (rows == expected[0]).all()
    np.testing.assert_allclose(products, expected[1])
    assert not index.is_exact, "a GPU's products are not precise enough to certify by"


def test_what_is_excluded_is_asked_for_too_and_dropped(monkeypatch, copies: list[OnGpu]) -> None:
    index = built("Flat")
    exclude = np.unique(index.search(SMALL, 5)[0])
    rows, _ = index.search(SMALL, 20, exclude)
    assert copies[0].depths == [5, 20 + len(exclude)]
    assert (rows == in_memory(monkeypatch, "Flat").search(SMALL, 20, exclude)[0]).all()


def test_filters_and_long_lists_are_left_to_the_index_in_memory(copies: list[OnGpu]) -> None:
    index = built("Flat", np.repeat(MATRIX, 5, axis=0))
    only = np.arange(2500) % 7 == 0
    assert only[index.search(SMALL, 20, only=only)[0]].all()
    assert (index.search(SMALL, 2049)[0] >= 0).all()
    assert (index.search(SMALL, 2040, np.arange(10))[0] >= 10).all()
    assert copies[0].depths == []
    many = built("IVF4,Flat").with_params({"nprobe": 2049})
    many.search(SMALL, 5)
    assert copies[1].depths == []


def test_harder_searches_share_one_copy(copies: list[OnGpu]) -> None:
    index = built("IVF8,Flat", nprobe=1)
    harder = index.with_params({"nprobe": 8})
    for each in (index, harder, index):
        each.search(SMALL, 400)
    assert len(copies) == 1
    assert (index.search(SMALL, 400)[0] < 0).any()
    assert (harder.search(SMALL, 400)[0] >= 0).all()


def test_a_graph_stays_in_memory(copies: list[OnGpu]) -> None:
    assert (built("HNSW8").search(SMALL, 5)[0] >= 0).all()
    assert copies == []
