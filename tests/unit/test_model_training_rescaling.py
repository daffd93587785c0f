"""Outputs of a model that is trained further begin with the spread of another model's (Humeau et al. 5.3)."""

import math
import shutil
from pathlib import Path

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
from polyrank.model.training.student import Student, rescale, start

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
