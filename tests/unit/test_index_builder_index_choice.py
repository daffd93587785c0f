import pytest

from index_builder.index_choice import SCAN_LIMIT, choose_index
from model.errors import InvalidInput


def test_auto_scans_small_pools_and_indexes_large_ones() -> None:
    assert choose_index("auto", SCAN_LIMIT).kind == "exact"
    assert choose_index("auto", SCAN_LIMIT + 1).kind == "hnsw"


def test_a_named_kind_is_taken_whatever_the_size() -> None:
    assert choose_index("hnsw", 1).factory == "HNSW32"
    assert choose_index("flat", 10**9).factory == "Flat"
    assert choose_index("exact", 10**9).factory is None


@pytest.mark.parametrize("kind", ["ivf", "", "HNSW"])
def test_other_kinds_are_refused(kind: str) -> None:
    with pytest.raises(InvalidInput, match="use one of auto, exact, flat, hnsw"):
        choose_index(kind, 1)
