"""The table of runs: each can be started, and is run once."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu.matrix import EXAMPLES, RUNS, config_of, left_to_do
from safetensors.torch import save_file
from tiny import write_base
from transformers import BertConfig, BertModel

from polyrank.model.errors import InvalidInput
from polyrank.model.training.student import start


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model with enough positions and layers for all runs."""
    base = write_base(tmp_path_factory.mktemp("matrix") / "base", seed=0)
    settings = json.loads((base / "config.json").read_text())
    config = BertConfig(**{**settings, "num_hidden_layers": 4, "max_position_embeddings": 128})
    (base / "config.json").write_text(json.dumps(config.to_dict()))
    save_file(BertModel(config, add_pooling_layer=False).state_dict(), str(base / "model.safetensors"))
    return base


def written(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def record(name: str, base: str = "elsewhere/base", **changed: Any) -> dict[str, Any]:
    return {"run": name, "settings": {**config_of(name, Path(base)).to_dict(), **changed}}


@pytest.mark.parametrize("name", RUNS)
def test_every_run_can_be_started(name: str, base: Path) -> None:
    student = start(config_of(name, base))
    assert student.trainable()


def test_a_run_with_a_result_is_skipped_wherever_the_base_lay(tmp_path: Path) -> None:
    results = written(tmp_path / "results.jsonl", record("poly-16"), record("bi"))
    assert list(left_to_do(["bi", "poly-64", "poly-16"], results, tmp_path, EXAMPLES)) == ["poly-64"]


def test_without_results_all_are_left(tmp_path: Path) -> None:
    assert list(left_to_do(list(RUNS), tmp_path / "none.jsonl", tmp_path, EXAMPLES)) == list(RUNS)


def test_a_result_of_other_settings_is_not_mixed_in(tmp_path: Path) -> None:
    results = written(tmp_path / "results.jsonl", record("bi", steps=3, seed=9))
    with pytest.raises(InvalidInput, match="bi with another seed, steps"):
        left_to_do(["bi"], results, tmp_path, EXAMPLES)
