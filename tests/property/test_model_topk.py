"""The best rows against brute force, and the bound of rounding."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from additions import LATE_WEIGHTS, VALUES, additions_of
from brute_force import paper_scores
from golden import oracle
from numpy.typing import NDArray

import polyrank.model.search.topk
from polyrank.model.representations import Additions
from polyrank.model.search.scan import Query, plain, prepare
from polyrank.model.search.scan.plain import PlainScan
from polyrank.model.search.topk import TopK, closed_form, longest_row, rounding, scores_of, top_k

pytestmark = pytest.mark.quick

SEEDS = range(200)


def best_of(scores: NDArray[np.float32], rows: NDArray[np.int64], k: int) -> TopK:
    order = sorted(rows.tolist(), key=lambda row: (-scores[row], row))[:k]
    return TopK(np.array(order, np.int64), scores[order])


def assert_same(found: TopK, expected: TopK) -> None:
    """Compare scores up to the last bit: exp() of two libraries may differ in the last bit of float64."""
    assert (found.rows.dtype, found.scores.dtype) == (np.int64, np.float32)
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_max_ulp(found.scores, expected.scores, maxulp=1)


@dataclass
class Case:
    matrix: NDArray[np.floating]
    codes: NDArray[np.float32]
    k: int
    rows: NDArray[np.int64] | None
    group: int

    @classmethod
    def drawn(cls, seed: int) -> "Case":
        """A pool with groups of equal rows, rows a bit away from equal, and zero rows; scores in a served range."""
        rng = np.random.default_rng(seed)
        m, d, n = (1, 4, 16, 64)[seed % 4], int(rng.choice([3, 16, 64])), int(rng.integers(1, 400))
        distinct = rng.normal(size=(max(1, n // int(rng.integers(1, 6))), d)) / np.sqrt(d)
        matrix = distinct[rng.integers(len(distinct), size=n)].astype((np.float16, np.float32)[seed // 4 % 2])
        nudged = rng.random(n) < 0.3
        matrix[nudged, 0] = np.nextafter(matrix[nudged, 0], matrix.dtype.type(1))
        matrix[rng.random(n) < 0.02] = 0
        scale = float(rng.choice([1.0, 20.0, 100.0]))
        codes = (rng.normal(size=(m, d)) / np.sqrt(d) * scale).astype(np.float32)
        rows = np.flatnonzero(rng.random(n) < 0.5).astype(np.int64) if seed // 8 % 2 else None
        found = paper_scores(matrix, codes)
        group = int((found == found.max()).sum())
        k = int(rng.choice([1, 2, 5, group, group + 1, max(1, group - 1), n, n + 7]))
        return cls(matrix, codes, k, rows, group)

    @property
    def expected(self) -> TopK:
        everything = np.arange(len(self.matrix)) if self.rows is None else self.rows
        return best_of(paper_scores(self.matrix, self.codes), everything, self.k)

    @property
    def found(self) -> TopK:
        return top_k(self.matrix, self.codes, self.k, self.rows)


@pytest.fixture(autouse=True)
def _pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prune even pools as small as these."""
    monkeypatch.setattr(polyrank.model.search.topk, "_FEW_ROWS", 0)


def in_blocks_of(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polyrank.model.search.topk, "_BLOCK_ELEMENTS", 1)
    monkeypatch.setattr(polyrank.model.search.topk, "_BLOCK_ROWS", rows)


@pytest.mark.parametrize("seed", range(60))
def test_few_rows_need_no_pruning(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polyrank.model.search.topk, "_FEW_ROWS", 400)
    case = Case.drawn(seed)
    assert_same(case.found, case.expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_equals_brute_force(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use one block, then blocks so small that most rows are pruned and equal rows lie across borders."""
    case = Case.drawn(seed)
    assert_same(case.found, case.expected)
    in_blocks_of(3 + seed % 29, monkeypatch)
    assert_same(case.found, case.expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_with_additions_equals_brute_force(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each seed tries another kind of numbers, late weight and size of blocks, and the rows as a mask as well."""
    case, rng = Case.drawn(seed), np.random.default_rng(seed)
    n, kinds = len(case.matrix), list(VALUES)
    additions = additions_of(kinds[seed % len(kinds)], float(rng.choice(LATE_WEIGHTS)), n, rng)
    rows = np.arange(n) if case.rows is None else case.rows
    expected = best_of(paper_scores(case.matrix, case.codes, additions), rows, case.k)
    kept = np.zeros(n, bool)
    kept[rows] = True
    for size in (400, 3 + seed % 29):
        in_blocks_of(size, monkeypatch)
        assert_same(top_k(case.matrix, case.codes, case.k, case.rows, additions=additions), expected)
        assert_same(top_k(case.matrix, case.codes, case.k, allowed=kept, additions=additions), expected)


@pytest.mark.parametrize("d", [64, 384, 1024])
@pytest.mark.parametrize("kind", VALUES)
def test_with_additions_and_vectors_as_they_are_served_equals_brute_force(d: int, kind: str) -> None:
    for seed, late_weight in enumerate(LATE_WEIGHTS):
        rng = np.random.default_rng(seed)
        matrix = (rng.normal(size=(1500, d)) / np.sqrt(d)).astype(np.float16)
        matrix[rng.integers(1500, size=500)] = matrix[rng.integers(20, size=500)]
        codes = (rng.normal(size=(16, d)) / np.sqrt(d) * 20).astype(np.float32)
        additions = additions_of(kind, late_weight, 1500, rng)
        expected = best_of(paper_scores(matrix, codes, additions), np.arange(1500), 20)
        assert_same(top_k(matrix, codes, 20, additions=additions), expected)


def test_zeros_with_a_late_weight_of_one_change_no_bit() -> None:
    for seed in range(20):
        case = Case.drawn(seed)
        nothing = Additions(1.0, np.zeros(len(case.matrix), np.float32))
        found = top_k(case.matrix, case.codes, case.k, case.rows, additions=nothing)
        np.testing.assert_array_equal(found.rows, case.found.rows)
        np.testing.assert_array_equal(found.scores.view(np.int32), case.found.scores.view(np.int32))


@pytest.mark.parametrize("far", [1e4, -1e4, 1e7])
def test_rows_that_tie_for_what_is_added_come_in_row_order(far: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late scores differ by less than float32 holds beside a number so large: equal scores must not be pruned."""
    in_blocks_of(16, monkeypatch)
    rng = np.random.default_rng(0)
    matrix = (rng.normal(size=(600, 16)) / 4).astype(np.float16)
    codes = (rng.normal(size=(4, 16)) / 50).astype(np.float32)
    additions = Additions(1.0, np.full(600, far, np.float32))
    scores = paper_scores(matrix, codes, additions)
    assert len(set(scores.tolist())) < 200, "or this shows nothing"
    assert_same(top_k(matrix, codes, 9, additions=additions), best_of(scores, np.arange(600), 9))


def test_the_cases_reach_what_they_are_for() -> None:
    cases = [Case.drawn(seed) for seed in SEEDS]
    assert {(len(case.codes), case.matrix.dtype.name) for case in cases} == {
        (m, dtype) for m in (1, 4, 16, 64) for dtype in ("float16", "float32")
    }
    assert sum(case.group > 1 for case in cases) > 50
    assert sum(case.group > 1 and abs(case.k - case.group) <= 1 for case in cases) > 25
    assert sum(case.rows is not None for case in cases) > 50
    assert sum(case.k > len(case.matrix) for case in cases) > 10
    assert sum(case.rows is not None and case.k > len(case.rows) for case in cases) > 10


@pytest.mark.parametrize("m", [1, 16, 64])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_equals_brute_force_over_many_blocks(m: int, dtype: type) -> None:
    rng = np.random.default_rng(m)
    matrix = (rng.normal(size=(30_000, 16)) / 4).astype(dtype)
    matrix[rng.integers(30_000, size=10_000)] = matrix[rng.integers(50, size=10_000)]
    codes = (rng.normal(size=(m, 16)) * 5).astype(np.float32)
    for k in (1, 10, 1000):
        assert_same(top_k(matrix, codes, k), best_of(paper_scores(matrix, codes), np.arange(30_000), k))


@pytest.mark.parametrize("m", [1, 5])
@pytest.mark.parametrize("seed", range(20))
def test_rows_closer_than_float32_can_tell(seed: int, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows a few units in the last place apart, whose computed order is chance: pruning must leave them a margin.

    With one code ahead of all others the score is its product, so that the bound it is pruned by is no slack.
    """
    in_blocks_of(16, monkeypatch)
    rng = np.random.default_rng(seed)
    row = rng.normal(size=384)
    matrix = (row * (1 + 2e-7 * rng.normal(size=(600, 384)))).astype(np.float32)
    codes = np.vstack([row, *[-row] * (m - 1)]).astype(np.float32)
    assert_same(top_k(matrix, codes, 9), best_of(paper_scores(matrix, codes), np.arange(600), 9))


def test_brute_force_is_the_loop_oracle() -> None:
    rng = np.random.default_rng(0)
    matrix, codes = rng.normal(size=(20, 8)).astype(np.float32), rng.normal(size=(5, 8)).astype(np.float32)
    loops = [oracle.candidate_attention(codes.astype(float).tolist(), row.astype(float).tolist()) for row in matrix]
    np.testing.assert_allclose(paper_scores(matrix, codes), loops, rtol=1e-7)


@pytest.mark.parametrize("seed", range(20))
def test_a_rows_score_does_not_depend_on_its_place(seed: int) -> None:
    """Matrix kernels sum the last rows of a block in another order than the first."""
    rng = np.random.default_rng(seed)
    n, d, m = 300, int(rng.choice([17, 64, 384])), int(rng.choice([1, 5, 64]))
    matrix = (rng.normal(size=(n, d)) / np.sqrt(d)).astype(np.float32)
    codes = (rng.normal(size=(m, d)) * 20 / np.sqrt(d)).astype(np.float32)
    row = matrix[0].copy()
    alone = top_k(row[None], codes, 1).scores[0]
    matrix[rng.random(n) < 0.5] = row
    copies = (matrix == row).all(axis=1)
    found = top_k(matrix, codes, n)
    assert set(found.scores[copies[found.rows]].tolist()) == {alone}
    score_of = dict(zip(found.rows.tolist(), found.scores.tolist(), strict=True))
    few = top_k(matrix, codes, n, np.arange(n - 7, n))
    assert few.scores.tolist() == [score_of[at] for at in few.rows.tolist()]


@pytest.mark.parametrize("k", [0, -1])
def test_nothing_is_asked_for(k: int) -> None:
    found = top_k(np.ones((3, 2), np.float32), np.ones((1, 2), np.float32), k)
    assert (found.rows.shape, found.scores.shape) == ((0,), (0,))


def test_nothing_is_there() -> None:
    codes = np.ones((2, 4), np.float32)
    assert longest_row(np.empty((0, 4), np.float16)) == 0.0
    assert scores_of(np.empty((0, 4), np.float16), codes).shape == (0,)
    assert len(top_k(np.empty((0, 4), np.float32), codes, 3).rows) == 0
    assert len(top_k(np.ones((5, 4), np.float32), codes, 3, np.empty(0, np.int64)).rows) == 0


def test_one_row_and_one_code_keep_their_axes() -> None:
    found = top_k(np.array([[2.0, 1.0]], np.float16), np.array([[3.0, 0.5]], np.float32), 5)
    assert (found.rows.tolist(), found.scores.tolist()) == ([0], [6.5])


def test_memory_stays_bounded_where_everything_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finalists are scored again a few thousand at a time; the parts must come together in order."""
    monkeypatch.setattr(polyrank.model.search.topk, "_FINAL_ROWS", 7)
    rng = np.random.default_rng(4)
    matrix = rng.normal(size=(40, 8)).astype(np.float32)
    codes = rng.normal(size=(4, 8)).astype(np.float32)
    assert_same(top_k(matrix, codes, 40), best_of(paper_scores(matrix, codes), np.arange(40), 40))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_longest_row_may_be_known(dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    matrix = rng.normal(size=(500, 8)).astype(dtype)
    matrix[-1] *= 5
    codes = rng.normal(size=(4, 8)).astype(np.float32)
    in_blocks_of(7, monkeypatch)
    longest = longest_row(matrix)
    assert longest == pytest.approx(np.linalg.norm(matrix.astype(float), axis=1).max(), rel=1e-6)
    assert_same(top_k(matrix, codes, 9, longest=longest), top_k(matrix, codes, 9))


def test_scores_of_are_those_of_top_k() -> None:
    rng = np.random.default_rng(5)
    matrix = rng.normal(size=(100, 8)).astype(np.float16)
    codes = rng.normal(size=(4, 8)).astype(np.float32)
    found = top_k(matrix, codes, 100)
    np.testing.assert_array_equal(scores_of(matrix, codes)[found.rows], found.scores)
    additions = additions_of("a tail", 0.83, 100, rng)
    found = top_k(matrix, codes, 100, additions=additions)
    np.testing.assert_array_equal(scores_of(matrix, codes, additions)[found.rows], found.scores)


DIM = 384


def misordered(m: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32], float]:
    """A pool, its best row first, one context's codes, and how far a worse row is ahead of it as float32 computes.

    Rows and codes are constant, so that the rounding errors of a sum all point the same way; one code is just as far
    ahead of the others as makes the closed form steepest.
    """
    rng = np.random.default_rng(seed)
    first = np.float32(rng.uniform(0.5, 1))
    codes = np.full((m, DIM), first * (20 - math.log(m - 1)) / 20 * (1 + rng.normal() * 0.01), np.float32)
    codes[0] = first
    lengths = rng.integers(300, DIM + 1, 1300)
    values = (20 / (lengths * float(first)) * (1 + rng.uniform(-2e-6, 2e-6, 1300))).astype(np.float32)
    rows = np.where(np.arange(DIM) < lengths[:, None], values[:, None], np.float32(0))
    order = np.argsort(-closed_form(codes.astype(np.float64) @ rows.astype(np.float64).T))
    computed = closed_form(codes @ rows.T)[order]
    ahead = np.maximum.accumulate(computed[::-1])[::-1] - computed
    best = int(ahead.argmax())
    return rows[order[best:]], codes, float(ahead[best])


@pytest.mark.parametrize("m", [64, 128, 360])
def test_rows_that_float32_puts_in_the_wrong_order(m: int) -> None:
    for seed in range(12):
        rows, codes, ahead = misordered(m, seed)
        assert 0 < ahead <= rounding(codes, longest_row(rows))
        found, scores = top_k(rows, codes, 1), scores_of(rows, codes)
        assert found.rows.tolist() == [scores.argmax()]


@pytest.mark.parametrize("late_weight", [1e-3, 1.0, 1e3])
def test_rows_that_float32_puts_in_the_wrong_order_with_additions(late_weight: float) -> None:
    """What is added leaves the order of the late scores, whose error the late weight multiplies."""
    for seed in range(12):
        rows, codes, ahead = misordered(128, seed)
        additions = Additions(late_weight, np.full(len(rows), -20 * late_weight, np.float32))
        assert 0 < late_weight * ahead <= rounding(codes, longest_row(rows), late_weight)
        scores = scores_of(rows, codes, additions)
        assert top_k(rows, codes, 1, additions=additions).rows.tolist() == [scores.argmax()]


def test_products_that_overflow_lose_no_row() -> None:
    """The best row has a product of 50, and one of -1e40 that gets no weight."""
    rng = np.random.default_rng(0)
    matrix, codes = rng.normal(size=(9000, 16)).astype(np.float32), np.zeros((2, 16), np.float32)
    matrix[:, 1] = 0
    matrix[7, :2] = 50, -1e25
    codes[0, 0], codes[1, 1] = 1, 1e15
    assert rounding(codes, longest_row(matrix)) == math.inf
    expected = np.argsort(-scores_of(matrix, codes))[:5]
    assert expected[0] == 7
    assert top_k(matrix, codes, 5).rows.tolist() == expected.tolist()
    for scan in (PlainScan(matrix, longest_row(matrix)), prepare(matrix)):
        unchanged = Additions(1.0, np.zeros(len(matrix), np.float32))
        for found in scan.top_k([Query(codes, 5), Query(codes, 5, None, unchanged)]):
            assert found.rows.tolist() == expected.tolist()


@pytest.mark.parametrize("worst", [math.inf, math.nan])
def test_a_pool_that_is_not_finite_is_not_compared(worst: float) -> None:
    assert rounding(np.ones((3, 4), np.float32), worst) == math.inf


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exp_is_as_exact_as_the_margin_supposes(dtype: type) -> None:
    """NumPy's own instructions for exp() are less exact than a library's."""
    t = -np.r_[np.linspace(0, 1, 200_001), np.linspace(1, 90, 400_001)].astype(dtype)
    exact = np.exp(t.astype(np.longdouble))
    assert (np.abs(np.exp(t) - exact) <= 2**-22 * (2 + np.abs(t)) * exact + 2.0**-126).all()


@pytest.mark.parametrize("seed", range(30))
def test_several_threads_find_what_one_finds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal rows lie in several shares, and a filter may leave some of them empty."""
    case, rng = Case.drawn(seed), np.random.default_rng(seed)
    n = len(case.matrix)
    allowed = None if seed % 3 == 0 else rng.random(n) < (0.9, 0.2)[seed % 2]
    if allowed is not None and seed % 5 == 0:
        allowed[: n // 2] = False
    additions = additions_of("a tail", 0.7, n, rng) if seed % 2 else None
    query = Query(case.codes, case.k, allowed, additions)
    scan = PlainScan(case.matrix, longest_row(case.matrix))
    expected = scan.of(query)
    monkeypatch.setattr(plain, "_LEAST_SHARE", 10)
    monkeypatch.setattr(plain.threads, "shares", lambda: 1 + seed % 7)
    found = scan.of(query)
    assert found.rows.tolist() == expected.rows.tolist()
    assert found.scores.tolist() == expected.scores.tolist()
    rows = np.arange(n) if allowed is None else np.flatnonzero(allowed)
    assert_same(found, best_of(paper_scores(case.matrix, case.codes, additions), rows, case.k))
