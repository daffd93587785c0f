import errno
from pathlib import Path

import numpy as np
import pytest

from index_builder.faiss_index import CandidateIndex, recall_at_10, union
from index_builder.index_choice import IndexSpec, choose_index

FLAT, HNSW = choose_index("flat", 1), choose_index("hnsw", 1)
BOTH = pytest.mark.parametrize("spec", [FLAT, HNSW], ids=["flat", "hnsw"])


def matrix(count: int = 2000, dim: int = 16) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, dim)).astype(np.float16)


def best_by_hand(codes: np.ndarray, rows: np.ndarray, depth: int) -> np.ndarray:
    return np.argsort(-(codes @ rows.astype(np.float32).T), axis=1)[:, :depth]


CODES = np.random.default_rng(1).standard_normal((6, 16)).astype(np.float32)


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
def test_excluded_rows_give_way_to_the_next_best(spec: IndexSpec) -> None:
    index = CandidateIndex.build(spec, matrix())
    exclude = np.unique(best_by_hand(CODES, matrix(), 5))
    rows, _ = index.search(CODES, 10, exclude=exclude)
    assert not np.isin(rows, exclude).any()
    assert (rows >= 0).all()
    left = np.setdiff1d(np.arange(2000), exclude)
    wanted = left[best_by_hand(CODES, matrix()[left], 1)[:, 0]]
    assert (rows[:, 0] == wanted).all()
    assert (index.search(CODES, 10, exclude=np.empty(0, np.int64))[0] == index.search(CODES, 10)[0]).all()


@BOTH
def test_where_fewer_are_left_the_rest_is_minus_one(spec: IndexSpec) -> None:
    rows, _ = CandidateIndex.build(spec, matrix(3)).search(CODES, 5, exclude=np.array([1]), threads=1)
    assert (np.sort(rows, axis=1) == [-1, -1, -1, 0, 2]).all()


@BOTH
def test_a_saved_index_answers_as_before(spec: IndexSpec, tmp_path: Path) -> None:
    built = CandidateIndex.build(spec, matrix())
    built.save(tmp_path / "index")
    loaded = CandidateIndex.load(tmp_path / "index", spec)
    assert (loaded.count, loaded.dim) == (2000, 16)
    for before, after in zip(built.search(CODES, 50), loaded.search(CODES, 50), strict=True):
        assert (before == after).all()


def test_the_matrix_is_added_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index_builder.faiss_index._BLOCK_ROWS", 300)
    index = CandidateIndex.build(FLAT, matrix())
    assert index.count == 2000
    assert (index.search(CODES, 20)[0] == best_by_hand(CODES, matrix(), 20)).all()


def test_what_is_no_index_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index").write_bytes(b"garbage")
    with pytest.raises(ValueError, match="index is no FAISS index"):
        CandidateIndex.load(tmp_path / "index", FLAT)


def test_a_full_disk_is_noticed_however_small_the_index() -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        CandidateIndex.build(FLAT, matrix(3)).save(Path("/dev/full"))
    assert caught.value.errno == errno.ENOSPC


def test_the_union_takes_each_row_once_by_its_best_product() -> None:
    rows = np.array([[5, 1, 2], [7, 5, -1], [2, 9, 3]])
    products = np.array([[9, 8, 7], [8, 6, -np.inf], [10, 1, 1]], np.float32)
    assert union(rows, products, 10).tolist() == [2, 5, 1, 7, 3, 9]
    assert union(rows, products, 3).tolist() == [2, 5, 1]
    assert union(np.full((2, 2), -1), np.full((2, 2), -np.inf, np.float32), 5).tolist() == []


def test_recall_is_1_for_an_exact_index_however_many_are_equal() -> None:
    rows = np.repeat(matrix(50), 30, axis=0)
    assert recall_at_10(CandidateIndex.build(FLAT, rows), rows) == 1.0


@pytest.mark.parametrize("count", [1, 2, 5, 11])
def test_recall_of_a_small_pool(count: int) -> None:
    assert recall_at_10(CandidateIndex.build(HNSW, matrix(count)), matrix(count)) == 1.0


def test_recall_shows_a_bad_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("index_builder.faiss_index._BLOCK_ROWS", 500)
    rows = matrix()
    assert recall_at_10(CandidateIndex.build(HNSW, rows), rows) > 0.9
    assert recall_at_10(CandidateIndex.build(FLAT, rows[::-1]), rows) < 0.1


def test_recall_counts_every_probes_neighbours_by_brute_force() -> None:
    half = matrix(400)
    halved = half.copy()
    halved[200:] = 0  # an index that has forgotten half the pool
    found = recall_at_10(CandidateIndex.build(FLAT, halved), half)
    products = half.astype(np.float32) @ half.astype(np.float32).T
    np.fill_diagonal(products, -np.inf)
    expected = (np.argsort(-products, axis=1)[:, :10] < 200).mean()
    assert abs(found - expected) < 0.15
