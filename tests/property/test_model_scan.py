"""The quantised scan against scoring every row: rows and scores agree bit for bit for any kind of pool."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from additions import LATE_WEIGHTS, VALUES, additions_of
from brute_force import paper_scores
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from polyrank.model.representations import Additions
from polyrank.model.search.scan import Query, prepare, product, quantised, quantised_rows
from polyrank.model.search.scan.openvino_bytes import OpenVinoProduct
from polyrank.model.search.scan.quantised import QuantisedScan
from polyrank.model.search.scan.torch_bytes import TorchProduct
from polyrank.model.search.topk import TopK, scores_of

pytestmark = pytest.mark.skipif(not product.multiplies_bytes(), reason="this processor does not multiply bytes fast")

BLOCK_ROWS = 32


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a small pool many blocks and parts, and let several contexts share a pass."""
    monkeypatch.setattr(quantised_rows, "BLOCK_ROWS", BLOCK_ROWS)
    monkeypatch.setattr(quantised_rows, "_PART_ROWS", 10)
    monkeypatch.setattr(quantised, "BLOCK_ROWS", BLOCK_ROWS)
    monkeypatch.setattr(quantised, "_ROWS_FOR_ONE_CODE", 0)
    monkeypatch.setattr(quantised, "_ROWS_FOR_FEW_CODES", 0)
    monkeypatch.setattr(quantised, "_PRODUCT_ELEMENTS", 1024)
    monkeypatch.setattr(quantised, "PASS_CODES", 200)
    monkeypatch.setattr(quantised, "_SCORED_ROWS", 7)
    monkeypatch.setattr(quantised, "_PROMISING", 1)
    monkeypatch.setattr(quantised, "_LARGEST_K", 1.0)


def brute_force(matrix: NDArray[Any], query: Query) -> TopK:
    scores = scores_of(matrix, query.codes, query.additions)
    rows = np.arange(len(matrix)) if query.allowed is None else np.flatnonzero(query.allowed)
    rows = rows[np.lexsort((rows, -scores[rows]))][: max(0, query.k)]
    return TopK(rows, scores[rows])


def assert_exact(matrix: NDArray[Any], queries: list[Query]) -> None:
    found = QuantisedScan(matrix).top_k(queries)
    assert len(found) == len(queries)
    for query, best in zip(queries, found, strict=True):
        expected = brute_force(matrix, query)
        assert (best.rows.dtype, best.scores.dtype) == (np.int64, np.float32)
        np.testing.assert_array_equal(best.rows, expected.rows)
        np.testing.assert_array_equal(best.scores, expected.scores)


ROWS = (
    "normal", "equal", "few distinct", "nudged", "one direction", "huge row", "mixed lengths", "mean apart", "zeros",
)  # fmt: skip
CODES = ("normal", "rank one", "equal", "opposed", "zeros", "some zero", "denormal", "one sharp")


@dataclass
class Pool:
    kind: str
    n: int
    d: int
    dtype: type
    scale: float

    def matrix(self, rng: np.random.Generator) -> NDArray[Any]:
        rows = rng.normal(size=(self.n, self.d)) / np.sqrt(self.d)
        if self.kind == "equal":
            rows[:] = rows[0]
        elif self.kind == "few distinct":
            rows = rows[rng.integers(min(5, self.n), size=self.n)]
        elif self.kind == "nudged":  # less apart than bytes, 16 bits, or float32 can tell
            rows = rows[0] * (1 + 10.0 ** -rng.integers(3, 8) * rng.normal(size=rows.shape))
        elif self.kind == "one direction":
            rows = rng.normal(size=(self.n, 1)) * rows[0]
        elif self.kind == "huge row":
            rows[rng.integers(self.n)] *= 1e3
        elif self.kind == "mixed lengths":
            rows *= 10.0 ** rng.integers(-4, 3, size=(self.n, 1))
        elif self.kind == "mean apart":
            rows += 20 * rng.normal(size=self.d) / np.sqrt(self.d)
        elif self.kind == "zeros":
            rows[rng.random(self.n) < 0.7] = 0
        return np.clip(rows * self.scale, -60_000, 60_000).astype(self.dtype)


def codes_of(kind: str, m: int, d: int, scale: float, rng: np.random.Generator) -> NDArray[np.float32]:
    codes = rng.normal(size=(m, d)) / np.sqrt(d)
    if kind == "rank one":
        codes = rng.normal(size=(m, 1)) * codes[0]
    elif kind == "equal":
        codes[:] = codes[0]
    elif kind == "opposed":
        codes[1:] = -codes[0]
    elif kind == "zeros":
        codes[:] = 0
    elif kind == "some zero":
        codes[rng.random(m) < 0.5] = 0
    elif kind == "denormal":
        codes *= 1e-40
    elif kind == "one sharp":
        codes[0] *= 50
    return (codes * scale).astype(np.float32)


pools = st.builds(
    Pool, st.sampled_from(ROWS), st.integers(1, 400), st.sampled_from((1, 3, 16, 40)),
    st.sampled_from((np.float16, np.float32)), st.sampled_from((1.0, 1e-6, 30.0)),
)  # fmt: skip
Wanted = tuple[str, int, float, int, float | None]  # kind, M, scale and k, and the share of rows allowed
asked = st.lists(
    st.tuples(
        st.sampled_from(CODES),
        st.sampled_from((1, 3, 8, 17, 64)),
        st.sampled_from((1.0, 20.0, 1e-3)),
        st.sampled_from((0, 1, 3, 10, 30, 1000)),
        st.sampled_from((None, 0.0, 0.1, 0.5, 0.95, 1.0)),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=cases(150), deadline=None)
@given(pools, asked, st.integers(0, 2**32 - 1))
def test_equals_scoring_every_row(pool: Pool, wanted: list[Wanted], seed: int) -> None:
    """Several contexts with their own M, k and allowed rows in one pass over every kind of pool."""
    rng = np.random.default_rng(seed)
    queries = [
        Query(codes_of(kind, m, pool.d, scale, rng), k, None if share is None else rng.random(pool.n) < share)
        for kind, m, scale, k, share in wanted
    ]
    assert_exact(pool.matrix(rng), queries)


numbers = st.one_of(st.none(), st.tuples(st.sampled_from(list(VALUES)), st.sampled_from(LATE_WEIGHTS)))


@settings(max_examples=cases(250), deadline=None)
@given(pools, st.lists(st.tuples(asked.map(lambda several: several[0]), numbers), min_size=1, max_size=5), st.data())
def test_with_additions_equals_scoring_every_row(
    pool: Pool, wanted: list[tuple[Wanted, tuple[str, float] | None]], data: st.DataObject
) -> None:
    """Queries with additions of their own and queries without any share a pass."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    queries = [
        Query(
            codes_of(kind, m, pool.d, scale, rng),
            k,
            None if share is None else rng.random(pool.n) < share,
            None if added is None else additions_of(*added, pool.n, rng),
        )
        for (kind, m, scale, k, share), added in wanted
    ]
    assert_exact(pool.matrix(rng), queries)


@pytest.mark.parametrize("d", [64, 384, 1024])
@pytest.mark.parametrize("kind", VALUES)
def test_with_additions_equals_brute_force_in_float64(d: int, kind: str) -> None:
    for seed, late_weight in enumerate(LATE_WEIGHTS):
        rng = np.random.default_rng(seed)
        matrix = (rng.normal(size=(900, d)) / np.sqrt(d) + rng.normal(size=d) / np.sqrt(d)).astype(np.float16)
        matrix[rng.integers(900, size=200)] = matrix[rng.integers(20, size=200)]
        queries = [
            Query(
                (rng.normal(size=(8, d)) / np.sqrt(d) * 20).astype(np.float32),
                10,
                None if share is None else rng.random(900) < share,
                None if added is None else additions_of(added, late_weight, 900, rng),
            )
            for added in (kind, None)
            for share in (None, 0.6)
        ]
        for query, best in zip(queries, QuantisedScan(matrix).top_k(queries), strict=True):
            scores = paper_scores(matrix, query.codes, query.additions)
            rows = np.arange(900) if query.allowed is None else np.flatnonzero(query.allowed)
            rows = rows[np.lexsort((rows, -scores[rows]))][:10]
            np.testing.assert_array_equal(best.rows, rows)
            np.testing.assert_array_max_ulp(best.scores, scores[rows], maxulp=1)


@settings(max_examples=cases(30), deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from((1e12, 1e-12, 1e-38, 1e-42, 1e-44)))
def test_lengths_at_the_ends_of_float32(seed: int, scale: float) -> None:
    """Sums stay finite in float32; the products of denormal rows are flushed to zero in places, and stay ordered."""
    rng = np.random.default_rng(seed)
    long, short = rng.normal(size=(150, 16)), rng.normal(size=(4, 16))
    assert_exact((long * scale).astype(np.float32), [Query(short.astype(np.float32), 10)])
    assert_exact(long.astype(np.float32), [Query((short * scale).astype(np.float32), 10)])


@pytest.mark.parametrize("seed", range(10))
def test_rows_that_bytes_put_in_the_wrong_order(seed: int) -> None:
    """Some of the best rows are behind others by their bytes; only the error bound keeps them."""
    rng = np.random.default_rng(seed)
    d, n = 64, 300
    code = rng.normal(size=d).astype(np.float32)
    rows = rng.normal(size=(n, d)) * 0.02
    rows += ((1 + 1e-4 * rng.normal(size=n) - rows @ code) / (code @ code))[:, None] * code  # every product is nearly 1
    matrix = rows.astype(np.float32)
    query = Query(code[None], 5)
    best = brute_force(matrix, query).rows
    pool = quantised_rows.QuantisedRows.of(matrix)
    centred = (pool.bytes.astype(float) - product.ZERO) * pool.steps.repeat(BLOCK_ROWS)[:n, None]
    approximate = (centred + pool.mean) @ code
    assert (np.argsort(np.argsort(-approximate))[best] >= 5).any(), "or this shows nothing"
    assert_exact(matrix, [query])


def assert_bounded(matrix: NDArray[Any], codes: NDArray[np.float32]) -> None:
    """Check that the bound of every row and code is at least their product."""
    rows = quantised_rows.QuantisedRows.of(matrix)
    packed = quantised_rows.QuantisedCodes.of([code[None] for code in codes], rows.mean)
    exact = matrix.astype(float) @ codes.astype(float).T  # (N, M)
    bounds = product.ByteProduct(packed.bytes, len(codes), *quantised_rows.upper_bounds(rows, packed))
    for start in range(0, len(matrix), BLOCK_ROWS):
        own = slice(start, start + BLOCK_ROWS)
        assert (bounds.largest(rows.bytes[own], start // BLOCK_ROWS) >= exact[own]).all(), (start, matrix.shape)


@pytest.mark.parametrize("kind", ROWS)
def test_bounds_are_above_every_product(kind: str) -> None:
    """In one to three dimensions residuals are often parallel to what they are multiplied by, and bounds have no slack.

    No row here or below is above the threshold by another's product: each has its own.
    """
    for seed in range(6):
        rng = np.random.default_rng(seed)
        for d in (1, 2, 3):
            matrix = Pool(kind, 2 * BLOCK_ROWS, d, np.float32, 1.0).matrix(rng)
            assert_bounded(matrix, codes_of("normal", 8, d, 20.0, rng))


def test_bounds_of_a_code_that_bytes_cannot_hold() -> None:
    """Rows are exact in bytes, and parallel to the part of the code that its bytes lose."""
    axes = np.array([[0, 1], [0, -1]] * 8, np.float32)
    assert_bounded(axes, np.array([[1, (at + 0.45) / 127] for at in range(8)], np.float32))
    assert_bounded(axes, np.array([[1, -(at + 0.45) / 127] for at in range(8)], np.float32))


def test_bounds_of_sums_that_float32_cannot_hold() -> None:
    """Sums of 6000 products of the largest bytes exceed 2^24, and float32 does not hold every integer above that."""
    rng = np.random.default_rng(0)
    signs = np.repeat([[1], [-1]], 16, axis=0)
    matrix = (signs * np.ones((32, 6000)) * 0.7137).astype(np.float32)
    assert_bounded(matrix, np.repeat(rng.uniform(0.1, 1, size=(40, 1)), 6000, axis=1).astype(np.float32))


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which is added how many rows a scan in bytes scores, each time."""
    counts: list[int] = []
    closed_form = quantised.closed_form
    monkeypatch.setattr(quantised, "closed_form", lambda s: (counts.append(s.shape[1]), closed_form(s))[1])
    return counts


def test_most_rows_are_left_out_where_bounds_can_tell(scored: list[int]) -> None:
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(4000, 32)).astype(np.float16)
    assert_exact(matrix, [Query((rng.normal(size=(1, 32)) * 3).astype(np.float32), 5)])
    assert 5 <= sum(scored) < 40
    assert max(scored) <= 7, "so many at a time"


@pytest.mark.parametrize("kind", ["a few rows", "half of the rows", "a tail", "negative", "a little for each"])
def test_most_rows_are_left_out_whatever_is_added(kind: str, scored: list[int]) -> None:
    """Rows with large numbers must not make all others survive."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(4000, 32)).astype(np.float16)
    codes = (rng.normal(size=(1, 32)) / 3).astype(np.float32)
    assert_exact(matrix, [Query(codes, 5, None, additions_of(kind, 1.0, 4000, rng))])
    assert 5 <= sum(scored) < 40
    assert max(scored) <= 7, "so many at a time"


def test_a_row_that_is_best_for_what_is_added_is_found_wherever_it_lies() -> None:
    """No sample shows it, and its late score is the least of all."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(3000, 16)).astype(np.float16)
    codes = rng.normal(size=(3, 16)).astype(np.float32)
    late = scores_of(matrix, codes)
    for far in range(-1, 40, 3):
        row = int(np.argsort(late)[0]) if far < 0 else int(rng.integers(3000))
        values = np.zeros(3000, np.float32)
        values[row] = 2 * (late.max() - late.min())
        query = Query(codes, 3, None, Additions(1.0, values))
        assert brute_force(matrix, query).rows[0] == row
        assert_exact(matrix, [query])


def test_a_pool_that_bounds_cannot_tell_apart_is_scanned_by_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another context in the same pass, whose rows differ, is still pruned."""
    plain: list[int] = []
    of = quantised.PlainScan.of
    monkeypatch.setattr(
        quantised.PlainScan, "of", lambda self, query: (plain.append(len(query.codes)), of(self, query))[1]
    )
    rng = np.random.default_rng(1)
    matrix = (rng.normal(size=(3000, 16)) / 4).astype(np.float16)
    flat = Query((rng.normal(size=(64, 16)) * 0.01).astype(np.float32), 10)
    sharp = Query((rng.normal(size=(8, 16)) * 20).astype(np.float32), 10)
    assert_exact(matrix, [flat, sharp, replace(flat, allowed=rng.random(3000) < 0.9)])
    assert plain == [64, 64]


def test_contexts_that_do_not_fit_share_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised, "PASS_CODES", 20)
    rng = np.random.default_rng(2)
    matrix = rng.normal(size=(300, 8)).astype(np.float32)
    queries = [Query(rng.normal(size=(m, 8)).astype(np.float32), 4) for m in (8, 9, 30, 1, 1, 16)]
    assert_exact(matrix, queries)
    for most, sizes in ((9, [[8, 9], [30], [1, 1], [16]]), (1, [[8], [9], [30], [1], [1], [16]])):
        assert [[len(each.codes) for each in group] for group in quantised._groups(queries, most)] == sizes


def test_small_pools_and_old_processors_have_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    matrix = rng.normal(size=(quantised.LEAST_ROWS, 16)).astype(np.float16)
    monkeypatch.setitem(product._timed_again_at, 16, np.inf)  # no timing decides here
    assert isinstance(prepare(matrix), QuantisedScan)
    assert not isinstance(prepare(matrix, with_bytes=False), QuantisedScan)
    few = prepare(matrix[:-1])
    monkeypatch.setattr(product, "multiplies_bytes", lambda: False)
    product.refusal.cache_clear()
    for scan, rows in ((few, matrix[:-1]), (prepare(matrix), matrix)):
        assert not isinstance(scan, QuantisedScan)
        for share in (0.1, 0.9):
            query = Query(rng.normal(size=(3, 16)).astype(np.float32), 5, rng.random(len(rows)) < share)
            [best] = scan.top_k([query])
            np.testing.assert_array_equal(best.rows, brute_force(rows, query).rows)
    assert prepare(matrix[:0]).top_k([Query(np.ones((1, 16), np.float32), 3)])[0].rows.shape == (0,)
    assert prepare(matrix).top_k([]) == []
    product.refusal.cache_clear()


DIMS = (64, 384, 512, 768, 1024, 4096)
ENDS = ("normal", "ends", "one sign", "sparse")


def at_the_ends(kind: str, n: int, d: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw vectors (n, d) of which, but for "normal", every byte is at an end of its range or 0."""
    if kind == "normal":
        return (rng.normal(size=(n, d)) / np.sqrt(d)).astype(np.float32)
    signs = rng.choice([-1, 1], size=(n, d))
    if kind == "one sign":
        signs = np.where(rng.random((n, d)) < 2 / d, -1, 1) * rng.choice([-1, 1], size=(n, 1))
    elif kind == "sparse":
        signs[rng.random((n, d)) < 0.9] = 0
    return (signs / np.sqrt(d)).astype(np.float32)


@pytest.mark.parametrize("multiplier", [OpenVinoProduct, TorchProduct])
@pytest.mark.parametrize("d", DIMS)
@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 204), marks=pytest.mark.soak)], ids=["few", "many"])
def test_every_dimension_equals_scoring_every_row(
    d: int, seeds: range, multiplier: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product, "multiplying_library", lambda: product.Library("one of two", multiplier))
    for seed in seeds:
        rng = np.random.default_rng(seed)
        kind = ENDS[seed % len(ENDS)]
        dtype = (np.float16, np.float32)[seed // len(ENDS) % 2]
        matrix = at_the_ends(kind, 300, d, rng).astype(dtype)
        codes = [at_the_ends(ENDS[int(rng.integers(len(ENDS)))], m, d, rng) * np.float32(10) for m in (1, 5, 16)]
        assert_exact(matrix, [Query(each, 10) for each in codes])


class RoundingProduct:
    """Stands in for a library's product: rounds sums of unsigned bytes to float32, as with AMX, or worse.

    bits: of a sum that rounding keeps; 24 are float32's. added: to every product, of so many contexts alone if `of`.
    """

    def __init__(
        self, codes: NDArray[np.int8], contexts: int, bits: int = 24, added: float = 0.0, of: int | None = None
    ) -> None:
        self._codes, self._contexts, self._bits = codes.astype(float), contexts, bits
        self._added = added if of in (None, contexts) else 0.0

    def largest(
        self, rows: NDArray[np.uint8], factors: NDArray[np.float32], terms: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        sums = rows.astype(float) @ self._codes.T
        unit = np.exp2(np.ceil(np.log2(np.maximum(np.abs(sums), 1))) - self._bits)
        found = (np.round(sums / unit) * unit + self._added).astype(np.float32) * factors + terms
        return found.reshape(len(rows), self._contexts, -1).max(axis=2)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return a function that puts a RoundingProduct, with its arguments, in the place of every library."""

    def replace_by(**rounds: float) -> None:
        product.refusal.cache_clear()
        stands_in = product.Library("a stand-in", partial(RoundingProduct, **rounds))
        monkeypatch.setattr(product, "multiplying_library", lambda: stands_in)

    monkeypatch.setattr(product, "_is_fast", lambda _: True)
    yield replace_by
    product.refusal.cache_clear()


StandIn = Callable[..., None]


@pytest.mark.parametrize("contexts", [1, 2])
def test_a_library_that_is_wrong_for_few_contexts_alone_is_refused(stand_in: StandIn, contexts: int) -> None:
    stand_in(added=-(2.0**20), of=contexts)
    assert "wrong" in (product.refusal(64) or "")


@pytest.mark.parametrize("d", DIMS)
def test_an_operator_that_rounds_long_sums_to_float32_is_used_and_the_answers_stay_exact(
    stand_in: StandIn, d: int
) -> None:
    stand_in()
    assert product.refusal(d) is None
    for kind in ENDS:
        rng = np.random.default_rng(d)
        assert_exact(at_the_ends(kind, 200, d, rng), [Query(at_the_ends("normal", 8, d, rng) * np.float32(10), 5)])


@pytest.mark.parametrize("d", DIMS)
def test_an_operator_that_rounds_more_is_refused(stand_in: StandIn, d: int) -> None:
    for bits in (8, 11, 16, 20):  # 8: bfloat16; 11: float16
        stand_in(bits=bits)
        assert "wrong" in (product.refusal(d) or ""), bits
    most = product.largest_error(d, np.ones(1), np.full(1, 128.0 * 127 * d))[0]
    stand_in(added=1.0 + 2 * most)
    assert "wrong" in (product.refusal(d) or "")
    stand_in(added=-1.0 - 2 * most)
    assert "wrong" in (product.refusal(d) or "")


def test_products_must_be_exact_where_float32_holds_every_sum(stand_in: StandIn) -> None:
    stand_in(added=1.0)
    assert "wrong" in (product.refusal(518) or ""), "though the bounds would cover it"
    assert product.refusal(519) is None


def test_bounds_of_sums_that_an_operator_rounds(stand_in: StandIn) -> None:
    """Rows and codes are whole numbers that bytes hold, so there is hardly any slack but for the operator's rounding.

    The products are small. The sums of unsigned bytes are above 2^27, where float32 holds multiples of 16.
    """
    stand_in()
    rng, d = np.random.default_rng(0), 8448
    matrix = np.zeros((2 * BLOCK_ROWS, d), np.float32)
    for row in matrix[::2]:
        row[rng.choice(d, 20, replace=False)] = [127, -127, *rng.choice([-1, 1], size=18)]
    matrix[1::2] = -matrix[::2]  # their mean is 0
    assert_bounded(matrix, 127 - rng.integers(0, 2, size=(8, d)).astype(np.float32))
