"""No GPU is needed: FAISS's GPU functions are replaced by ones that search in memory and refuse what a GPU refuses."""

from typing import Any

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from polyrank.index_builder.index.choice import IndexSpec
from polyrank.index_builder.index.faiss_gpu import copy_to_gpu
from polyrank.index_builder.index.faiss_index import CandidateIndex

MATRIX = np.random.default_rng(0).standard_normal((500, 8)).astype(np.float16)
CODES = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)


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
    rows, products = index.search(CODES, 20)
    assert copies[0].depths == [20]
    expected = in_memory(monkeypatch, factory, **params).search(CODES, 20)
    assert (rows == expected[0]).all()
    np.testing.assert_allclose(products, expected[1])
    assert not index.is_exact, "a GPU's products are not precise enough to certify by"


def test_what_is_excluded_is_asked_for_too_and_dropped(monkeypatch, copies: list[OnGpu]) -> None:
    index = built("Flat")
    exclude = np.unique(index.search(CODES, 5)[0])
    rows, _ = index.search(CODES, 20, exclude)
    assert copies[0].depths == [5, 20 + len(exclude)]
    assert (rows == in_memory(monkeypatch, "Flat").search(CODES, 20, exclude)[0]).all()


def test_filters_and_long_lists_are_left_to_the_index_in_memory(copies: list[OnGpu]) -> None:
    index = built("Flat", np.repeat(MATRIX, 5, axis=0))
    only = np.arange(2500) % 7 == 0
    assert only[index.search(CODES, 20, only=only)[0]].all()
    assert (index.search(CODES, 2049)[0] >= 0).all()
    assert (index.search(CODES, 2040, np.arange(10))[0] >= 10).all()
    assert copies[0].depths == []
    many = built("IVF4,Flat").with_params({"nprobe": 2049})
    many.search(CODES, 5)
    assert copies[1].depths == []


def test_harder_searches_share_one_copy(copies: list[OnGpu]) -> None:
    index = built("IVF8,Flat", nprobe=1)
    harder = index.with_params({"nprobe": 8})
    for each in (index, harder, index):
        each.search(CODES, 400)
    assert len(copies) == 1
    assert (index.search(CODES, 400)[0] < 0).any()
    assert (harder.search(CODES, 400)[0] >= 0).all()


def test_a_graph_stays_in_memory(copies: list[OnGpu]) -> None:
    assert (built("HNSW8").search(CODES, 5)[0] >= 0).all()
    assert copies == []
