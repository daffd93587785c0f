import pytest

from polyrank.index_builder.index.choice import KINDS, IndexSpec, choose_index
from polyrank.index_builder.index.faiss_factory import check_factory, check_rows
from polyrank.model.errors import InvalidInput


@pytest.mark.parametrize(
    "index",
    [
        *KINDS,
        "Flat",
        "HNSW32",
        "IVF1024,SQ8",
        "IVF1024,PQ48",
        "OPQ48,IVF1024,PQ48",
        "PCA64,IVF16,Flat",
        "IVF8,PQ48,RFlat",
    ],
)
def test_kinds_and_factory_strings_are_taken(index: str) -> None:
    check_factory(index, 384)


@pytest.mark.parametrize(
    ("index", "why"),
    [
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
    ],
)
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
    check_rows(IndexSpec("custom", factory), needed, 64)
    with pytest.raises(InvalidInput, match=f"--index {factory} needs at least {needed} candidates, and the pool has 3"):
        check_rows(IndexSpec("custom", factory), 3, 64)


@pytest.mark.parametrize("kind", ["exact", "flat", "hnsw", "ivf"])
@pytest.mark.parametrize("count", [1, 38, 100, 100_000])
def test_the_kinds_fit_themselves_to_any_pool(kind: str, count: int) -> None:
    check_rows(choose_index(kind, count, 384), count, 384)
