"""What a run begins with: a base model, or a checkpoint to go on from.

Which weights a run changes, and what its adapters are once they are saved.
"""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import CLS, SEP, word_ids, write_base, write_checkpoint
from tiny_training import ranker_of, rows, run, scores, settings, trained, write_examples
from torch import Tensor, nn

import polyrank
from polyrank.model.errors import CheckpointInvalid, InvalidInput, ModelNotFound
from polyrank.model.rankers.load import load_vector_ranker
from polyrank.model.text.assembly import Conversation
from polyrank.model.training.config import TrainConfig
from polyrank.model.training.student import Student, start
from polyrank.model.training.tuning import adapter_tensors, load_adapters

LATE = [("bi", False), ("bi", True), ("poly", False), ("poly", True)]
ALL = [*LATE, ("cross", False)]


def tower(source: Any, name: str) -> dict[str, Tensor]:
    return dict(getattr(source.encoder, name).transformer.state_dict())


def same(one: dict[str, Tensor], other: dict[str, Tensor], atol: float = 0.0) -> bool:
    return set(one) == set(other) and all(torch.allclose(each, other[name], 0, atol) for name, each in one.items())


@pytest.mark.parametrize(("architecture", "shared"), ALL)
@pytest.mark.parametrize("rank", [0, 2])
def test_the_scores_of_a_checkpoint_of_the_same_kind_are_the_first_ones(
    base: Path, tmp_path: Path, architecture: str, shared: bool, rank: int
) -> None:
    fields = {"architecture": architecture, "shared_encoder": shared, "lora_rank": rank, "tune": "all"}
    source = trained(base, tmp_path / "source", **fields)
    again = start(settings(source, **fields, seed=99))
    assert scores(ranker_of(again)) == pytest.approx(scores(polyrank.load(source)), rel=1e-4, abs=1e-4)
    again.save(tmp_path / "again", {})
    assert scores(polyrank.load(tmp_path / "again")) == pytest.approx(scores(polyrank.load(source)), rel=1e-4, abs=1e-4)


def test_a_run_of_whole_weights_goes_on_from_adapters(base: Path, tmp_path: Path) -> None:
    source = trained(base, tmp_path / "source", architecture="poly", lora_rank=2)
    student = start(settings(source, architecture="poly"))
    assert student.config.weights == "full"
    assert scores(ranker_of(student)) == pytest.approx(scores(polyrank.load(source)), rel=1e-5, abs=1e-5)
    student.save(tmp_path / "full", {})
    assert scores(polyrank.load(tmp_path / "full")) == pytest.approx(scores(polyrank.load(source)), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_poly_encoder_goes_on_from_a_bi_encoders_towers(base: Path, tmp_path: Path, rank: int) -> None:
    bi = trained(base, tmp_path / "bi", lora_rank=2)
    poly = start(settings(bi, architecture="poly", lora_rank=rank))
    poly.save(tmp_path / "poly", {})
    source, found = polyrank.load(bi), polyrank.load(tmp_path / "poly")
    assert found.config.weights == ("adapter" if rank else "full")
    for name in ("context", "candidate"):
        assert same(tower(found, name), tower(source, name), atol=1e-6)
    assert not same(tower(source, "context"), tower(source, "candidate"), atol=1e-3)
    codes = poly.encoder.code_vectors
    assert isinstance(codes, Tensor)
    assert codes.std().item() == pytest.approx(16**-0.5, rel=0.5), "drawn at random, as from a base"


def test_a_cross_encoder_goes_on_from_the_context_tower(base: Path, tmp_path: Path) -> None:
    bi = trained(base, tmp_path / "bi")
    cross = start(settings(bi, architecture="cross"))
    assert same(tower(cross, "encoder"), tower(polyrank.load(bi), "context"))


def test_both_towers_go_on_from_a_cross_encoder(base: Path, tmp_path: Path) -> None:
    source = trained(base, tmp_path / "cross", architecture="cross")
    poly = start(settings(source, architecture="poly"))
    for name in ("context", "candidate"):
        assert same(tower(poly, name), tower(polyrank.load(source), "encoder"))


def test_two_towers_go_on_from_a_shared_one(base: Path, tmp_path: Path) -> None:
    for rank in (0, 2):
        source = trained(base, tmp_path / f"{rank}", shared_encoder=True, lora_rank=rank)
        student = start(settings(source, lora_rank=rank))
        student.save(tmp_path / f"two {rank}", {})
        found = polyrank.load(tmp_path / f"two {rank}")
        for name in ("context", "candidate"):
            assert same(tower(found, name), tower(polyrank.load(source), "context"), atol=1e-6)


@pytest.mark.parametrize("architecture", ["bi", "poly"])
@pytest.mark.parametrize(("before", "rank"), [(0, 0), (2, 2), (2, 0)])
def test_a_shared_encoder_goes_on_from_the_context_tower_of_two(
    base: Path, tmp_path: Path, architecture: str, before: int, rank: int
) -> None:
    source = trained(base, tmp_path / "source", architecture=architecture, lora_rank=before)
    student = start(settings(source, architecture=architecture, lora_rank=rank, shared_encoder=True))
    student.save(tmp_path / "shared", {})
    found, towers = polyrank.load(tmp_path / "shared"), polyrank.load(source)
    assert found.config.shared_encoder
    assert same(tower(found, "candidate"), tower(towers, "context"), atol=1e-6)
    assert not same(tower(towers, "context"), tower(towers, "candidate"), atol=1e-3)


@pytest.mark.parametrize(("n_codes", "kept"), [(3, True), (4, False)])
def test_codes_are_taken_over_where_they_fit(base: Path, tmp_path: Path, n_codes: int, kept: bool) -> None:
    source = trained(base, tmp_path / "source", architecture="poly")
    student = start(settings(source, architecture="poly", n_codes=n_codes))
    codes, found = (
        polyrank.load(source).encoder.state_dict()["code_vectors"],
        student.encoder.state_dict()["code_vectors"],
    )
    assert found.shape == (n_codes, 16)
    assert torch.equal(codes, found[: len(codes)]) == kept


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize(("architecture", "name"), [("poly", "code_vectors"), ("cross", "head.weight")])
def test_codes_and_head_on_a_bases_own_weights_are_taken_over(
    tmp_path: Path, architecture: str, name: str, rank: int
) -> None:
    source = write_checkpoint(tmp_path, "source", 5, architecture=architecture, weights="base", n_codes=3)
    student = start(settings(source, architecture=architecture, lora_rank=rank))
    assert torch.equal(student.encoder.state_dict()[name], polyrank.load(source).encoder.state_dict()[name])


def test_from_a_base_model_both_sides_start_equal_and_what_is_drawn_goes_by_the_seed(base: Path) -> None:
    one, same_seed, other = (start(settings(base, architecture="poly", seed=seed)) for seed in (1, 1, 2))
    assert same(tower(one, "context"), tower(one, "candidate"))
    assert one.encoder.context is not one.encoder.candidate
    codes = [each.encoder.state_dict()["code_vectors"] for each in (one, same_seed, other)]
    assert torch.equal(codes[0], codes[1])
    assert not torch.equal(codes[0], codes[2])


def test_a_zero_shot_checkpoint_is_its_base(base: Path, tmp_path: Path) -> None:
    zero = polyrank.load(base)
    zero.save(tmp_path / "zero")
    for rank in (0, 2):
        student = start(settings(tmp_path / "zero", lora_rank=rank, shared_encoder=True, score_scale=1.0))
        assert scores(ranker_of(student)) == pytest.approx(scores(zero), rel=1e-5)


def test_adapters_cannot_refer_to_whole_weights(tmp_path: Path) -> None:
    full = write_checkpoint(tmp_path, "full", 0, architecture="bi", weights="full")
    with pytest.raises(InvalidInput, match="holds full weights, which an adapter cannot refer to; train without"):
        start(settings(full, lora_rank=2))


def test_what_cannot_be_begun_with_is_told(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        start(settings(tmp_path / "missing"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointInvalid):
        start(settings(tmp_path / "empty"))
    with pytest.raises(CheckpointInvalid, match="asks for 65 tokens, the transformer allows 64"):
        start(settings(base, max_context_tokens=65))
    for fields in ({}, {"reduction": "first"}):
        with pytest.raises(InvalidInput, match="reduction_m is for --reduction 'first-m mean': give that, too"):
            start(settings(base, reduction_m=3, **fields))
    first_three = trained(base, tmp_path / "three", reduction="first-m mean", reduction_m=3)
    assert start(settings(first_three, reduction_m=2)).config.reduction_m == 2
    source = trained(base, tmp_path / "source", lora_rank=2)
    (source / "model.safetensors").write_bytes(b"damaged")
    for rank in (0, 2):
        with pytest.raises(CheckpointInvalid, match="cannot be read as safetensors"):
            start(settings(source, lora_rank=rank))


def test_what_is_not_said_is_taken_over_from_the_checkpoint(base: Path, tmp_path: Path) -> None:
    fields = {"normalize": False, "score_scale": 3.0, "reduction": "first", "max_context_tokens": 33, "max_turns": 2}
    source = trained(base, tmp_path / "source", architecture="bi", **fields)
    going_on = TrainConfig.of(architecture="poly", base=str(source), n_codes=5, max_turns=4)
    config = start(going_on).config
    assert (config.architecture, config.n_codes, config.assembly.max_turns) == ("poly", 5, 4)
    assert {name: getattr(config, name) for name in fields if name != "max_turns"} == {
        name: value for name, value in fields.items() if name != "max_turns"
    }
    fresh = start(
        TrainConfig.of(architecture="bi", base=str(base), max_context_tokens=33, max_candidate_tokens=16)
    ).config
    assert (fresh.normalize, fresh.score_scale, fresh.reduction) == (True, 20.0, "mean")


@pytest.mark.parametrize("architecture", ["bi", "poly"])
@pytest.mark.parametrize("rank", [0, 2])
def test_the_prompts_of_a_base_stand_before_both_sides_in_training_and_in_serving(
    tmp_path: Path, architecture: str, rank: int
) -> None:
    base = write_base(tmp_path / "base", seed=3)
    prompts = {"prompts": {"query": "w30 ", "passage": "w31 w32 "}}
    (base / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    asked = Conversation.of(["w1 w2", "w3", "w4"], ["w5", "w6 w7"])
    context = [CLS, *word_ids("w30 w5"), SEP, *word_ids("w6 w7"), SEP, *word_ids("w1 w2"), SEP, *word_ids("w3"), SEP]
    context += [*word_ids("w4"), SEP]
    candidate = [CLS, *word_ids("w31 w32 w8 w9"), SEP]

    student = start(settings(base, architecture=architecture, lora_rank=rank))
    assert student.assembler.context(asked)[0] == context
    assert student.assembler.candidates(["w8 w9"])[0] == [candidate]
    student.save(tmp_path / "made", {})
    for again in (tmp_path / "made", trained(tmp_path / "made", tmp_path / "again", architecture=architecture)):
        served = load_vector_ranker(again)
        assert served.tokenize_context(asked)[0] == context
        assert served.tokenize_candidates(["w8 w9"])[0] == [candidate]

    long = Conversation.of([f"w{at} " * 6 for at in range(1, 9)], ["w5"])
    cut = load_vector_ranker(tmp_path / "made").tokenize_context(long)[0]
    assert cut[:4] == [CLS, *word_ids("w30 w5"), SEP], "what does not fit are the oldest turns"
    assert cut[-2:] == [*word_ids("w8"), SEP]


ARCHITECTURES = ("bi", "poly", "cross")


def trainable(base: Path, **fields: Any) -> set[str]:
    return set(start(settings(base, **fields)).trainable())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_top_layers_and_what_was_drawn_at_random(base: Path, architecture: str) -> None:
    fields = {"architecture": architecture}
    own = {"bi": set(), "poly": {"code_vectors"}, "cross": {"head.weight", "head.bias"}}[architecture]
    names = {name for name, _ in start(settings(base, **fields)).encoder.named_parameters()}
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
