"""`rank` as a notebook calls it, of both kinds of model."""

from pathlib import Path

import pytest
from tiny import write_base

import polyrank
from polyrank.model.errors import InvalidInput


@pytest.fixture(params=["bi", "cross"])
def ranker(request: pytest.FixtureRequest, tmp_path: Path) -> polyrank.LateRanker | polyrank.CrossRanker:
    config = polyrank.ModelConfig(
        architecture=request.param, base_name="", max_context_tokens=40, max_candidate_tokens=16
    )
    return polyrank.from_base(str(write_base(tmp_path / "base", 0)), config)


@pytest.mark.parametrize("top_k", [0, -1])
def test_fewer_than_one_place_is_refused(ranker: polyrank.LateRanker | polyrank.CrossRanker, top_k: int) -> None:
    with pytest.raises(InvalidInput, match="at least 1"):
        ranker.rank("w1", ["w2", "w3"], top_k=top_k)


def test_one_string_is_not_taken_for_a_text_a_letter(ranker: polyrank.LateRanker | polyrank.CrossRanker) -> None:
    with pytest.raises(InvalidInput, match="must be a list"):
        ranker.rank("w1", "w2")


def test_a_persona_of_one_text_is_one_fact(ranker: polyrank.LateRanker | polyrank.CrossRanker) -> None:
    assert ranker.rank("w1", ["w2", "w3"], persona="w4 w5") == ranker.rank("w1", ["w2", "w3"], persona=["w4 w5"])
    assert ranker.rank("w1", ["w2", "w3"], persona="w4 w5") != ranker.rank("w1", ["w2", "w3"], persona=["w4", "w5"])
