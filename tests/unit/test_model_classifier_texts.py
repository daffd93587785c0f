"""Classifiers of single texts: every architecture scores the names of the classes as replies, and learns which fits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import write_rows
from golden import oracle
from golden.second_stage import hidden
from tiny import CLS, SEP, word_ids
from tiny_training import run, settings

import polyrank
from polyrank.model.config import ModelConfig
from polyrank.model.errors import CheckpointInvalid, InvalidInput, TrainingDataInvalid
from polyrank.model.rankers.classifier import Classifier
from polyrank.model.rankers.load import load_classifier
from polyrank.model.registry import classifiers
from polyrank.model.text.assembly import Conversation
from polyrank.model.text.dialogues import read_dialogues
from polyrank.model.training.config import Data

pytestmark = pytest.mark.slow

NAMES = ("w4", "w5 w6", "w7", "w8")
OPTIONS: dict[str, dict[str, Any]] = {
    "cross": {"negatives": 3},
    "deformer": {"upper_layers": 1},
    "mix": {"rows": 2, "interaction_layers": [-2, -1]},
}
RATES = {"deformer": 3e-3, "cross": 3e-3}


def examples(count: int = 64) -> list[dict[str, Any]]:
    """Texts of which the first word says the class; a class may hold what fits no other."""
    return [{"context": [f"w{n % 4} w{16 + n % 23}"], "label": NAMES[n % 4], "dialogue": f"d{n}"} for n in range(count)]


@pytest.fixture(scope="module", params=classifiers())
def learnt(request: pytest.FixtureRequest, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory, name = tmp_path_factory.mktemp(request.param), request.param
    data = write_rows(directory / "texts.jsonl", examples())
    recipe: dict[str, Any] = {"steps": 45, "learning_rate": RATES.get(name, 5e-3), **OPTIONS.get(name, {})}
    ranker, _ = run(settings(base, architecture=name, task="classify", **recipe), data, directory / "trained")
    assert isinstance(ranker, Classifier)
    return directory / "trained"


def test_it_learns_which_class_a_text_is_of(learnt: Path) -> None:
    classifier = load_classifier(learnt)
    assert (classifier.labels, classifier.reads_pairs) == (tuple(sorted(NAMES)), False)
    assert (classifier.config.evidence, classifier.config.calibration) == (None, None)
    rows = examples()
    told = classifier.classify("", [each["context"][0] for each in rows])
    assert np.mean([next(iter(own)) == each["label"] for own, each in zip(told, rows, strict=True)]) > 0.95
    assert all(sum(own.values()) == pytest.approx(1.0, abs=1e-5) for own in told)


def test_a_text_is_told_the_same_beside_others_and_alone(learnt: Path) -> None:
    classifier = load_classifier(learnt)
    texts = ["w1", "w2 w3 w4 w30 w31", "w3 w9"]
    together = classifier.classify(["w9", "w1 w2"], texts)
    alone = [classifier.classify(["w9", "w1 w2"], [text])[0] for text in texts]
    for own, single in zip(together, alone, strict=True):
        assert single == pytest.approx(own, abs=1e-5)
    conversations = [Conversation.of(["w9", "w1 w2", text]) for text in texts]
    rows = classifier.of_conversations(conversations)
    assert [classifier.by_label(row) for row in rows] == [pytest.approx(own, abs=1e-5) for own in together]
    assert classifier.classify("", []) == []
    with pytest.raises(InvalidInput, match="context is empty"):
        classifier.classify("", [" "])


def test_its_probabilities_are_the_softmax_of_all_scores(base: Path) -> None:
    config = ModelConfig(
        architecture="bi", base_name="", labels=NAMES, class_from="score", score_scale=3.0, normalize=True,
        max_context_tokens=40, max_candidate_tokens=16,
    )  # fmt: skip
    classifier = Classifier(polyrank.from_base(str(base), config))
    encoder = classifier.network.encoder

    def vector(side: str, text: str) -> list[float]:
        outputs = hidden(getattr(encoder, side), [CLS, *word_ids(text), SEP], None)
        return oracle.unit(oracle.reduce(outputs, "first"))

    x = vector("context", "w1 w2")
    expected = oracle.softmax([3.0 * oracle.dot(x, vector("candidate", name)) for name in NAMES])
    [told] = classifier.classify("", ["w1 w2"])
    assert [told[name] for name in NAMES] == pytest.approx(expected, abs=1e-5)


def test_every_class_competes_in_every_batch(base: Path, tmp_path: Path) -> None:
    """A batch of two texts is measured against all four classes."""
    data = write_rows(tmp_path / "texts.jsonl", examples())
    config = settings(base, task="classify", steps=1, batch_size=2, score_scale=1e-6, learning_rate=1e-9)
    _, seen = run(config, data, tmp_path / "out")
    assert seen.losses[0] == pytest.approx(np.log(4), abs=1e-3)
    assert seen.looks[0][1] == pytest.approx(np.log(4), abs=1e-3)


def test_a_line_without_a_response_is_a_single_text(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [examples()[1], {"context": ["w1"], "response": "w2", "label": "w5"}])
    single, pair = read_dialogues(path)
    assert (single.is_single_text, single.response, single.category) == (True, "w5 w6", "w5 w6")
    assert (pair.is_single_text, pair.response, pair.category) == (False, "w2", "w5")
    for wrong in ({"context": ["w1"]}, {"context": ["w1"], "label": " "}, {"context": ["w1"], "label": 1}):
        with pytest.raises(InvalidInput, match="response must be a text"):
            list(read_dialogues(write_rows(tmp_path / "wrong.jsonl", [wrong])))


def test_files_that_do_not_go_together(base: Path, tmp_path: Path) -> None:
    some = examples()
    pair = {**some[0], "response": "w9"}
    for rows, says in (
        ([*some, pair], "64 of 65 examples have no response: either each is a pair"),
        (
            [{**each, "label": "W4" if n % 8 == 0 else each["label"]} for n, each in enumerate(some)],
            "the classes 'W4' and 'w4' differ only in case and the like",
        ),
    ):
        data = write_rows(tmp_path / "rows.jsonl", rows)
        with pytest.raises(TrainingDataInvalid, match=says):
            run(settings(base, task="classify"), data, tmp_path / "out")
    data = write_rows(tmp_path / "rows.jsonl", some)
    with pytest.raises(TrainingDataInvalid, match="its labels are classes"):
        run(settings(base), data, tmp_path / "out")
    with pytest.raises(InvalidInput, match="every-turn is for task rank"):
        run(settings(base, task="classify"), Data([data], every_turn=True), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_it_goes_on_from_a_model_that_ranks(base: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = ModelConfig(architecture="mix", base_name="", max_context_tokens=40, max_candidate_tokens=16)
    ranker = polyrank.from_base(str(base), config)
    ranker.save(tmp_path / "ranks")
    data = write_rows(tmp_path / "texts.jsonl", examples())
    recipe: dict[str, Any] = {"steps": 1, "learning_rate": 1e-12, "code_learning_rate": 1e-12}
    run(settings(tmp_path / "ranks", architecture="mix", task="classify", **recipe), data, tmp_path / "out")
    scores = dict(ranker.rank("w1 w2", sorted(NAMES)))
    expected = oracle.softmax([scores[at] for at in range(len(NAMES))])
    told = load_classifier(tmp_path / "out").classify("", ["w1 w2"])[0]
    assert [told[name] for name in sorted(NAMES)] == pytest.approx(expected, abs=1e-4)


def test_a_config_says_what_tells_the_classes() -> None:
    config = ModelConfig(architecture="bi", base_name="", labels=("a", "b"), class_from="score")
    assert ModelConfig.from_json(config.to_json()) == config
    for changed, says in (({"labels": []}, "class_from is for a classifier"), ({"class_from": "x"}, "class_from")):
        with pytest.raises(CheckpointInvalid, match=says):
            ModelConfig.from_json({**config.to_json(), **changed})
