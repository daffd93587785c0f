"""What stands for true and false."""

import pytest

from polyrank.index_builder.pool.truth import are_true_and_false, is_false


@pytest.mark.parametrize("cell", ["false", "FALSCH", " Non ", "hayır", "HAYIR", "いいえ", "НЕТ", "0", "0.0", "n"])
def test_a_no_is_false(cell: str) -> None:
    assert is_false(cell)


@pytest.mark.parametrize("cell", ["true", "WAHR", "oui", "1", "none", "", "falsch verbunden", "00"])
def test_nothing_else_is(cell: str) -> None:
    assert not is_false(cell)


def test_both_words_are_of_one_language() -> None:
    assert are_true_and_false({"ja", "nein"})
    assert are_true_and_false({"JA", "nej"})
    assert not are_true_and_false({"ja", "non"})
    assert not are_true_and_false({"ja"})
    assert not are_true_and_false({"nein", "no"})
