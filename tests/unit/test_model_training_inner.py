"""What a teacher shows beside its scores: losses against loops, refusals, and who learns."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import CLS, DIM, SEP, word_ids, write_base, write_checkpoint
from tiny_training import dialogue, settings
from torch import Tensor

import polyrank
from polyrank.model.architectures.deformer import DeformerEncoder
from polyrank.model.architectures.vector import VectorEncoder
from polyrank.model.errors import InvalidInput
from polyrank.model.registry import DeformerConfig
from polyrank.model.training.objective import Batch
from polyrank.model.training.student import Student, start
from polyrank.model.training.vector_objective import VectorObjective

HEADS = 2
EXAMPLES = [dialogue("w1 w2", "w4 w8 w9", "w6", "w7 w8"), dialogue(["w5", "w9"], "w10", "w1")]
LISTED = [("w1 w2", "w4 w8 w9"), ("w1 w2", "w6"), ("w1 w2", "w7 w8"), ("w5 [SEP] w9", "w10"), ("w5 [SEP] w9", "w1")]
TEACHERS: dict[str, dict[str, Any]] = {
    "virt": {"architecture": "cross"},
    "deformer": {"architecture": "deformer", "own": DeformerConfig(upper=2, residual=False)},
}


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("teachers")
    return {name: write_checkpoint(folder, name, 9, **fields) for name, fields in TEACHERS.items()}


def made(base: Path, name: str, teacher: Path, **fields: Any) -> tuple[Student, VectorObjective]:
    own = {"upper_layers": 1} if name == "deformer" else {}
    config = settings(base, architecture=name, teacher=str(teacher), **{**own, **fields})
    student = start(config)
    student.encoder.eval()
    return student, VectorObjective(student, config, torch.device("cpu"))


def batch() -> Batch:
    return Batch(EXAMPLES, [], random.Random(0))


def ids(text: str) -> list[int]:
    return [CLS, *(SEP if word == "[SEP]" else word_ids(word)[0] for word in text.split()), SEP]


def entering(transformer: Any, tokens: list[int], segments: list[int]) -> list[Tensor]:
    """What enters each layer, (T, D)."""
    with torch.inference_mode():
        states = transformer(
            input_ids=torch.tensor([tokens]), token_type_ids=torch.tensor([segments]), output_hidden_states=True
        ).hidden_states
    return [each[0] for each in states[:-1]]


def weights(query: Any, key: Any, queries: Tensor, keys: Tensor, head: int) -> np.ndarray:
    """The attention of one head, by a loop."""
    size = DIM // HEADS
    part = slice(head * size, (head + 1) * size)
    with torch.inference_mode():
        q, k = query(queries)[:, part].double().numpy(), key(keys)[:, part].double().numpy()
    rows = []
    for own in q:
        logits = np.array([float(own @ other) / np.sqrt(size) for other in k])
        rows.append(np.exp(logits) / np.exp(logits).sum())
    return np.array(rows)


def test_virts_loss_is_the_distance_of_its_virtual_attention(base: Path, teachers: dict[str, Path]) -> None:
    student, taught = made(base, "virt", teachers["virt"], inner_weight=0.5)
    teacher = polyrank.load(teachers["virt"]).encoder.encoder.transformer
    assert isinstance(student.encoder, VectorEncoder)
    towers = student.encoder.context.transformer, student.encoder.candidate.transformer
    distances = []
    for context, text in LISTED:
        x, y = ids(context), ids(text)
        t = len(x)
        states = entering(towers[0], x, [0] * t), entering(towers[1], y, [0] * len(y))
        joint = entering(teacher, [*x, *y[1:]], [0] * t + [1] * (len(y) - 1))
        both = []
        for place in range(2):
            own = [each.encoder.layer[place].attention.self for each in (*towers, teacher)]
            sides, shown = (states[0][place], states[1][place][1:]), (joint[place][:t], joint[place][t:])
            for head in range(HEADS):
                for one, other in ((0, 1), (1, 0)):
                    virtual = weights(own[one].query, own[other].key, sides[one], sides[other], head)
                    real = weights(own[2].query, own[2].key, shown[one], shown[other], head)
                    both.append(np.sqrt(((virtual - real) ** 2).sum()))
        distances.append(2 * np.mean(both))  # both directions are added
    _, without = made(base, "virt", teachers["virt"])
    more = taught.measure(batch()).loss - without.measure(batch()).loss
    assert more == pytest.approx(0.5 * np.mean(distances), rel=1e-4)
    assert more > 0.05


def test_a_deformers_loss_is_the_distance_of_its_upper_states(base: Path, teachers: dict[str, Path]) -> None:
    student, taught = made(base, "deformer", teachers["deformer"], inner_weight=2.0)
    _, without = made(base, "deformer", teachers["deformer"])
    teacher = polyrank.load(teachers["deformer"]).encoder
    assert isinstance(student.encoder, DeformerEncoder)
    assert isinstance(teacher, DeformerEncoder)
    distances = []
    for context, text in LISTED:
        outputs = []
        for encoder in (student.encoder, teacher):
            x, y = ids(context), ids(text)
            below = 2 - len(encoder.upper)
            states = torch.cat(
                [
                    entering(encoder.context.transformer, x, [0] * len(x))[below],
                    entering(encoder.candidate.transformer, y, [1] * len(y))[below],
                ]
            )[None]
            for place in range(below, 2):  # the upper layers are still copies
                with torch.inference_mode():
                    read = encoder.context.transformer.encoder.layer[place](states, attention_mask=None)
                states = read[0] if isinstance(read, tuple) else read
            outputs.append(states[0].double().numpy())
        apart = (outputs[0] - outputs[1]) ** 2
        distances.append(apart.mean() + apart[0].mean())
    more = taught.measure(batch()).loss - without.measure(batch()).loss
    assert more == pytest.approx(2 * np.mean(distances), rel=1e-4)
    assert more > 0.1


@pytest.mark.parametrize("name", TEACHERS)
def test_a_teacher_does_not_learn_and_both_ways_of_memory_agree(
    base: Path, teachers: dict[str, Path], name: str
) -> None:
    found = []
    for cached in (False, True):
        student, taught = made(base, name, teachers[name], inner_weight=1.0, gradient_cache=cached, chunk_tokens=8)
        taught.step(batch(), lambda each: each.backward())
        assert all(each.grad is None for each in taught.models["teacher"].encoder.parameters())
        found.append({name: each.grad for name, each in student.encoder.named_parameters() if each.grad is not None})
    assert found[0].keys() == found[1].keys()
    for own, gradient in found[0].items():
        torch.testing.assert_close(found[1][own], gradient, rtol=1e-3, atol=1e-5, msg=own)


@pytest.mark.parametrize("name", TEACHERS)
def test_teachers_that_do_not_fit_are_refused(base: Path, teachers: dict[str, Path], tmp_path: Path, name: str) -> None:
    other = next(own for own in TEACHERS if own != name)
    with pytest.raises(InvalidInput, match=r"inner-weight: .* is no (cross-encoder|deformer), whose"):
        made(base, name, teachers[other], inner_weight=1.0)
    with pytest.raises(InvalidInput, match="inner-weight goes with a teacher"):
        settings(base, architecture=name, inner_weight=1.0)
    foreign = write_base(tmp_path / "foreign", 5, ["fox"])
    with pytest.raises(InvalidInput, match=r"inner-weight: .* has another tokenizer"):
        made(foreign, name, teachers[name], inner_weight=1.0)


def test_a_deformer_with_fewer_upper_layers_teaches_none(base: Path, tmp_path: Path) -> None:
    small = write_checkpoint(tmp_path, "small", 9, architecture="deformer", own=DeformerConfig(upper=1))
    with pytest.raises(InvalidInput, match="or fewer upper layers"):
        made(base, "deformer", small, upper_layers=2, inner_weight=1.0)


def test_a_temperature_softens_both_distributions(base: Path, teachers: dict[str, Path]) -> None:
    losses = {}
    for temperature in (1.0, 1000.0):
        _, taught = made(base, "virt", teachers["virt"], teacher_weight=1.0, teacher_temperature=temperature)
        losses[temperature] = taught.measure(batch()).loss
    assert losses[1.0] != pytest.approx(losses[1000.0], rel=1e-2)
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(InvalidInput, match="teacher-temperature must be a number from"):
            settings(base, architecture="virt", teacher="t", teacher_temperature=wrong)
