import pytest

from polyrank.index_builder.index.choice import (
    HNSW_BYTES,
    MEASURED_FROM,
    SQ_BYTES,
    SearchTimes,
    check_factory,
    choose_index,
    needs_times,
)
from polyrank.index_builder.names import KINDS
from polyrank.model.errors import InvalidInput

SCAN_IS_FAST = SearchTimes(10.0, 7.01)
HNSW_IS_FAST = SearchTimes(10.0, 7.0)


def kind(count: int, dim: int = 384, times: SearchTimes | None = HNSW_IS_FAST) -> str:
    return choose_index("auto", count, dim, times).kind


def test_auto_scans_small_pools_and_indexes_larger_ones_in_ever_less_memory() -> None:
    assert (kind(MEASURED_FROM - 1), kind(MEASURED_FROM)) == ("exact", "hnsw")
    most = HNSW_BYTES // (4 * 384 + 256)
    assert (kind(most), kind(most + 1)) == ("hnsw", "ivf")
    most = SQ_BYTES // (384 + 8)
    assert (kind(most), kind(most + 1)) == ("ivf", "ivfpq")


def test_hnsw_must_take_at_most_seven_tenths_of_the_scans_time() -> None:
    assert (kind(10**5, times=SCAN_IS_FAST), kind(10**5, times=HNSW_IS_FAST)) == ("exact", "hnsw")
    assert kind(10**5, times=None) == "exact"


def test_times_decide_only_between_the_scan_and_hnsw() -> None:
    most = HNSW_BYTES // (4 * 384 + 256)
    for index, count, needed in (
        ("auto", MEASURED_FROM - 1, False),
        ("auto", MEASURED_FROM, True),
        ("auto", most, True),
        ("auto", most + 1, False),
        ("hnsw", MEASURED_FROM, False),
    ):
        assert needs_times(index, count, 384) == needed
        assert choose_index(index, count, 384, SCAN_IS_FAST).times == (SCAN_IS_FAST if needed else None)


def test_in_a_larger_pool_the_scan_takes_longer_and_hnsw_a_little() -> None:
    grown = SearchTimes(10.0, 9.0).grown(20_000, 200_000)
    assert grown.exact_ms == pytest.approx(10 * 10**0.82, abs=1e-3)
    assert 9 < grown.hnsw_ms < 12
    assert grown.ratio < 0.2
    assert grown.grown(200_000, 20_000) == SearchTimes(10.0, 9.0)


def test_longer_vectors_leave_less_room_for_links() -> None:
    count = HNSW_BYTES // (4 * 768 + 256) + 1
    assert (kind(count, 384), kind(count, 768)) == ("hnsw", "ivf")


def test_a_named_kind_is_taken_whatever_the_size() -> None:
    assert choose_index("hnsw", 1, 8).factory == "HNSW32"
    assert choose_index("flat", 10**9, 8).factory == "Flat"
    assert choose_index("exact", 10**9, 8).factory is None


@pytest.mark.parametrize(
    ("count", "factory"),
    [(1, "IVF1,SQ8"), (100, "IVF2,SQ8"), (10_000, "IVF256,SQ8"), (262_144, "IVF2048,SQ8"), (10**6, "IVF4096,SQ8")],
)
def test_lists_grow_with_the_root_of_the_pool_and_can_be_trained(count: int, factory: str) -> None:
    assert choose_index("ivf", count, 384).factory == factory


@pytest.mark.parametrize(("dim", "parts"), [(384, 48), (768, 96), (100, 20), (13, 13), (4, 1), (12, 2)])
def test_vectors_are_cut_into_equal_parts(dim: int, parts: int) -> None:
    assert choose_index("ivfpq", 10_000, dim).factory == f"OPQ{parts},IVF256,PQ{parts}"


def test_a_pool_too_small_to_train_quantizers_is_refused() -> None:
    with pytest.raises(InvalidInput, match="--index ivfpq needs at least 256 candidates, and the pool has 255"):
        choose_index("ivfpq", 255, 384)


def test_anything_else_is_a_factory_string() -> None:
    chosen = choose_index("IVF7,Flat", 7, 8)
    assert (chosen.kind, chosen.factory, chosen.params) == ("custom", "IVF7,Flat", {})


@pytest.mark.parametrize("index", [
    *KINDS, "Flat", "HNSW32", "IVF1024,SQ8", "IVF1024,PQ48",
    "OPQ48,IVF1024,PQ48", "PCA64,IVF16,Flat", "IVF8,PQ48,RFlat",
])  # fmt: skip
def test_kinds_and_factory_strings_are_taken(index: str) -> None:
    check_factory(index, 384)


@pytest.mark.parametrize(("index", "why"), [
    ("hnws", "no FAISS factory string for 384 dimensions: could not parse index string hnws"),
    ("", "could not parse index string"),
    ("IVF16,PQ50", "384 dimensions: The dimension of the vector .d. should be a multiple"),
    ("OPQ7,IVF16,PQ48", "384 dimensions: OPQ7 does not divide 384"),
    ("PCA500,Flat", "384 dimensions: 500 of 384 cannot be kept"),
    ("IVF0,Flat", "nprobe"),
    ("IDMap,Flat", "add does not make sense"),
    ("HNSW16,PQ48", "that searches by inner product"),
    ("LSH", "METRIC_L2"),
    ("IVF99999999999999999999,Flat", "stoi"),
])  # fmt: skip
def test_what_cannot_be_built_is_refused_in_one_line(index: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as caught:
        check_factory(index, 384)
    assert f"--index {index!r} is none of auto, exact, flat, hnsw, ivf, ivfpq and no FAISS factory string" in str(
        caught.value
    )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("factory", "needed"),
    [("IVF1000,SQ8", 1000), ("IVF4,PQ8", 256), ("OPQ8,IVF300,PQ8", 300), ("IVF4,PQ8x4", 16), ("PQ8x10", 1024)],
)
def test_too_few_rows_to_train_are_noticed_before_training(factory: str, needed: int) -> None:
    choose_index(factory, needed, 64)
    with pytest.raises(InvalidInput, match=f"--index {factory} needs at least {needed} candidates, and the pool has 3"):
        choose_index(factory, 3, 64)


@pytest.mark.parametrize("kind", ["exact", "flat", "hnsw", "ivf"])
@pytest.mark.parametrize("count", [1, 38, 100, 100_000])
def test_the_kinds_fit_themselves_to_any_pool(kind: str, count: int) -> None:
    assert choose_index(kind, count, 384).kind == kind
