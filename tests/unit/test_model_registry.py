"""The table of architectures: every row resolves, and says of its encoder what is true."""

from pathlib import Path
from pkgutil import resolve_name

import pytest
from tiny import write_base

import polyrank
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.architectures.late import LateEncoder
from polyrank.model.config import ModelConfig
from polyrank.model.errors import InvalidInput
from polyrank.model.registry import ARCHITECTURES, trainable
from polyrank.model.training.config import TrainConfig, settings_of
from polyrank.model.training.objective import Objective


def test_only_the_lexical_row_has_no_network() -> None:
    assert {name for name, row in ARCHITECTURES.items() if row.encoder is None} == {"lexical"}
    assert set(ARCHITECTURES) - set(trainable()) == {"lexical"}
    assert not ARCHITECTURES["lexical"].embeds
    with pytest.raises(InvalidInput, match=f"architecture is 'lexical'; give {', '.join(trainable())}"):
        TrainConfig.of(architecture="lexical", base="b")


@pytest.mark.parametrize("name", trainable())
def test_a_rows_references_lead_to_what_it_says(name: str) -> None:
    row = ARCHITECTURES[name]
    assert issubclass(resolve_name(row.encoder), LateEncoder if row.retrieves else CrossEncoder)
    assert issubclass(resolve_name(row.objective), Objective)
    assert issubclass(settings_of(name), resolve_name(row.settings))
    assert row.options is None or row.options.of == name


@pytest.mark.parametrize("name", trainable())
def test_a_ranker_can_do_what_its_row_says(name: str, tmp_path: Path) -> None:
    sizes = {"max_context_tokens": 40, "max_candidate_tokens": 16}
    config = ModelConfig(architecture=name, base_name="", **sizes)
    ranker = polyrank.from_base(str(write_base(tmp_path / "base", 0)), config)
    assert ranker.architecture == name
    assert ranker.retrieves == ARCHITECTURES[name].retrieves == hasattr(ranker, "encode_candidates")
    assert ranker.retrieves != hasattr(ranker, "score_pairs")
