"""Recipes: each value against what its paper says, and what is given goes before them."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import write_base
from tiny_training import run, write_examples

from polyrank.model.errors import InvalidInput
from polyrank.model.training.config import PretrainConfig, TrainConfig
from polyrank.model.training.loop import _optimizer
from polyrank.model.training.recipes import PRETRAINING_FILE, RECIPES
from polyrank.model.training.student import start

# Humeau et al. 5.1 and 5.2; "max tokens" are those of its code.
FINE_TUNED: dict[str, Any] = {
    "optimizer": "adamw", "weight_decay": 0.01, "learning_rate": 5e-5, "code_learning_rate": 5e-5,
    "schedule": "plateau", "looks": 2.0, "tune": "all-but-embeddings", "max_context_tokens": 360,
    "max_candidate_tokens": 72, "lora_rank": 0, "extra_replies": 0,
}  # fmt: skip
APART: dict[str, Any] = {
    "batch_size": 512, "negatives": 0, "warmup_steps": 100, "reduction": "first",
    "shared_encoder": False, "normalize": False, "score_scale": 1.0, "teacher": "", "output_like": "",
}  # fmt: skip
SAID: dict[tuple[str, str], dict[str, Any]] = {
    ("humeau2020", "bi"): {**FINE_TUNED, **APART},
    ("humeau2020", "poly"): {**FINE_TUNED, **APART, "context_vectors": "codes", "code_scale": 1.0},
    ("humeau2020", "cross"): {
        **FINE_TUNED, "batch_size": 16, "negatives": 19, "warmup_steps": 1000,
        "loss": "listwise", "first_stage": "", "retriever": "",
    },
    ("mixencoder2022", "mix"): {  # Yang et al. 3.1, 3.2 and A.1
        "learning_rate": 1e-5, "code_learning_rate": 1e-5, "schedule": "linear", "epochs": 50.0,
        "batch_size": 64, "negatives": 0, "tune": "all", "row_strategy": "inputs",
        "residual": False, "first_weight": 0.0, "score_scale": 1.0, "without": None,
    },
}  # fmt: skip


@pytest.mark.parametrize(("recipe", "architecture"), SAID)
def test_a_recipe_gives_what_the_paper_says(recipe: str, architecture: str) -> None:
    found = TrainConfig.of(architecture=architecture, base="b", recipe=recipe).to_dict()
    said = SAID[recipe, architecture]
    assert {name: found[name] for name in said} == said
    assert found["recipe"] == recipe


def test_pre_training_has_the_papers_settings() -> None:
    said = {  # 4.1
        "learning_rate": 2e-4, "code_learning_rate": 2e-4, "optimizer": "adamw",
        "weight_decay": 0.0, "beta2": 0.98, "schedule": "inverse-sqrt", "dropout": 0.1,
        "tune": "all", "mask_share": 0.15, "alternate": True, "batch_tokens": 32_000,
    }  # fmt: skip
    found = PretrainConfig.with_recipe(base="b", recipe="humeau2020").to_dict()
    assert {name: found[name] for name in said} == said
    given = PretrainConfig.with_recipe(base="b", recipe="humeau2020", alternate=False, batch_tokens=0, weight_decay=0.5)
    assert (given.alternate, given.batch_tokens, given.weight_decay) == (False, 0, 0.5)
    assert given.learning_rate == 2e-4
    assert PretrainConfig.with_recipe(base="b") == PretrainConfig(base="b")


def test_every_row_is_tested_and_every_setting_exists() -> None:
    rows = {(recipe, row) for recipe, settings in RECIPES.items() for row in settings}
    assert rows == {*SAID, ("humeau2020", "pretraining")}
    known = {*TrainConfig.options()} | {setting.name for setting in fields(PretrainConfig)}
    assert {name for recipe, row in rows for name in RECIPES[recipe][row]} <= known


@pytest.mark.parametrize(("recipe", "architecture"), SAID)
def test_what_is_given_goes_before_a_recipe(recipe: str, architecture: str) -> None:
    plain = TrainConfig.of(architecture=architecture, base="b", recipe=recipe)
    given = {"batch_size": 8, "learning_rate": 0.25, "warmup_steps": 3, "shared_encoder": True, "normalize": True}
    found = TrainConfig.of(architecture=architecture, base="b", recipe=recipe, **given)
    assert set(found.differences(plain.to_dict())) == {
        name for name, value in given.items() if value != plain.to_dict()[name]
    }
    assert {name: getattr(found, name) for name in given} == given


def test_the_defaults_are_no_recipe() -> None:
    assert TrainConfig.of(architecture="poly", base="b").recipe == ""
    assert TrainConfig.of(architecture="cross", base="b").warmup_steps == 100
    mix = TrainConfig.of(architecture="mix", base="b", recipe="mixencoder2022", residual=True, first_weight=1.0)
    assert mix.to_dict()["residual"]


@pytest.mark.parametrize(("fields", "says"), [
    ({"recipe": "humeau2021"}, "recipe is 'humeau2021'; give humeau2020 or mixencoder2022"),
    ({"recipe": "humeau2020", "architecture": "mix"}, "humeau2020 is for bi, poly, cross, pretraining, not for mix"),
    ({"recipe": "mixencoder2022"}, "recipe mixencoder2022 is for mix, not for poly"),
])  # fmt: skip
def test_a_recipe_that_does_not_fit_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput) as told:
        TrainConfig.of(**{"architecture": "poly", "base": "b", **fields})
    assert says in str(told.value)


@pytest.mark.parametrize(("optimizer", "decay"), [("adamw", 0.01), ("adamax", 0.0)])
@pytest.mark.parametrize("recipe", ["", "humeau2020"])
def test_adamax_has_no_decay_unless_one_is_given(tmp_path: Path, recipe: str, optimizer: str, decay: float) -> None:
    base = str(write_base(tmp_path / "base", 0))
    sizes = {"max_context_tokens": 40, "max_candidate_tokens": 16}
    for given, expected in (({}, decay), ({"weight_decay": 0.3}, 0.3)):
        config = TrainConfig.of(architecture="poly", base=base, recipe=recipe, optimizer=optimizer, **sizes, **given)
        made = _optimizer(start(config), config)
        assert isinstance(made, torch.optim.AdamW if optimizer == "adamw" else torch.optim.Adamax)
        assert [group["weight_decay"] for group in made.param_groups] == [expected, 0.0, expected]
        assert {group["betas"] for group in made.param_groups} == {(0.9, 0.999)}


@pytest.mark.parametrize("architecture", ["bi", "poly", "cross"])
def test_weights_of_our_own_pre_training_are_tuned_as_the_papers_own(tmp_path: Path, architecture: str) -> None:
    """5.3: Adamax, all layers, and outputs re-scaled to BERT's."""
    (tmp_path / PRETRAINING_FILE).write_text(json.dumps({"settings": {"base": "bert"}}))
    found = TrainConfig.of(architecture=architecture, base=str(tmp_path), recipe="humeau2020")
    assert (found.optimizer, found.weight_decay, found.tune) == ("adamax", 0.0, "all")
    assert getattr(found, "output_like", "bert") == "bert"
    given = TrainConfig.of(architecture=architecture, base=str(tmp_path), recipe="humeau2020", optimizer="adamw")
    assert (given.optimizer, given.weight_decay) == ("adamw", 0.01)
    assert TrainConfig.of(architecture=architecture, base=str(tmp_path)).optimizer == "adamw"


@pytest.mark.parametrize(("recipe", "architecture"), SAID)
def test_a_recipe_trains(tmp_path: Path, recipe: str, architecture: str) -> None:
    base, data = write_base(tmp_path / "base", 0), write_examples(tmp_path / "data.jsonl")
    config = TrainConfig.of(
        architecture=architecture,
        base=str(base),
        recipe=recipe,
        steps=2,
        max_context_tokens=40,
        max_candidate_tokens=16,
        precision="no",
    )
    ranker, seen = run(config, data, tmp_path / "out")
    assert len(seen.losses) == 2
    told = ranker.config.training["settings"]
    assert told["recipe"] == recipe
    assert TrainConfig.of(**told) == config
    if architecture != "cross":
        assert (ranker.config.score_scale, ranker.config.shared_encoder) == (1.0, architecture == "mix")
    if architecture in ("bi", "poly"):
        assert (ranker.config.normalize, ranker.config.reduction) == (False, "first")
