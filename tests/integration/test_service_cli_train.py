"""`polyrank train`: what it prints and refuses."""

import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import Outcome, Terminal, call, write_rows
from tiny import write_checkpoint
from tiny_training import orders, rows

import polyrank
from polyrank.model.checkpoint.files import WEIGHTS_FILE
from polyrank.model.config import LexicalConfig
from polyrank.model.lexical.score import FEATURES
from polyrank.service.cli import main

BASE_SEED = 0
Capture = pytest.CaptureFixture[str]

EVIDENCE_TITLE = "R@1 over held-out lists; the second figure with an earlier turn of the conversation in each:"
TOO_FEW = "8 lists are too few to weigh words by, 50 are needed; give more dialogues"

RECIPE = {
    "--architecture": "bi", "--steps": 20, "--batch-size": 8, "--learning-rate": 0.01,
    "--warmup-steps": 2, "--schedule": "constant", "--dropout": 0,
    "--precision": "no", "--max-context-tokens": 40, "--max-candidate-tokens": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dialogues in which words help, enough to hold out 50."""
    return write_rows(tmp_path_factory.mktemp("many") / "orders.jsonl", orders(560))


def arguments(base: Path, data: Path, output: Path, /, **changed: object) -> list[object]:
    given = {"--base": base, "--train": data, "--output": output, **RECIPE}
    given |= {f"--{name.replace('_', '-')}": value for name, value in changed.items()}
    return ["train", *(each for pair in given.items() if pair[1] is not None for each in pair)]


def train(capsys: Capture, base: Path, data: Path, output: Path, /, *flags: str, **changed: object) -> Outcome:
    return call(capsys, *arguments(base, data, output, **changed), *flags)


@pytest.fixture
def valid(tmp_path: Path) -> Path:
    """Lists of all four replies."""
    replies = [f"w{n}" for n in range(4, 8)]
    found = [{**row, "candidates": replies} for row in rows(120)[80:]]
    return write_rows(tmp_path / "valid.jsonl", found)


@pytest.mark.quick
def test_the_result_is_one_object(capsys: Capture, base: Path, data: Path, valid: Path, tmp_path: Path) -> None:
    flags = ("--json", "--valid", str(valid), "--report", str(tmp_path / "run.html"))
    outcome = train(capsys, base, data, tmp_path / "out", *flags, steps=120)
    result = outcome.result
    assert list(result) == [
        "output", "fingerprint", "step", "selection", "files", "settings", "steps", "seconds", "valid",
    ]  # fmt: skip
    ranker = polyrank.load(tmp_path / "out")
    assert (result["output"], result["fingerprint"]) == (str(tmp_path / "out"), ranker.fingerprint)
    assert {**ranker.config.training, "seconds": result["seconds"]}.items() <= result.items()
    assert set(result["selection"]) == {"loss", "rescaled_loss", "recall_at_1", "code_cosine"}
    evaluated = call(capsys, "evaluate", "--model", tmp_path / "out", "--data", valid, "--json").result
    assert without_times(result["valid"]) == without_times(evaluated)
    assert json.dumps(evaluated).count("recall@1") >= 1
    replies = [f"w{n}" for n in range(4, 8)]
    right = [replies[ranker.rank(row["context"], replies)[0][0]] == row["response"] for row in rows(120)[80:]]
    assert sum(right) > 30, "a guess has 10 of 40"
    page = (tmp_path / "run.html").read_text()
    assert page.count("<polyline") == 5, "loss while training, and four figures of the held-out examples"
    assert f"{result['valid']['recall@1']:.4f}" in page


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_times(each) for name, each in value.items() if "seconds" not in name}
    return value


def test_progress(capsys: Capture, caplog: pytest.LogCaptureFixture, base: Path, data: Path, tmp_path: Path) -> None:
    outcome = train(capsys, base, data, tmp_path / "out")
    assert outcome.status == 0
    assert re.fullmatch(rf"{tmp_path}/out: trained 20 steps in \d+ s\n", outcome.out)
    survey, first, *others = outcome.err.splitlines()
    assert survey == f"{data}: 72 examples, 8 held out"
    figures = r"loss \d+\.\d{4}  rescaled_loss \d+\.\d{4}  recall_at_1 [01]\.\d{4}  code_cosine -?\d\.\d{4}"
    assert first.startswith("look 0 of 20: ")
    assert all(re.fullmatch(rf"look \d+ of 20: {figures}", line) for line in (first, *others))
    assert others[-1].startswith("look 20 of 20: ")
    assert warned(caplog) == [
        f"the checkpoint ranks without words: {TOO_FEW}",
        "scores are not calibrated: 8 lists with wrong replies are too few, 50 are needed; give more dialogues",
    ]
    written = json.loads((tmp_path / "out" / "polyrank.json").read_text())
    assert written["evidence"] is None
    assert written["calibration"] is None


def test_words_that_help_are_weighed_last(capsys: Capture, caplog, base: Path, many: Path, tmp_path: Path) -> None:
    outcome = train(capsys, base, many, tmp_path / "out", "--json")
    assert outcome.result["evidence"]["lists"] == 56
    assert set(polyrank.load(tmp_path / "out").config.evidence.weights) == set(FEATURES)
    lines = outcome.err.splitlines()
    *evidence, calibration = lines[lines.index(EVIDENCE_TITLE) + 1 :]
    assert calibration.startswith("relevance: sigmoid(")
    assert lines[lines.index(EVIDENCE_TITLE) - 1].startswith("look 20 of 20: ")
    assert [line.split()[:2] for line in evidence[:3]] == [
        ["without", "words"],
        ["all", "features"],
        ["without", "persona"],
    ]
    assert all(re.fullmatch(r"  [a-z ]{16} [01]\.\d{3} [01]\.\d{3}(  weight -?[\de.+-]+)?", line) for line in evidence)
    assert not warned(caplog)


def test_evidence_alone_leaves_the_vectors(capsys, base: Path, many: Path, valid: Path, tmp_path: Path) -> None:
    trained = tmp_path / "trained"
    train(capsys, base, many, trained, "--no-evidence")
    for seen in ([], ["--seen"]):
        output = tmp_path / f"fitted{len(seen)}"
        given = ["--only-evidence", "--base", trained, "--train", many, "--output", output, "--valid", valid, *seen]
        result = call(capsys, "train", *given, "--json").result
        assert set(polyrank.load(output).config.evidence.weights) == set(FEATURES)
        assert result["evidence"]["lists"] == (56 if seen else 500)
        assert result["settings"]["steps"] == 20
        assert (output / WEIGHTS_FILE).read_bytes() == (trained / WEIGHTS_FILE).read_bytes()
        assert result["fingerprint"] != polyrank.load(trained).fingerprint


def test_evidence_alone_that_does_not_help_is_refused(capsys: Capture, base: Path, data: Path, tmp_path: Path) -> None:
    """The replies of `data` repeat no word of the context."""
    for flags, says in ((["--seen"], TOO_FEW), ([], "words do not help: over 80 lists R@1 is 0.")):
        given = ["--only-evidence", "--base", base, "--train", data, "--output", tmp_path / "out", *flags]
        outcome = call(capsys, "train", *given, "--json")
        assert (outcome.status, outcome.out) == (1, "")
        assert outcome.err.splitlines()[-1].startswith(f"polyrank: nothing is written: {says}")
        assert not (tmp_path / "out").exists()


def test_words_that_do_not_help_a_model_over_what_it_has_seen_are_kept_and_told(
    capsys: Capture, caplog: pytest.LogCaptureFixture, base: Path, tmp_path: Path
) -> None:
    path = write_rows(tmp_path / "rows.jsonl", rows(560))
    given = ["--only-evidence", "--seen", "--base", base, "--train", path, "--output", tmp_path / "out"]
    assert call(capsys, "train", *given).status == 0
    assert polyrank.load(tmp_path / "out").config.evidence is not None
    [said] = warned(caplog)
    assert re.fullmatch(r"words do not help: over \d+ lists R@1 is .* and on others words may help", said)


def test_a_base_model_takes_evidence_too(capsys: Capture, base: Path, many: Path, tmp_path: Path) -> None:
    given = ["--only-evidence", "--base", base, "--train", many, "--output", tmp_path / "out"]
    outcome = call(capsys, "train", *given)
    said = re.escape(f"{tmp_path}/out: fitted the evidence and the calibration in ")
    assert re.fullmatch(rf"{said}\d+ s\n", outcome.out)
    assert EVIDENCE_TITLE in outcome.err
    assert polyrank.load(tmp_path / "out").config.weights == "base"


def test_calibration_alone_leaves_the_model(capsys: Capture, many: Path, tmp_path: Path) -> None:
    evidence = LexicalConfig(weights={"last": 3.0})
    for name, architecture in (("poly", "poly"), ("cross", "cross")):
        before = write_checkpoint(tmp_path, name, 1, architecture=architecture, evidence=evidence)
        output = tmp_path / f"{name}-calibrated"
        given = ["--only-calibration", "--base", before, "--train", many, "--output", output]
        outcome = call(capsys, "train", *given, "--json")
        fitted = polyrank.load(output)
        assert fitted.calibration is not None
        assert fitted.fingerprint == polyrank.load(before).fingerprint == outcome.result["fingerprint"]
        assert fitted.config.evidence == evidence
        assert (output / WEIGHTS_FILE).read_bytes() == (before / WEIGHTS_FILE).read_bytes()
        assert outcome.result["calibration"]["lists"] == (500 if architecture == "poly" else 150)
        assert (fitted.calibration.alone_slope is None) == (architecture == "poly")
        assert re.search(r"relevance: sigmoid\(.* \* score .*\), if 0.1 of the texts are right; at 0.5", outcome.err)
    again = ["--only-evidence", "--base", tmp_path / "poly-calibrated", "--train", many, "--output", tmp_path / "words"]
    assert call(capsys, "train", *again).status == 0
    assert polyrank.load(tmp_path / "words").calibration != polyrank.load(tmp_path / "poly-calibrated").calibration


def test_a_lexical_model_is_calibrated_as_it_is(capsys: Capture, many: Path, tmp_path: Path) -> None:
    given = ["--only-calibration", "--base", "lexical", "--train", many, "--output", tmp_path / "out"]
    said = re.escape(f"{tmp_path}/out: fitted the calibration in ")
    assert re.fullmatch(rf"{said}\d+ s\n", call(capsys, "train", *given).out)
    fitted = polyrank.load(tmp_path / "out")
    assert fitted.calibration is not None
    assert fitted.fingerprint == polyrank.load("lexical").fingerprint


def test_a_lexical_model_takes_weights_of_its_own(capsys: Capture, many: Path, valid: Path, tmp_path: Path) -> None:
    given = ["--only-evidence", "--base", "lexical", "--train", many, "--output", tmp_path / "out", "--valid", valid]
    result = call(capsys, "train", *given, "--json").result
    fitted = polyrank.load(tmp_path / "out")
    assert (fitted.architecture, fitted.fingerprint) == ("lexical", result["fingerprint"])
    assert set(fitted.config.evidence.weights) == set(FEATURES)
    assert fitted.fingerprint != polyrank.load("lexical").fingerprint
    assert result["evidence"]["lists"] == 500
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"README.md", "polyrank.json"}


def test_no_weights_of_a_lexical_model_have_seen_the_files(capsys: Capture, many: Path, tmp_path: Path) -> None:
    given = ["--only-evidence", "--seen", "--base", "lexical", "--train", many, "--output", tmp_path / "out"]
    assert "no weights have seen the files; give no --seen" in call(capsys, "train", *given).failure()
    assert not (tmp_path / "out").exists()


def test_a_cross_encoder_takes_evidence_too(capsys: Capture, many: Path, tmp_path: Path) -> None:
    cross = write_checkpoint(tmp_path, "cross", 1, architecture="cross")
    for seen in ([], ["--seen"]):
        output = tmp_path / f"fitted{len(seen)}"
        given = ["--only-evidence", "--base", cross, "--train", many, "--output", output, *seen]
        result = call(capsys, "train", *given, "--json").result
        assert set(polyrank.load(output).config.evidence.weights) == set(FEATURES)
        assert result["evidence"]["lists"] == (56 if seen else 150)
        assert (output / WEIGHTS_FILE).read_bytes() == (cross / WEIGHTS_FILE).read_bytes()


def test_the_vectors_alone_may_count(capsys: Capture, base: Path, many: Path, tmp_path: Path) -> None:
    outcome = train(capsys, base, many, tmp_path / "out", "--no-evidence", "--json")
    assert "evidence" not in outcome.result
    assert EVIDENCE_TITLE not in outcome.err
    assert json.loads((tmp_path / "out" / "polyrank.json").read_text())["evidence"] is None


def test_a_terminal_gets_a_bar_and_a_line_for_each_look(monkeypatch, base: Path, data: Path, tmp_path: Path) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main([str(each) for each in arguments(base, data, tmp_path / "out")]) == 0
    shown = re.split(r"[\r\n]+", terminal.getvalue())
    looks = [line.split(":")[0] for line in shown if line.startswith("look ")]
    assert looks == [f"look {step} of 20" for step in range(0, 21, 4)]
    *_, last = (line for line in shown if line.startswith("train:"))
    assert re.match(r"train: 100%\|.*\| 20/20 \[.*step.*, loss \d", last)


def test_lists_are_drawn_for_valid_and_runs_that_learn_nothing_are_told(
    capsys: Capture, caplog: pytest.LogCaptureFixture, base: Path, data: Path, tmp_path: Path
) -> None:
    short = train(capsys, base, data, tmp_path / "short", steps=3, warmup_steps=3, learning_rate=1e-9, valid=data)
    assert short.status == 0
    assert "the run has 3 steps and a warm-up of 3, so it will learn little" in caplog.text
    drawn = "4 candidates for 80 examples, from the file's replies (seed 0)"  # the file has four replies, one a topic
    assert drawn in short.out
    assert "recall@1 " in short.out
    caplog.clear()
    long = train(
        capsys, base, data, tmp_path / "long", steps=3, warmup_steps=2, learning_rate=1e-30, code_learning_rate=1e-30
    )
    assert long.status == 0
    assert warned(caplog)[0].startswith("no step lowered the loss on the examples held out")
