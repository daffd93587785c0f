import numpy as np

from polyrank.index_builder.index.choice import IndexSpec
from polyrank.index_builder.index.faiss_index import CandidateIndex
from polyrank.index_builder.index.retrieval import retrieve, union

MATRIX = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float16)
CODES = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
PRODUCTS = CODES @ MATRIX.astype(np.float32).T


def flat(**params: int) -> CandidateIndex:
    return CandidateIndex.build(IndexSpec("flat", "Flat", params), MATRIX)


def test_the_union_takes_each_row_once_by_its_best_product() -> None:
    rows = np.array([[5, 1, 2], [7, 5, -1], [2, 9, 3]])
    products = np.array([[9, 8, 7], [8, 6, -np.inf], [10, 1, 1]], np.float32)
    assert union(rows, products, 10).tolist() == [2, 5, 1, 7, 3, 9]
    assert union(rows, products, 3).tolist() == [2, 5, 1]
    assert union(np.full((2, 2), -1), np.full((2, 2), -np.inf, np.float32), 5).tolist() == []


def test_what_is_found_has_the_largest_products_and_nothing_else_is_above_the_bound() -> None:
    found = retrieve(flat(), CODES, 20)
    best = PRODUCTS.max(axis=0)
    assert found.rows.tolist() == sorted(np.argsort(-best)[:20].tolist())
    assert np.delete(best, found.rows).max() <= found.bound + 1e-4
    assert abs(np.sort(best)[-20] - found.bound) < 1e-4


def test_what_an_index_may_have_missed_has_no_bound_unless_all_was_found() -> None:
    graph = CandidateIndex.build(IndexSpec("hnsw", "HNSW32"), MATRIX)
    assert retrieve(graph, CODES, 20).bound == np.inf
    for index in (graph, flat()):
        assert retrieve(index, CODES, 300).bound == -np.inf
        assert retrieve(index, CODES, 10, np.arange(290)).bound == -np.inf


def test_an_index_that_needs_longer_lists_gets_them() -> None:
    assert len(retrieve(flat(depth=50), CODES, 20).rows) == 50
    assert len(retrieve(flat(depth=50), CODES, 60).rows) == 60
    assert len(retrieve(flat(depth=5000), CODES, 60).rows) == 300


def test_codes_that_find_the_same_rows_find_as_many_as_are_needed() -> None:
    """Each of many codes is asked for less than the union, but never for less than the answer."""
    graph, alike = CandidateIndex.build(IndexSpec("hnsw", "HNSW32"), MATRIX), np.repeat(CODES[:1], 16, axis=0)
    assert len(retrieve(graph, alike, 40).rows) == 20
    assert len(retrieve(graph, alike, 40, least=33).rows) == 33
    assert len(retrieve(graph, alike[:1], 40).rows) == len(retrieve(flat(), alike, 40).rows) == 40


def test_what_is_excluded_or_not_allowed_is_not_found() -> None:
    only = np.arange(300) % 3 == 0
    exclude = np.array([0, 3, 299])
    assert retrieve(flat(), CODES, 300, exclude, only).rows.tolist() == list(range(6, 300, 3))
    assert retrieve(flat(), CODES, 300, np.arange(299)).rows.tolist() == [299]
    nothing = retrieve(flat(), CODES, 10, np.arange(300))
    assert (nothing.rows.tolist(), nothing.bound) == ([], -np.inf)
    assert retrieve(flat(), CODES, 10, only=np.zeros(300, bool)).rows.tolist() == []
