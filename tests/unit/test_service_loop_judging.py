"""The gate over real models: what judges, and what is refused."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from command_line import write_rows
from loop_store import write_golden
from safetensors.torch import load_file, save_file
from tiny import write_checkpoint

from polyrank.model import measures
from polyrank.model.config import CalibrationConfig
from polyrank.model.errors import InvalidInput
from polyrank.model.rankers.load import load_retriever
from polyrank.model.rankers.networks import Retriever
from polyrank.service.loop import judging
from polyrank.service.loop.judging import Examples, golden_sets, judge, slowdown


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough to tell."""
    monkeypatch.setattr(measures, "RESAMPLES", 400)


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """An untrained model."""
    return write_checkpoint(tmp_path, "live", seed=0, architecture="bi")


def spoilt(live: Path, scale: float) -> Retriever:
    """The same with noise of that size in its weights."""
    weights = load_file(live / "model.safetensors")
    torch.manual_seed(1)
    noisy = {name: value + scale * value.std() * torch.randn_like(value) for name, value in weights.items()}
    save_file(noisy, live / "model.safetensors")
    return load_retriever(live)


def judged(tmp_path: Path, new: Retriever, live: Retriever, trained_on: list[Any] | None = None) -> dict[str, Any]:
    """The gate's word over a golden set."""
    golden = Examples.read(write_golden(tmp_path / "golden.jsonl", 200))
    assert golden is not None
    return judge(new, live, {"golden": golden}, write_rows(tmp_path / "train.jsonl", trained_on or []))


@pytest.mark.slow
def test_weights_with_noise_do_not_pass(tmp_path: Path, live: Path) -> None:
    before = load_retriever(live)
    found = judged(tmp_path, spoilt(live, 0.02), before)
    assert found["verdict"] in ("refused", "not enough evidence")
    assert found["sets"]["golden"]["conversations"] == 200


def test_scores_that_are_no_numbers_are_refused(tmp_path: Path, live: Path) -> None:
    before = load_retriever(live)
    found = judged(tmp_path, spoilt(live, float("inf")), before)
    assert found["verdict"] == "refused"
    assert "scores that are not finite numbers" in found["why"]


def test_a_golden_set_that_was_trained_on_judges_nothing(tmp_path: Path, live: Path) -> None:
    [line, *_] = Examples.read(write_golden(tmp_path / "golden.jsonl", 1)).listed
    said = {"context": [line.conversation.turns[0].text.upper()], "persona": ["a fact"], "response": "another"}
    model = load_retriever(live)
    found = judged(tmp_path, model, model, [said])
    assert found["verdict"] == "refused"
    assert found["why"] == "1 of 200 contexts of golden were trained on, so it judges nothing"


def test_bad_luck_while_it_is_timed_refuses_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine an equal model has seemed 1.15 times as slow over the first rounds."""
    took = {"new": iter([1.3] * 20 + [1.0] * 99), "live": iter([1.0] * 119), "slow": iter([1.2] * 119)}
    monkeypatch.setattr(judging, "_seconds", lambda model, _: next(took[model]))
    new, slow, live = (cast(Retriever, name) for name in ("new", "slow", "live"))
    assert slowdown(new, live, {}) == 1.0
    took["live"] = iter([1.0] * 119)
    assert slowdown(slow, live, {}) == 1.2


@pytest.mark.slow
def test_a_slow_model_is_refused(tmp_path: Path, live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_retriever(live)
    monkeypatch.setattr(judging, "judged", lambda _: ("passed", "it is better"))
    monkeypatch.setattr(judging, "SLOWEST", 0.01)
    found = judged(tmp_path, model, model)
    assert found["verdict"] == "refused"
    assert found["why"].startswith("reading contexts takes ")


@pytest.mark.slow
@pytest.mark.parametrize("calibrated", [("live",), ("new", "live"), ("new",)])
def test_a_model_without_the_calibration_that_the_live_one_has_is_refused(
    tmp_path: Path, live: Path, monkeypatch: pytest.MonkeyPatch, calibrated: tuple[str, ...]
) -> None:
    """Else a switch would have requests refused that ask for a decision."""
    models = {name: load_retriever(live) for name in ("new", "live")}
    for name in calibrated:
        models[name].calibration = CalibrationConfig(prior=0.1, slope=1.0, intercept=0.0)
    monkeypatch.setattr(judging, "judged", lambda _: ("passed", "it is better"))
    monkeypatch.setattr(judging, "SLOWEST", 1000.0)
    found = judged(tmp_path, models["new"], models["live"])
    assert found["verdict"] == ("refused" if calibrated == ("live",) else "passed")
    assert ("its scores are not calibrated" in found["why"]) == (calibrated == ("live",))


def test_without_a_set_there_is_no_evidence(tmp_path: Path, live: Path) -> None:
    model = load_retriever(live)
    assert judge(model, model, {}, tmp_path / "none")["verdict"] == "not enough evidence"
    assert Examples.read(write_rows(tmp_path / "empty.jsonl", [])) is None
    assert Examples.read(write_rows(tmp_path / "one.jsonl", [{"context": ["a"], "response": "b"}])) is None


def test_classes_are_no_rankings(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "classes.jsonl", [{"context": ["a"], "response": "b", "label": "right"}])
    with pytest.raises(InvalidInput, match="its labels are classes"):
        Examples.read(path)


@pytest.mark.parametrize("rows", [[], [{"context": ["a"], "response": "b"}]])
def test_a_golden_set_that_judges_nothing_is_refused_not_left_out(tmp_path: Path, rows: list[Any]) -> None:
    path = write_rows(tmp_path / "golden.jsonl", rows)
    with pytest.raises(InvalidInput, match=f"{path}: no example has a reply and candidates"):
        golden_sets([path])


def test_slices_are_those_of_the_lines_or_how_long_contexts_are(tmp_path: Path) -> None:
    def slices(*given: dict[str, Any]) -> list[str]:
        rows = [{"response": f"r{number}", **row} for number, row in enumerate(given)]
        examples = Examples.read(write_rows(tmp_path / "f.jsonl", rows))
        assert len(np.unique(examples.groups)) == len(rows)
        return list(examples.slices)

    turns = [{"context": [f"{count} {turn}" for turn in range(count)]} for count in (1, 2, 4, 5)]
    lengths = ["one turn", "two to four turns", "two to four turns", "five turns or more"]
    assert slices(*turns) == [f"the context has {length}" for length in lengths]
    assert slices({**turns[0], "group": "de"}, turns[1], {**turns[2], "group": 3}) == [
        "group is de", "there is no group", "group is 3",
    ]  # fmt: skip
