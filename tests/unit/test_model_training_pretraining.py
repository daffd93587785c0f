"""Pre-training: what is masked and drawn, what is learnt, what is written, and what is refused."""

import json
import math
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import call, write_rows
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny import CLS, PAD, SEP, VOCABULARY, word_ids, write_base
from tiny_training import dialogue, run, settings, write_examples

import polyrank
from polyrank.model.architectures.backbone import TensorBatch
from polyrank.model.architectures.batching import joined, pad, pair_batches
from polyrank.model.architectures.cross import CrossEncoder
from polyrank.model.errors import InvalidInput
from polyrank.model.text.sequences import Pairs
from polyrank.model.training.config import STATE_FILE, Data, PretrainConfig, TrainConfig, VectorTrainConfig
from polyrank.model.training.objective import Batch
from polyrank.model.training.pretraining import PretrainObjective, WordGuesser, drawn_replies, mask_words, pretrain
from polyrank.model.training.recipes import PRETRAINING_FILE
from polyrank.model.training.student import start

pytestmark = pytest.mark.slow

SPECIAL, MASK, WORDS = {CLS, SEP, PAD}, 99, 60


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("pretraining") / "base", 3, ["[MASK]"])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_examples(tmp_path_factory.mktemp("data") / "data.jsonl", 96)


def config(base: Path, **changed: Any) -> PretrainConfig:
    usual = {"batch_size": 8, "learning_rate": 1e-2, "code_learning_rate": 1e-2, "warmup_steps": 5, "dropout": 0.0}
    sizes = {"precision": "no", "max_context_tokens": 40, "max_candidate_tokens": 16}
    return PretrainConfig(base=str(base), **{**usual, **sizes, "steps": 40, **changed})


@given(
    st.lists(st.integers(0, WORDS - 1), max_size=40), st.floats(0.01, 0.99), st.integers(0, 2**32), st.integers(0, 5)
)
def test_only_ordinary_tokens_are_chosen_and_only_chosen_ones_change(
    ids: list[int], share: float, seed: int, padding: int
) -> None:
    ids = [*ids, *[PAD] * padding]
    shown, places = mask_words(ids, SPECIAL, MASK, WORDS, share, random.Random(seed))
    ordinary = [place for place, own in enumerate(ids) if own not in SPECIAL]
    assert len(places) == min(len(ordinary), max(1, round(share * len(ordinary))))
    assert places <= set(ordinary)
    assert len(shown) == len(ids)
    assert all(own == other for place, (own, other) in enumerate(zip(ids, shown, strict=True)) if place not in places)
    assert all(own == MASK or 0 <= own < WORDS for own in shown)


def test_of_the_chosen_eight_tenths_are_hidden_and_one_tenth_stays() -> None:
    ids = [20] * 20_000
    shown, places = mask_words(ids, SPECIAL, MASK, 10_000, 0.5, random.Random(0))
    hidden = sum(shown[place] == MASK for place in places) / len(places)
    kept = sum(shown[place] == 20 for place in places) / len(places)
    assert len(places) == 10_000
    assert hidden == pytest.approx(0.8, abs=0.02)
    assert kept == pytest.approx(0.1, abs=0.02)


def test_half_of_the_replies_are_drawn_and_none_of_those_is_right() -> None:
    examples = [dialogue(f"w{n % 5}", f"w{10 + n}") for n in range(200)]
    replies, right = drawn_replies(Batch(examples, (), random.Random(1)))
    assert sum(right) == pytest.approx(100, abs=30)
    for example, reply, is_right in zip(examples, replies, right, strict=True):
        if is_right:
            assert reply == example.response
        else:
            correct = {each.response for each in examples if each.conversation == example.conversation}
            assert reply not in correct
    alike = [dialogue("w1", "w2 w3"), dialogue("w5", "W2  w3")]
    assert drawn_replies(Batch(alike, (), random.Random(1))) == (["w2 w3", "W2  w3"], [True, True])


def test_the_loss_is_that_of_the_equations(base: Path) -> None:
    examples = [dialogue("w1 w2", "w4 w8"), dialogue("w5 w9 w3", "w10"), dialogue("w6", "w11 w12 w13")]
    own = config(base)
    student = start(own)
    assert isinstance(student.encoder, CrossEncoder)
    torch.manual_seed(5)
    guesser = WordGuesser(student.encoder).eval()
    torch.nn.init.normal_(guesser.bias)
    object.__setattr__(student, "encoder", guesser)
    objective = PretrainObjective(student, own, torch.device("cpu"))
    found = objective.measure(Batch(examples, (), random.Random(3)))
    draw = random.Random(3)  # the same draws, in the same order
    replies, right = drawn_replies(Batch(examples, (), draw))
    transformer, tokenizer = guesser.encoder.transformer, student.assembler.tokenizer
    assert tokenizer.mask_id is not None
    embeddings = transformer.get_input_embeddings().weight.detach().double()

    def outputs(ids: list[int], context: list[int]) -> torch.Tensor:
        segments = [0] * len(context) + [1] * (len(ids) - len(context))
        with torch.inference_mode():
            read = transformer(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([segments]))
        states: torch.Tensor = read.last_hidden_state[0]
        return states

    contexts = [[CLS, *word_ids(each.conversation.turns[0].text), SEP] for each in examples]
    pair = 0.0
    for context, reply, is_right in zip(contexts, replies, right, strict=True):
        with torch.inference_mode():
            assert guesser.head is not None
            logit = float(guesser.head(outputs([*context, *word_ids(reply), SEP], context)[0]))
        pair += math.log1p(math.exp(-logit if is_right else logit)) / len(examples)
    pairs = Pairs.join([student.assembler.pairs(each.conversation, [each.response])[0] for each in examples])
    losses = []
    for chunk in pair_batches(pairs, own.chunk_tokens):
        batch = joined(pairs.take(chunk), PAD)
        for row, ids in zip(chunk, batch.ids.tolist(), strict=True):
            shown, places = mask_words(
                ids, tokenizer.special_ids, tokenizer.mask_id, guesser.encoder.vocabulary, own.mask_share, draw
            )
            length = len(pairs.contexts[row]) + len(pairs.candidates[row])
            states = outputs(shown[:length], pairs.contexts[row])
            for place in sorted(places):
                with torch.inference_mode():
                    logits = embeddings @ guesser.word(states[place]).double() + guesser.bias.double()
                losses.append(float(torch.logsumexp(logits, 0) - logits[ids[place]]))
    assert found.loss == pytest.approx(sum(losses) / len(losses) + pair, rel=1e-4)


def test_batches_take_turns_and_the_selection_slice_has_both(base: Path) -> None:
    examples = [dialogue(f"w{n} w{n + 1}", f"w{n + 9} w{n + 2}") for n in range(6)]
    student = start(config(base))
    assert isinstance(student.encoder, CrossEncoder)
    guesser = WordGuesser(student.encoder).eval()
    object.__setattr__(student, "encoder", guesser)

    def learnt(number: int | None, alternate: bool) -> tuple[float, set[str]]:
        guesser.zero_grad()
        objective = PretrainObjective(student, config(base, alternate=alternate), torch.device("cpu"))
        loss = objective.step(Batch(examples, (), random.Random(3), number), lambda each: each.backward())
        return loss, {name for name, parameter in guesser.named_parameters() if parameter.grad is not None}

    (words, by_words), (replies, by_replies) = learnt(0, True), learnt(1, True)
    for both, by_both in (learnt(None, True), learnt(0, False), learnt(1, False)):
        assert both == pytest.approx(words + replies, rel=1e-5)
        assert by_both == by_words | by_replies == set(dict(guesser.named_parameters()))
    assert min(words, replies) > 0
    assert {name for name in by_words ^ by_replies if not name.startswith("encoder")} == {
        *("head.weight", "head.bias", "bias", "word.0.weight", "word.0.bias", "word.2.weight", "word.2.bias")
    }
    assert learnt(4, True)[0] == words
    assert learnt(7, True)[0] == replies


def test_a_batch_takes_examples_until_it_has_its_tokens(base: Path) -> None:
    lengths = [random.Random(n).randint(1, 6) for n in range(30)]
    examples = [dialogue(" ".join(["w1"] * length), "w2 w3") for length in lengths]
    student = start(config(base))
    assert isinstance(student.encoder, CrossEncoder)
    object.__setattr__(student, "encoder", WordGuesser(student.encoder))
    for most in (1, 20, 60):
        objective = PretrainObjective(student, config(base, batch_tokens=most), torch.device("cpu"))
        stream, own = iter(examples), iter(lengths)
        for _ in range(3):
            tokens, count = 0, 0
            while tokens < most:
                tokens, count = tokens + 1 + next(own) + 1 + 2 + 1, count + 1  # [CLS] context [SEP] reply [SEP]
            assert len(objective.take(stream)) == count
    assert len(PretrainObjective(student, config(base), torch.device("cpu")).take(iter(examples))) == 8


def pretrained(base: Path, data: Path, output: Path, **changed: Any) -> list[tuple[str, Mapping[str, float]]]:
    seen: list[tuple[str, Mapping[str, float]]] = []
    own = config(base, **changed)
    told = pretrain(
        own,
        Data([data]),
        output,
        on_survey=lambda *_: None,
        watch=lambda event, _step, _steps, figures: seen.append((event, figures)),
    )
    assert told["steps"] == own.steps
    return seen


@pytest.fixture(scope="module")
def learnt(base: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("learnt") / "out"
    looks = [figures["loss"] for event, figures in pretrained(base, data, output, steps=60) if event == "look"]
    assert min(looks) < looks[0] - 1.0
    return output


def test_a_base_model_is_written(base: Path, learnt: Path) -> None:
    assert sorted(file.name for file in learnt.iterdir() if file.is_file()) == [
        *("config.json", "model.safetensors", PRETRAINING_FILE, "tokenizer.json")
    ]
    ours, theirs = load_file(learnt / "model.safetensors"), load_file(base / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert any(not torch.equal(ours[name], theirs[name]) for name in ours)
    told = json.loads((learnt / PRETRAINING_FILE).read_bytes())
    assert told["settings"]["mask_share"] == 0.15
    assert told["files"][0]["name"] == "data.jsonl"


@pytest.mark.parametrize("architecture", ["bi", "cross"])
def test_any_architecture_goes_on_from_it(learnt: Path, data: Path, tmp_path: Path, architecture: str) -> None:
    ranker, _ = run(settings(learnt, architecture=architecture, steps=2), data, tmp_path / "trained")
    assert ranker.architecture == architecture
    assert polyrank.load(tmp_path / "trained").rank("w1", ["w5", "w6"])


def test_the_papers_recipe_goes_on_from_it_as_from_weights_of_the_papers_own(
    learnt: Path, base: Path, data: Path, tmp_path: Path
) -> None:
    large = shutil.copytree(learnt, tmp_path / "large")
    weights = load_file(large / "model.safetensors")
    for name in ("weight", "bias"):
        weights[f"encoder.layer.1.output.LayerNorm.{name}"] *= 17
    save_file(weights, large / "model.safetensors")
    sizes = {"precision": "no", "max_context_tokens": 40, "max_candidate_tokens": 16, "steps": 1}
    own = TrainConfig.of(architecture="poly", base=str(large), recipe="humeau2020", **sizes)
    assert isinstance(own, VectorTrainConfig)
    assert (own.optimizer, own.output_like) == ("adamax", str(base))
    ranker, _ = run(own, data, tmp_path / "trained")
    batch = TensorBatch.of(pad([[CLS, *word_ids("w1 w2 w3 w4 w5 w6"), SEP]], PAD))

    def spread(encoder: Any) -> float:
        with torch.inference_mode():
            return float(encoder.context(batch).std())

    before, wanted, found = (spread(each.encoder) for each in (polyrank.load(large), polyrank.load(base), ranker))
    assert before > 10 * wanted
    assert found == pytest.approx(wanted, rel=0.05)


def test_an_interrupted_run_ends_with_the_same_weights(base: Path, data: Path, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(event: str, step: int, *_: object) -> None:
        if event == "step" and step == 7:
            raise Stop

    own = config(base, steps=10, looks=4.0)
    with pytest.raises(Stop):
        pretrain(own, Data([data]), tmp_path / "cut", on_survey=lambda *_: None, watch=stop)
    assert (tmp_path / "cut" / STATE_FILE).is_file()
    for name, resume in (("cut", True), ("whole", False)):
        pretrain(own, Data([data]), tmp_path / name, resume=resume, on_survey=lambda *_: None, watch=lambda *_: None)
        assert not (tmp_path / name / STATE_FILE).exists()
    cut, whole = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("cut", "whole"))
    assert cut == whole


def test_the_papers_recipe_learns_and_an_interrupted_run_of_it_ends_alike(base: Path, data: Path, tmp_path) -> None:
    given = {"learning_rate": 1e-2, "code_learning_rate": 1e-2, "warmup_steps": 8, "dropout": 0.0, "batch_tokens": 80}
    sizes = {"precision": "no", "max_context_tokens": 40, "max_candidate_tokens": 16}
    own = PretrainConfig.with_recipe(base=str(base), recipe="humeau2020", **given, **sizes, epochs=6.0)
    looks = list[float]()

    def watch(event: str, step: int, steps: int, figures: Mapping[str, float]) -> None:
        looks.extend([figures["loss"]] if event == "look" else [])
        if event == "step" and step == 7 and not (tmp_path / "again").exists():
            (tmp_path / "again").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(own, Data([data]), tmp_path / "cut", on_survey=lambda *_: None, watch=watch)
    for name, resume in (("cut", True), ("whole", False)):
        told = pretrain(own, Data([data]), tmp_path / name, resume=resume, on_survey=lambda *_: None, watch=watch)
        assert told["settings"]["recipe"] == "humeau2020"
        assert told["steps"] == 6 * (86 // 9), "nine pairs of nine tokens have 80 tokens"
    assert min(looks) < looks[0] - 0.5
    cut, whole = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("cut", "whole"))
    assert cut == whole


def test_what_cannot_be_masked_is_refused(data: Path, tmp_path: Path) -> None:
    plain = write_base(tmp_path / "plain", 3)
    assert "[MASK]" not in VOCABULARY
    with pytest.raises(InvalidInput, match="has no mask token, so words cannot be masked; give another base model"):
        pretrained(plain, data, tmp_path / "out")
    for wrong in ({"mask_share": 0.0}, {"mask_share": 1.0}, {"batch_size": 1}, {"batch_tokens": -1}):
        with pytest.raises(InvalidInput):
            config(plain, **wrong)


def test_the_command(base: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--max-context-tokens", 40, "--max-candidate-tokens", 16]
    options = [*sizes, "--steps", 4, "--warmup-steps", 1, "--batch-size", 4, "--json"]
    found = call(capsys, "pretrain", "--data", data, "--base", base, "--output", tmp_path / "out", *options)
    assert found.result["steps"] == 4
    assert (tmp_path / "out" / "model.safetensors").is_file()
    recipe = ["--recipe", "humeau2020", "--no-alternate", "--batch-tokens", 0, "--dropout", 0]
    paper = call(capsys, "pretrain", "--data", data, "--base", base, "--output", tmp_path / "paper", *options, *recipe)
    told = {name: paper.result["settings"][name] for name in ("schedule", "beta2", "alternate", "warmup_steps")}
    assert told == {"schedule": "inverse-sqrt", "beta2": 0.98, "alternate": False, "warmup_steps": 1}
    again = call(capsys, "pretrain", "--data", data, "--base", base, "--output", tmp_path / "out")
    assert "is not empty" in again.failure(1)
    rows = [{"context": [f"w{n}"], "response": f"w{n}", "label": "a"} for n in range(20)]
    classes = write_rows(tmp_path / "classes.jsonl", rows)
    refused = call(capsys, "pretrain", "--data", classes, "--base", base, "--output", tmp_path / "other", *sizes)
    assert "its labels are classes" in refused.failure(1)
    wrong = call(capsys, "pretrain", "--data", data, "--base", base, "--output", tmp_path / "o", "--mask-share", 2)
    assert "--mask-share: must be a number from 0.001 to 0.999, not '2'" in wrong.misuse
