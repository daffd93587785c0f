"""From labelled pairs to a classifier and its figures, by the command line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call, write_rows
from tiny import write_base, write_checkpoint

import polyrank
from polyrank.model.text.assembly import Conversation

Capture = pytest.CaptureFixture[str]
WORDS = {"yes": "w4", "no": "w5", "maybe": "w6"}


def pairs(count: int) -> list[dict[str, Any]]:
    """A word of the response says the class."""
    rows = []
    for n in range(count):
        label = list(WORDS)[n % 3]
        rows.append(
            {"context": [f"w{10 + n % 25} w{n % 4}"], "response": f"{WORDS[label]} w{30 + n % 9}", "label": label}
        )
    return rows


RECIPE = ["--steps", 60, "--batch-size", 8, "--learning-rate", "1e-2", "--code-learning-rate", "1e-2", "--warmup-steps"]
SIZES = [2, "--schedule", "constant", "--dropout", 0, "--max-context-tokens", 40, "--max-candidate-tokens", 16]
SIZES += ["--precision", "no"]


def test_trained_and_measured(capsys: Capture, tmp_path: Path) -> None:
    base, data = write_base(tmp_path / "base", 3), write_rows(tmp_path / "pairs.jsonl", pairs(90))
    valid, out = write_rows(tmp_path / "valid.jsonl", pairs(40)), tmp_path / "out"
    what = ["--task", "classify", "--architecture", "bi", "--base", base, "--train", data, "--output", out]
    result = call(capsys, "train", *what, *RECIPE, *SIZES, "--valid", valid, "--json").result
    assert result["settings"]["labels"] == ["maybe", "no", "yes"]
    assert not any(out.glob("*state*"))
    card = (out / "README.md").read_text()
    assert "tells which of 3 classes" in card
    assert "| accuracy |" in card
    found = call(
        capsys, "evaluate", "--model", out, "--data", valid, "--output", tmp_path / "told.jsonl", "--json"
    ).result
    told = [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines()]
    classifier = polyrank.load_classifier(out)
    rows = pairs(40)
    probabilities = classifier.probabilities([(Conversation.of(each["context"]), each["response"]) for each in rows])
    right = np.array([classifier.labels.index(each["label"]) for each in rows])
    assert found["accuracy"] == pytest.approx((probabilities.argmax(axis=1) == right).mean())
    assert found["accuracy"] > 0.9
    assert found["log_loss"] == pytest.approx(-np.log(probabilities[np.arange(40), right]).mean(), rel=1e-4)
    low, high = found["interval"]["accuracy"]
    assert low <= found["accuracy"] <= high
    assert result["valid"]["accuracy"] == found["accuracy"]
    assert [each["label"] for each in told] == [each["label"] for each in rows]
    assert [each["told"] for each in told] == [classifier.labels[at] for at in probabilities.argmax(axis=1)]

    ranking = write_checkpoint(tmp_path, "poly", seed=0, architecture="poly")
    ranked = write_rows(tmp_path / "ranked.jsonl", [{"context": ["w1"], "response": "w2", "candidates": ["w2", "w3"]}])
    other = write_rows(tmp_path / "other.jsonl", [{**pairs(1)[0], "label": "perhaps"}])
    for arguments, status, says in (
        (["evaluate", "--model", out, "--data", ranked], 1, "1 examples have no class; give each a label, as a text"),
        (["evaluate", "--model", out, "--data", other], 1, "knows no class 'perhaps'; its classes: maybe, no, yes"),
        (["evaluate", "--model", out, "--against", ranking, "--data", valid], 2, "tells no classes; give a checkpoint"),
        (
            ["evaluate", "--model", ranking, "--against", out, "--data", ranked],
            2,
            "is a classifier, which ranks nothing",
        ),
        (
            ["export", out, "--to", "sentence-transformers", "--output", tmp_path / "st"],
            2,
            "is a classifier, which ranks",
        ),
        (["build", "--model", out, "--pool", ranked, "--store", tmp_path / "store"], 2, "is a classifier, which ranks"),
    ):
        outcome = call(capsys, *arguments)
        assert says in outcome.err, arguments
        assert outcome.status == status, arguments


def test_single_texts(capsys: Capture, tmp_path: Path) -> None:
    """Their class is one of those whose names the model scores; one of them holds what fits no other."""
    rows = [{"context": [f"w{n % 3} w{16 + n % 23}"], "label": ("w4", "w5 w6", "oos")[n % 3]} for n in range(60)]
    base, data, out = write_base(tmp_path / "base", 3), write_rows(tmp_path / "texts.jsonl", rows), tmp_path / "out"
    what = ["--task", "classify", "--architecture", "bi", "--base", base, "--train", data, "--output", out]
    result = call(capsys, "train", *what, *RECIPE, *SIZES, "--valid", data, "--json").result
    assert result["settings"]["class_from"] == "score"
    assert result["valid"]["accuracy"] > 0.9
    card = (out / "README.md").read_text()
    assert "which of 3 classes the last turn of a conversation is (oos, w4, w5 w6)" in card
    assert 'classify("", [' in card
    classifier = polyrank.load_classifier(out)
    told = classifier.classify("", [each["context"][0] for each in rows])
    right = [next(iter(own)) == each["label"] for own, each in zip(told, rows, strict=True)]
    assert result["valid"]["accuracy"] == pytest.approx(np.mean(right))
    wrong = write_rows(tmp_path / "wrong.jsonl", [{**rows[0], "response": "w9"}])
    ranking = write_checkpoint(tmp_path, "poly", seed=0, architecture="poly")
    for model, file, says in (
        (out, wrong, f"{out} tells classes of single texts; 0 of 1 examples are single texts"),
        (ranking, data, f"{data}: its labels are classes; give a classifier to measure how they are told"),
    ):
        outcome = call(capsys, "evaluate", "--model", model, "--data", file)
        assert outcome.status == 1
        assert says in outcome.err
