"""A residual Cross-encoder begins near its first stage's ranking, and leaves the first stage as it is."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import write_rows
from safetensors.torch import load_file
from tiny import write_checkpoint
from tiny_training import Seen, orders, run, scores, settings, trained, write_examples, write_first_stage

import polyrank
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.checkpoint.files import CONFIG_FILE, WEIGHTS_FILE, read_config, write_config
from polyrank.model.config import LexicalConfig
from polyrank.model.errors import InvalidInput
from polyrank.model.training.config import Data, TrainConfig
from polyrank.model.training.run import train
from polyrank.model.training.student import Student, start

pytestmark = pytest.mark.slow


class Stop(Exception):
    """Stands in for a kill."""


def saved_scores(student: Student, directory: Path) -> list[float]:
    student.save(directory, {})
    return scores(polyrank.load(directory))


def residual_settings(base: Path, first_stage: Path, **fields: Any) -> TrainConfig:
    return settings(base, **{"architecture": "cross", "first_stage": str(first_stage), "n_codes": None, **fields})


def cross(base: Path, first_stage: Path, **fields: Any) -> Student:
    return start(residual_settings(base, first_stage, **fields))


@pytest.mark.parametrize(("origin", "before", "rank"), [
    *[("base model", before, rank) for before, rank in ((0, 0), (2, 0), (2, 2), (2, 3))],
    *[("first stage", before, rank) for before, rank in ((0, 0), (2, 0), (2, 2))],
])  # fmt: skip
@pytest.mark.parametrize("shared", [False, True])
def test_the_first_scores_are_those_of_the_first_stage(
    base: Path, tmp_path: Path, origin: str, before: int, rank: int, shared: bool
) -> None:
    poly = trained(base, tmp_path / "poly", architecture="poly", lora_rank=before, shared_encoder=shared)
    student = cross(base if origin == "base model" else poly, poly, lora_rank=rank)
    assert student.config.residual
    assert student.config.shared_encoder == shared
    assert saved_scores(student, tmp_path / "cross") == pytest.approx(scores(polyrank.load(poly)), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_first_stage_may_have_its_bases_own_weights(base: Path, tmp_path: Path, rank: int) -> None:
    poly = write_first_stage(base, weights="base")
    student = cross(base, poly, lora_rank=rank)
    assert saved_scores(student, tmp_path / "cross") == pytest.approx(scores(polyrank.load(poly)), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_cross_encoder_begins_with_a_share_of_its_score_and_goes_on_with_all_of_it(
    base: Path, tmp_path: Path, rank: int
) -> None:
    poly = trained(base, tmp_path / "poly", architecture="poly", lora_rank=rank)
    student = cross(trained(base, tmp_path / "cross", architecture="cross", lora_rank=rank), poly, lora_rank=rank)
    plain = polyrank.load(tmp_path / "cross")
    assert isinstance(student.encoder, CrossEncoder)
    torch.testing.assert_close(student.encoder.head.weight, 0.25 * plain.encoder.head.weight)
    first = saved_scores(student, tmp_path / "first")
    both = zip(scores(polyrank.load(poly)), scores(plain), strict=True)
    assert first == pytest.approx([late + 0.25 * joint for late, joint in both], rel=1e-4, abs=1e-4)
    again = cross(tmp_path / "first", poly, lora_rank=rank)
    assert saved_scores(again, tmp_path / "again") == pytest.approx(first, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("rank", [0, 2])
def test_training_learns_and_changes_nothing_of_the_first_stage(base: Path, tmp_path: Path, rank: int) -> None:
    poly = trained(base, tmp_path / "poly", architecture="poly", lora_rank=rank)
    data = write_examples(tmp_path / "data.jsonl")
    config = residual_settings(base, poly, negatives=3, lora_rank=rank, steps=120)
    ranker, seen = run(config, data, tmp_path / "out")
    assert min(loss for _, loss in seen.looks) < 0.4 * seen.looks[0][1]
    held = load_file(tmp_path / "out" / WEIGHTS_FILE)
    given = {f"poly.{name}": each for name, each in load_file(poly / WEIGHTS_FILE).items()}
    assert given.keys() <= held.keys()
    assert all(torch.equal(each, held[name]) for name, each in given.items())
    assert ranker.config.residual


def test_a_resumed_run_ends_with_the_same_weights_and_wants_the_same_first_stage(base: Path, tmp_path: Path) -> None:
    poly = trained(base, tmp_path / "poly", architecture="poly", lora_rank=2)
    data = write_examples(tmp_path / "data.jsonl")
    config = residual_settings(base, poly, negatives=2, lora_rank=2, steps=24, looks=2.0, dropout=None)
    run(config, data, tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(event: str, step: int, *_: Any) -> None:
        if (event, step) == ("step", 15):
            raise Stop

    with pytest.raises(Stop):
        train(config, Data([data]), tmp_path / "out", on_survey=Seen().survey, watch=stop)
    weights = (poly / WEIGHTS_FILE).read_bytes()
    trained(base, poly, architecture="poly", lora_rank=2, seed=9)
    with pytest.raises(InvalidInput, match="was started with another first_stage: its files are not the same"):
        run(config, data, tmp_path / "out", resume=True)
    (poly / WEIGHTS_FILE).write_bytes(weights)
    run(config, data, tmp_path / "out", resume=True)
    whole, resumed = (load_file(tmp_path / name / WEIGHTS_FILE) for name in ("whole", "out"))
    assert whole.keys() == resumed.keys()
    for name in whole.keys() - {"head.bias"}:  # a shift of all scores, to which the loss says nothing but rounding
        torch.testing.assert_close(resumed[name], whole[name], atol=1e-4, rtol=1e-3)


def test_what_is_no_first_stage_of_the_base_is_told(base: Path, tmp_path: Path) -> None:
    poly = write_first_stage(base)
    bi = trained(base, tmp_path / "bi")
    residual = tmp_path / "residual"
    cross(base, poly).save(residual, {})
    other = write_checkpoint(tmp_path, "other", 9, architecture="poly", weights="base")
    for first_stage, fields, says in (
        (base, {}, "is no checkpoint; give a poly-encoder's as --first-stage"),
        (bi, {}, "is a bi-encoder; give a poly-encoder as --first-stage"),
        (residual, {}, "is a cross-encoder; give a poly-encoder as --first-stage"),
        (poly, {"lora_rank": 2}, "is no adapter on the base's base model; train without --lora-rank"),
        (other, {"lora_rank": 2}, "is no adapter on the base's base model; train without --lora-rank"),
    ):
        with pytest.raises(InvalidInput, match=says):
            cross(base, first_stage, **fields)
    for name in ("tokenizer.json", "backbone.json"):
        file = poly / name
        before = file.read_text()
        file.write_text(before + "\n")
        with pytest.raises(InvalidInput, match=f"has another {name} than the base; train both from one base model"):
            cross(base, poly)
        file.write_text(before)
    for architecture in ("bi", "poly", "cross"):
        with pytest.raises(InvalidInput, match="give that one as --first-stage, or as the base"):
            start(settings(residual, architecture=architecture))


@pytest.mark.parametrize("evidence", [True, False])
def test_a_cross_encoder_learns_beside_the_words_of_its_first_stage(base: Path, tmp_path: Path, evidence: bool) -> None:
    """The replies repeat an order's number, which no network of this size can read."""
    data = write_rows(tmp_path / "orders.jsonl", orders(560))
    first_stage = write_first_stage(base, evidence=LexicalConfig(weights={"last": 3.0}))
    config, seen = residual_settings(base, first_stage, steps=1), Seen()
    given = {"evidence": evidence, "on_survey": seen.survey, "watch": seen.watch}
    ranker = train(config, Data([data]), tmp_path / "out", **given)
    assert (ranker.config.evidence is not None) == evidence
    assert (seen.looks[0][1] < 0.5) == evidence, "the first loss is that of the first stage's score"


def test_a_bi_encoder_learns_beside_the_words_of_another_model(base: Path, tmp_path: Path) -> None:
    data = Data([write_rows(tmp_path / "orders.jsonl", orders(560))])
    told = write_checkpoint(tmp_path, "told", 0, architecture="bi", evidence=LexicalConfig(weights={"last": 3.0}))
    for name, words in (("without", ""), ("by-lexical", "lexical"), ("by-told", str(told))):
        seen = Seen()
        config = settings(base, architecture="bi", steps=1, words=words)
        assert train(config, data, tmp_path / name, on_survey=seen.survey, watch=seen.watch) is not None
        assert (seen.looks[0][1] < 0.5) == bool(words), "replies repeat an order's number, which only words can read"


def test_words_count_in_the_loss_or_not_at_all(base: Path, tmp_path: Path) -> None:
    config, seen = settings(base, words="lexical"), Seen()
    with pytest.raises(InvalidInput, match="give --words, or --no-evidence or --recipe"):
        train(config, Data([]), tmp_path / "out", evidence=False, on_survey=seen.survey, watch=seen.watch)
    with pytest.raises(InvalidInput, match="words is for task rank"):
        settings(base, words="lexical", task="classify")


def test_a_resumed_run_counts_words_as_it_did(base: Path, tmp_path: Path) -> None:
    def killed(event: str, step: int, *_: object) -> None:
        if step == 1:
            raise Stop

    data = Data([write_rows(tmp_path / "orders.jsonl", orders(80))])
    config = residual_settings(base, write_first_stage(base, evidence=LexicalConfig(weights={"last": 3.0})), steps=4)
    for evidence, counted in ((True, "words count"), (False, "no words count")):
        out, on_survey = tmp_path / f"out-{evidence}", Seen().survey
        with pytest.raises(Stop):
            train(config, data, out, evidence=evidence, on_survey=on_survey, watch=killed)
        with pytest.raises(InvalidInput, match=f"the unfinished run {counted}: --no-evidence is not as it was"):
            train(config, data, out, resume=True, evidence=not evidence, on_survey=on_survey, watch=killed)


def test_a_resumed_run_counts_the_same_words(base: Path, tmp_path: Path) -> None:
    def killed(event: str, step: int, *_: object) -> None:
        if step == 1:
            raise Stop

    data = Data([write_rows(tmp_path / "orders.jsonl", orders(80))])
    told = write_checkpoint(tmp_path, "told", 0, architecture="bi", evidence=LexicalConfig(weights={"last": 3.0}))
    config, on_survey = settings(base, steps=4, words=str(told)), Seen().survey
    with pytest.raises(Stop):
        train(config, data, tmp_path / "out", on_survey=on_survey, watch=killed)
    write_config(
        told / CONFIG_FILE, replace(read_config(told / CONFIG_FILE), evidence=LexicalConfig(weights={"last": 2.0}))
    )
    with pytest.raises(InvalidInput, match="was started with other evidence of words; give the same model"):
        train(config, data, tmp_path / "out", resume=True, on_survey=on_survey, watch=killed)
