"""Classifiers of pairs: every architecture that can learn classes, what it tells, and what is refused."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import write_rows
from golden import oracle
from golden.second_stage import hidden
from tiny import CLS, SEP, word_ids, write_checkpoint
from tiny_training import identical, interrupted, run, settings

import polyrank
from polyrank.model.architectures.backbone import TensorBatch
from polyrank.model.architectures.vector import VectorEncoder
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid, InvalidInput, TrainingDataInvalid, WrongKind
from polyrank.model.rankers.classifier import Classifier
from polyrank.model.rankers.load import load_classifier, load_cross, load_retriever, load_teacher, load_vector_ranker
from polyrank.model.registry import ARCHITECTURES, classifiers
from polyrank.model.text.assembly import Conversation
from polyrank.model.training.config import Data
from polyrank.model.training.run import train_calibration, train_evidence

pytestmark = pytest.mark.slow

OPTIONS: dict[str, dict[str, Any]] = {"mix": {"rows": 2, "interaction_layers": [-2, -1]}}
CONTEXT = ["w1 w2", "w3 w30"]
TEXTS = ["w4", "w5 w6 w7", "w8 w9 w10 w11 w12"]


def examples(count: int = 64) -> list[dict[str, Any]]:
    """Pairs of which a word of the text says the class."""
    words = ("w4", "w5", "w6")
    return [
        {
            "context": [f"w{n % 3}", f"w{16 + n % 20}"],
            "response": f"{words[n % 3]} w{30 + n % 7}",
            "label": ("yes", "no", "maybe")[n % 3],
            "dialogue": f"d{n}",
        }
        for n in range(count)
    ]


@pytest.fixture(scope="module", params=classifiers())
def learnt(request: pytest.FixtureRequest, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory, name = tmp_path_factory.mktemp(request.param), request.param
    data = write_rows(directory / "pairs.jsonl", examples())
    config = settings(base, architecture=name, task="classify", steps=28, learning_rate=5e-3, **OPTIONS.get(name, {}))
    ranker, seen = run(config, data, directory / "trained")
    assert isinstance(ranker, Classifier)
    assert seen.looks[-1][1] < 0.2
    return directory / "trained"


def test_it_learns_and_keeps_the_classes(learnt: Path) -> None:
    classifier = load_classifier(learnt)
    assert classifier.labels == ("maybe", "no", "yes")
    assert classifier.config.evidence is None
    assert classifier.config.calibration is None
    rows = examples()
    told = classifier.probabilities([(Conversation.of(each["context"]), each["response"]) for each in rows])
    assert told.sum(axis=1) == pytest.approx(1.0, abs=1e-5)
    right = [classifier.labels.index(each["label"]) for each in rows]
    assert (told.argmax(axis=1) == right).mean() > 0.95


def test_a_pair_is_told_the_same_beside_others_and_alone(learnt: Path) -> None:
    classifier = load_classifier(learnt)
    together = classifier.classify(CONTEXT, TEXTS)
    for text, expected in zip(TEXTS, together, strict=True):
        [alone] = classifier.classify(CONTEXT, [text])
        assert alone == pytest.approx(expected, abs=1e-5)
        assert list(alone.values()) == sorted(alone.values(), reverse=True)
    assert classifier.classify(CONTEXT, []) == []
    several = [
        (Conversation.of(CONTEXT), TEXTS[0]),
        (Conversation.of("w9"), TEXTS[1]),
        (Conversation.of(CONTEXT), TEXTS[2]),
    ]
    rows = classifier.probabilities(several)
    assert classifier.by_label(rows[0]) == pytest.approx(together[0], abs=1e-5)
    assert classifier.by_label(rows[2]) == pytest.approx(together[2], abs=1e-5)


def test_a_model_that_ranks_is_wanted_elsewhere(learnt: Path) -> None:
    for wrong in (polyrank.load, load_retriever, load_vector_ranker, load_cross, load_teacher):
        with pytest.raises(WrongKind, match="is a classifier, which ranks nothing; give a model that was trained to"):
            wrong(learnt)


def test_openvino_tells_what_torch_tells(learnt: Path) -> None:
    theirs = load_classifier(learnt, backend="openvino").classify(CONTEXT, TEXTS)
    for ours, other in zip(load_classifier(learnt).classify(CONTEXT, TEXTS), theirs, strict=True):
        assert ours == pytest.approx(other, abs=1e-4)


@pytest.mark.parametrize("architecture", ["bi", "poly"])
def test_its_head_reads_what_the_equations_say(architecture: str, base: Path) -> None:
    """[x; y; |x - y|] in float64 loops: y the candidate's vector, x the context vector that it attends to."""
    sizes: dict[str, Any] = {"n_codes": 3, "max_context_tokens": 40, "max_candidate_tokens": 16, "score_scale": 5.0}
    config = ModelConfig(architecture=architecture, base_name="", normalize=True, labels=("a", "b"), **sizes)
    classifier = Classifier(polyrank.from_base(str(base), config))
    encoder = classifier.network.encoder
    assert isinstance(encoder, VectorEncoder)
    assert encoder.classes is not None
    outputs = hidden(encoder.context, [CLS, *word_ids("w1 w2 w3"), SEP], None)
    y = oracle.unit(oracle.reduce(hidden(encoder.candidate, [CLS, *word_ids("w7"), SEP], None), "first"))
    if architecture == "bi":
        x = oracle.unit(oracle.reduce(outputs, "first"))
    else:
        codes = encoder.get_parameter("code_vectors").double().tolist()
        vectors = oracle.context_vectors(outputs, "codes", 3, codes, 1.0, normalize=True)
        x = oracle.weighted_sum(oracle.softmax([5.0 * oracle.dot(y, each) for each in vectors]), vectors)
    features = torch.tensor([[*x, *y, *(abs(a - b) for a, b in zip(x, y, strict=True))]], dtype=torch.float32)
    encoder.eval()
    [expected] = encoder.classes(features).softmax(dim=1).detach().numpy()
    [told] = classifier.probabilities([(Conversation.of("w1 w2 w3"), "w7")])
    np.testing.assert_allclose(told, expected, atol=1e-5)


def test_a_model_that_ranks_tells_no_classes(base: Path, tmp_path: Path) -> None:
    ranking = write_checkpoint(tmp_path, "poly", seed=0, architecture="poly")
    for name in (ranking, base, "lexical"):
        with pytest.raises(WrongKind, match="tells no classes; give a checkpoint of polyrank train --task classify"):
            load_classifier(name)


@pytest.mark.parametrize(("changed", "says"), [
    ({"architecture": "colbert"}, "task classify is for bi, deformer, mix, poly, virt, cross, not for colbert"),
    ({"teacher": "t"}, "teacher is for task rank"),
    ({"architecture": "cross", "first_stage": "f"}, "first-stage is for task rank"),
    ({"task": "other"}, "task is 'other'; give rank or classify"),
])  # fmt: skip
def test_settings_that_do_not_go_with_classes(base: Path, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        settings(base, **{"task": "classify", **changed})


def test_files_that_hold_no_classes_or_nothing_else(base: Path, tmp_path: Path) -> None:
    some = examples()
    ranked = [{name: value for name, value in each.items() if name != "label"} for each in some]
    for task, rows, says in (
        ("classify", [*some[1:], ranked[0]], "1 examples have no class; give each a label, as a text"),
        (
            "classify",
            [{**each, "label": "x"} for each in some],
            "all examples are of the class 'x'; a classifier needs",
        ),
        ("rank", some, "its labels are classes; `polyrank train --task classify` learns them"),
        ("rank", [*ranked[1:], some[0]], "its labels are classes; `polyrank train --task classify` learns them"),
    ):
        data = write_rows(tmp_path / "rows.jsonl", rows)
        with pytest.raises(TrainingDataInvalid, match=says):
            run(settings(base, task=task), data, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_one_string_is_not_taken_for_a_text_a_letter(learnt: Path) -> None:
    with pytest.raises(InvalidInput, match="must be a list"):
        load_classifier(learnt).classify("w1", "w2")


@pytest.mark.parametrize("fit", [train_evidence, train_calibration])
def test_nothing_is_fitted_on_classes(base: Path, tmp_path: Path, fit: Callable[..., object]) -> None:
    data = Data([write_rows(tmp_path / "pairs.jsonl", examples(200))])
    with pytest.raises(TrainingDataInvalid, match="its labels are classes"):
        fit(str(base), data, tmp_path / "out", seen=False, on_survey=lambda *_: None)
    assert not (tmp_path / "out").exists()


def test_a_resumed_run_ends_as_one_without_a_pause(base: Path, tmp_path: Path) -> None:
    data = write_rows(tmp_path / "pairs.jsonl", examples())
    config = settings(base, task="classify", steps=8, looks=2.0)
    run(config, data, tmp_path / "whole")
    interrupted(config, data, tmp_path / "out", 5)
    run(config, data, tmp_path / "out", resume=True)
    assert identical(tmp_path / "out", tmp_path / "whole")
    assert load_classifier(tmp_path / "out").labels == ("maybe", "no", "yes")


@pytest.mark.parametrize(("changed", "says"), [
    ({"labels": ["a"]}, "labels must be at least two"),
    ({"labels": ["a", "a"]}, "labels must be at least two"),
    ({"labels": [1, 2]}, "labels is"),
    ({"labels": ["a", "b"], "architecture": "colbert"}, "labels are for"),
])  # fmt: skip
def test_a_config_with_labels_that_make_no_sense(changed: dict[str, Any], says: str) -> None:
    raw = ModelConfig(architecture="bi", base_name="").to_json()
    assert ModelConfig.from_json({**raw, "labels": ["a", "b"]}).labels == ("a", "b")
    with pytest.raises(CheckpointInvalid, match=says):
        ModelConfig.from_json({**raw, **changed})


def test_probabilities_do_not_overflow(base: Path) -> None:
    config = ModelConfig(
        architecture="bi", base_name="", labels=("a", "b"), max_context_tokens=40, max_candidate_tokens=16
    )
    ranker: Any = polyrank.from_base(str(base), config)
    with torch.no_grad():
        ranker.encoder.classes[-1].bias.copy_(torch.tensor([1e4, -1e4]))
    [told] = Classifier(ranker).classify("w1", ["w2"])
    assert told == {"a": 1.0, "b": 0.0}
    assert not math.isnan(told["a"])


@pytest.mark.parametrize("architecture", ["mix", "virt", "deformer"])
def test_a_residual_one_adds_to_its_first_stage_and_begins_as_it(architecture: str, base: Path) -> None:
    sizes: dict[str, Any] = {"max_context_tokens": 40, "max_candidate_tokens": 16}
    for residual in (True, False):
        kind: Any = ARCHITECTURES[architecture].options
        own = kind(residual=residual)
        config = ModelConfig(architecture=architecture, base_name="", labels=("a", "b"), own=own, **sizes)
        torch.manual_seed(4)
        encoder = Classifier(polyrank.from_base(str(base), config)).network.encoder.eval()
        assert isinstance(encoder, VectorEncoder)
        with torch.inference_mode():
            contexts = encoder.encode_contexts(
                TensorBatch.of(encoder.context_batch(config, [[CLS, *word_ids("w1 w2"), SEP]], 0))
            )
            texts = [[CLS, *word_ids(text), SEP] for text in ("w7", "w8 w9 w10")]
            candidates = encoder.encode_candidates(TensorBatch.of(encoder.candidate_batch(config, texts, 0)))
            logits, compared = encoder.class_logits(contexts, candidates), encoder.compared(contexts, candidates)
            assert encoder.classes is not None
            if not residual:
                assert encoder.first_classes is None
                torch.testing.assert_close(logits, encoder.classes(compared))
                continue
            assert encoder.first_classes is not None
            first = encoder.first_classes(encoder.first_compared(contexts, candidates))
            torch.testing.assert_close(logits, first)
            for parameter in encoder.classes.parameters():
                torch.nn.init.normal_(parameter)
            more = encoder.class_logits(contexts, candidates)
            torch.testing.assert_close(more, first + encoder.classes(compared))
            assert (more - first).abs().max() > 0.01
