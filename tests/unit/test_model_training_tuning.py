"""Which weights a run changes, and what its adapters are once they are saved."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_training import ranker_of, rows, run, scores, settings, write_examples
from torch import nn

import polyrank
from polyrank.model.errors import CheckpointInvalid, InvalidInput
from polyrank.model.training.student import Student, start
from polyrank.model.training.tuning import adapter_tensors, load_adapters

ARCHITECTURES = ("bi", "poly", "cross")


def trainable(base: Path, **fields: Any) -> set[str]:
    return set(start(settings(base, **fields)).trainable())


def all_names(base: Path, **fields: Any) -> set[str]:
    return {name for name, _ in start(settings(base, **fields)).encoder.named_parameters()}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_top_layers_and_what_was_drawn_at_random(base: Path, architecture: str) -> None:
    fields = {"architecture": architecture}
    own = {"bi": set(), "poly": {"code_vectors"}, "cross": {"head.weight", "head.bias"}}[architecture]
    names = all_names(base, **fields)
    assert trainable(base, **fields, tune="top-1") == {name for name in names if ".layer.1." in name} | own
    assert trainable(base, **fields, tune="top-2") == {name for name in names if ".layer." in name} | own


@pytest.mark.parametrize("tune", ["top-0", "top-3", "top-", "top-1x", "top--1", "none", ""])
def test_other_words_and_more_layers_than_there_are_are_refused(base: Path, tune: str) -> None:
    with pytest.raises(InvalidInput, match=r"give all, all-but-embeddings or top-(N, N layers|1 to top-2)$"):
        start(settings(base, tune=tune))


@pytest.mark.parametrize(("architecture", "shared"), [*product(ARCHITECTURES[:2], (False, True)), ("cross", False)])
@pytest.mark.parametrize("tune", ["all", "top-1"])
def test_adapters_alone_and_what_was_drawn_at_random(base: Path, architecture: str, shared: bool, tune: str) -> None:
    fields = {"architecture": architecture, "shared_encoder": shared}
    maps = {
        name.removesuffix(".weight")
        for name, each in start(settings(base, **fields)).encoder.named_parameters()
        if each.ndim == 2 and ".layer." in name and (tune == "all" or ".layer.1." in name)
    }
    own = {"bi": set(), "poly": {"code_vectors"}, "cross": {"head.weight", "head.bias"}}[architecture]
    towers = {"cross": 1}.get(architecture, 1 if shared else 2)
    assert len(maps) == towers * 6 * (1 if tune == "top-1" else 2)
    expected = {f"{name}.parametrizations.weight.0.{side}" for name in maps for side in "ab"}
    assert trainable(base, **fields, tune=tune, lora_rank=3) == expected | own


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_training_changes_what_it_should_and_nothing_else(base: Path, tmp_path: Path, architecture: str) -> None:
    before = start(settings(base, architecture=architecture, tune="top-1"))
    ranker, _ = run(
        settings(base, architecture=architecture, tune="top-1", steps=6),
        write_examples(tmp_path / "d.jsonl"),
        tmp_path / "o",
    )
    assert ranker.config.training["step"] > 0, "the best checkpoint is a trained one"
    wanted = set(before.trainable())
    after = ranker.encoder.state_dict()
    changed = {name for name, each in before.encoder.named_parameters() if not torch.equal(each, after[name])}
    assert changed <= wanted
    assert wanted - changed <= {"head.bias"}, "a listwise loss does not feel it: it moves all scores alike"


def test_dropout_is_set_everywhere_or_left_as_it_is(base: Path) -> None:
    def probabilities(dropout: float | None) -> set[float]:
        encoder = start(settings(base, dropout=dropout)).encoder
        return {module.p for module in encoder.modules() if isinstance(module, nn.Dropout)}

    assert probabilities(None) == {0.1}
    assert probabilities(0.0) == {0.0}
    assert probabilities(0.3) == {0.3}


def shaken(base: Path, **fields: Any) -> Student:
    """A student whose adapters are no longer zero."""
    student = start(settings(base, lora_rank=3, **fields))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in student.trainable().values():
            parameter += 0.1 * torch.randn_like(parameter)
    return student


@pytest.mark.parametrize(("architecture", "shared"), [*product(ARCHITECTURES[:2], (False, True)), ("cross", False)])
def test_saved_and_merged_adapters_score_as_those_in_training(
    base: Path, tmp_path: Path, architecture: str, shared: bool
) -> None:
    student = shaken(base, architecture=architecture, shared_encoder=shared)
    student.save(tmp_path / "out", {})
    merged = polyrank.load(tmp_path / "out")
    zero = scores(ranker_of(start(settings(base, lora_rank=3, architecture=architecture, shared_encoder=shared))))
    found, expected = scores(merged), scores(ranker_of(student))
    assert found == pytest.approx(expected, rel=2e-3, abs=1e-2)
    assert max(abs(one - other) for one, other in zip(zero, expected, strict=True)) > 0.1
    assert not any("parametrizations" in name for name, _ in merged.encoder.named_parameters())


def test_an_adapter_checkpoint_refers_to_its_base_and_is_small(base: Path, tmp_path: Path) -> None:
    student = shaken(base, architecture="poly")
    student.save(tmp_path / "out", {"step": 3})
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert {name.rpartition(".")[2] for name in tensors} == {"lora_A", "lora_B", "code_vectors"}
    assert {each.dtype for name, each in tensors.items() if "lora" in name} == {torch.float16}
    config = polyrank.load(tmp_path / "out").config
    assert (config.weights, config.base_name, len(config.base_sha256)) == ("adapter", str(base), 64)
    assert config.training == {"step": 3}
    (base / "model.safetensors").rename(base / "hidden")
    try:
        with pytest.raises(CheckpointInvalid, match="is missing"):
            polyrank.load(tmp_path / "out")
    finally:
        (base / "hidden").rename(base / "model.safetensors")


def test_adapters_of_another_rank_or_on_other_layers_are_refused(base: Path) -> None:
    student = start(settings(base, lora_rank=3))
    for fields in ({"lora_rank": 2}, {"lora_rank": 3, "tune": "top-1"}):
        other = adapter_tensors(start(settings(base, **fields)).encoder)
        with pytest.raises(CheckpointInvalid, match=f"have rank {fields['lora_rank']}: give --lora-rank"):
            load_adapters(student.encoder, other)


def test_the_toy_examples_are_no_repeats() -> None:
    """What other tests rely on: every example is kept."""
    found = rows(576)
    assert len({(*row["context"], row["response"]) for row in found}) == 576
