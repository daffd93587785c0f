"""Recipes: each value against what its paper says, and what is given goes before them.

Outputs of a model that is trained further begin with the spread of another model's (Humeau et al. 5.3).
"""

import json
import math
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from published import FAMILIES, write_json
from safetensors.torch import load_file, save_file
from tiny import CLS, DIM, SEP, word_ids, write_base, write_checkpoint
from tiny_training import identical, interrupted, run, settings, write_examples
from transformers import AutoModel

from polyrank.model.architectures.backbone import Backbone, TensorBatch
from polyrank.model.architectures.batching import pad
from polyrank.model.errors import InvalidInput, WrongKind
from polyrank.model.text.assembly import Conversation
from polyrank.model.training.config import PretrainConfig, TrainConfig
from polyrank.model.training.loop import _optimizer
from polyrank.model.training.recipes import PRETRAINING_FILE, RECIPES
from polyrank.model.training.student import Student, rescale, start

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


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "architecture"), SAID)
def test_a_recipe_trains(tmp_path: Path, recipe: str, architecture: str) -> None:
    base, data = write_base(tmp_path / "base", 0), write_examples(tmp_path / "data.jsonl")
    config = TrainConfig.of(
        architecture=architecture, base=str(base), recipe=recipe, steps=2, max_context_tokens=40,
        max_candidate_tokens=16, precision="no",
    )  # fmt: skip
    ranker, seen = run(config, data, tmp_path / "out")
    assert len(seen.losses) == 2
    told = ranker.config.training["settings"]
    assert told["recipe"] == recipe
    assert TrainConfig.of(**told) == config
    if architecture != "cross":
        assert (ranker.config.score_scale, ranker.config.shared_encoder) == (1.0, architecture == "mix")
    if architecture in ("bi", "poly"):
        assert (ranker.config.normalize, ranker.config.reduction) == (False, "first")


LAST_NORM = "encoder.layer.1.output.LayerNorm"
TEXTS = ["w1", "w2 w3 w4 w5", "w30 w31 w32 w33 w34 w35 w36 w37 w38"]
CONVERSATIONS = [Conversation.of(text) for text in TEXTS]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scaled(write_base(tmp_path_factory.mktemp("rescaling") / "base", seed=3), 1.0)


@pytest.fixture(scope="module")
def large(base: Path) -> Path:
    """The same model, whose last norm is 17 times as large: its outputs saturate the attention."""
    return scaled(write_base(base.parent / "large", seed=3), 17.0)


def scaled(base: Path, factor: float) -> Path:
    weights = load_file(base / "model.safetensors")
    weights[f"{LAST_NORM}.bias"] = 0.5 * torch.randn(DIM, generator=torch.Generator().manual_seed(2))
    for name in ("weight", "bias"):
        weights[f"{LAST_NORM}.{name}"] *= factor
    save_file(weights, base / "model.safetensors")
    return base


def spread(backbone: Backbone) -> float:
    """The standard deviation, in plain loops: of every component of every token of each text alone."""
    values = list[float]()
    for text in TEXTS:
        with torch.inference_mode():
            states = backbone(TensorBatch.of(pad([[CLS, *word_ids(text), SEP]], 0)))[0]
        for state in states.double().tolist():
            values += state
    middle = sum(values) / len(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / len(values))


def student_of(model: Path, **changed: object) -> Student:
    student = start(settings(model, **{"architecture": "poly", "normalize": False, "dropout": 0.0, **changed}))
    student.encoder.eval()
    return student


@pytest.mark.parametrize("shared", [False, True])
def test_both_transformers_get_the_spread_of_the_other_model(base: Path, large: Path, shared: bool) -> None:
    student, reference = student_of(large, shared_encoder=shared), student_of(base)
    wanted = spread(reference.encoder.context)
    before = {name: tensor.clone() for name, tensor in student.encoder.named_parameters()}
    assert spread(student.encoder.context) == pytest.approx(17 * wanted, rel=1e-4)
    rescale(student, str(base), CONVERSATIONS)
    for side in (student.encoder.context, student.encoder.candidate):
        assert spread(side) == pytest.approx(wanted, rel=1e-4)
    changed = {name for name, tensor in student.encoder.named_parameters() if not torch.equal(tensor, before[name])}
    assert {name.split(".", 2)[2] for name in changed} == {f"{LAST_NORM}.weight", f"{LAST_NORM}.bias"}


@pytest.mark.slow
def test_a_run_begins_so_and_a_resumed_one_ends_alike(base: Path, large: Path, tmp_path: Path) -> None:
    data = write_examples(tmp_path / "data.jsonl")
    given = {"architecture": "bi", "normalize": False, "score_scale": 0.1, "learning_rate": 1e-30, "steps": 1}
    (rescaled, _), (plain, _), (reference, _) = (
        run(settings(model, **given, output_like=like), data, tmp_path / name)
        for name, model, like in (("scaled", large, str(base)), ("plain", large, ""), ("reference", base, ""))
    )
    assert spread(plain.encoder.context) == pytest.approx(17 * spread(reference.encoder.context), rel=1e-3)
    assert spread(rescaled.encoder.context) == pytest.approx(spread(reference.encoder.context), rel=1e-3)
    own = settings(large, **{**given, "learning_rate": 1e-2, "steps": 6, "looks": 3.0}, output_like=str(base))
    run(own, data, tmp_path / "whole")
    interrupted(own, data, tmp_path / "cut", at=4)
    run(own, data, tmp_path / "cut", resume=True)
    assert identical(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_rescaled_or_refused(family: str, base: Path, large: Path, tmp_path: Path) -> None:
    config = FAMILIES[family]()
    torch.manual_seed(1)
    write_json(tmp_path / "config.json", config.to_dict())
    save_file(AutoModel.from_config(config).state_dict(), tmp_path / "model.safetensors")
    shutil.copyfile(base / "tokenizer.json", tmp_path / "tokenizer.json")
    student = student_of(tmp_path, architecture="bi")
    wanted = spread(student_of(large).encoder.context)
    if family == "albert":
        with pytest.raises(InvalidInput, match="multiplies the last norm: albert shares it among its layers"):
            rescale(student, str(large), CONVERSATIONS)
    else:
        rescale(student, str(large), CONVERSATIONS)
        assert spread(student.encoder.context) == pytest.approx(wanted, rel=1e-3)


def test_what_has_no_effect_or_is_no_encoder_is_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="changes nothing where vectors have unit length; give --no-normalize too"):
        rescale(student_of(base, normalize=True), str(base), CONVERSATIONS)
    cross = write_checkpoint(tmp_path, "cross", 1, architecture="cross")
    with pytest.raises(WrongKind):
        rescale(student_of(base), str(cross), CONVERSATIONS)
