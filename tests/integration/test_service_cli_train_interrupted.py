"""Ctrl-C while `polyrank train` works: the folder is as it says, and the same command goes on or begins anew."""

import signal
import time
from collections import deque
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from command_line import Outcome, call, ended, forked, write_rows
from tiny import write_base
from tiny_training import orders
from warm_python import WarmPython

from polyrank.model.checkpoint import card
from polyrank.model.training.config import STATE_FILE
from polyrank.service.cli.output import Progress

RECIPE = [
    *("--architecture", "poly", "--steps", 12, "--batch-size", 8, "--warmup-steps", 2, "--learning-rate", 0.01),
    *("--dropout", 0, "--precision", "no", "--max-context-tokens", 40, "--max-candidate-tokens", 16),
]
ANEW = "polyrank: interrupted; nothing was written; the same command begins anew"


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """A command without its output; words help, and there are enough lists for them."""
    folder = tmp_path_factory.mktemp("interrupted")
    base = write_base(folder / "base", seed=0)
    data = write_rows(folder / "orders.jsonl", orders(560))
    valid = write_rows(folder / "valid.jsonl", orders(60))
    return ["train", "--base", base, "--train", data, "--valid", valid, "--json", *RECIPE]


def unfinished(output: Path) -> str:
    return f"polyrank: interrupted; {output} holds the unfinished run; the same command goes on with it"


def require_as_said(outcome: Outcome, output: Path) -> None:
    """It ended by the interrupt, and the folder is as its last line says."""
    assert (outcome.status, outcome.out) == (1, "")
    last = outcome.err.splitlines()[-1]
    if (output / STATE_FILE).exists():
        assert last == unfinished(output)
    else:
        assert last == ANEW
        assert not output.exists()


@pytest.mark.parametrize(("stage", "goes_on"), [
    ("loading libraries", False), ("loading base", False), ("reading orders.jsonl", False),
    ("reading what is held out", False), ("looking", False), ("train", True),
    ("loading out", True), ("scoring lists", True), ("weighing words", True),
    ("calibrating", True), ("candidates", True), ("contexts", True),
])  # fmt: skip
def test_at_each_stage(capsys, monkeypatch, given: list[object], tmp_path: Path, stage: str, goes_on: bool) -> None:
    output, show = tmp_path / "out", Progress.__call__

    def pressed(self: Progress, name: str, done: int, *more: Any) -> None:
        if name == stage:
            raise KeyboardInterrupt
        show(self, name, done, *more)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "__call__", pressed)
        outcome = call(capsys, *given, "--output", output)
    require_as_said(outcome, output)
    assert (output / STATE_FILE).exists() == goes_on
    assert call(capsys, *given, "--output", output).result["steps"] == 12
    assert not (output / STATE_FILE).exists()
    assert (output / "README.md").is_file()


@pytest.mark.parametrize("only", ["--only-evidence", "--only-calibration"])
def test_what_only_fits_begins_anew(capsys, monkeypatch, given: list[object], tmp_path: Path, only: str) -> None:
    def pressed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(card, "checkpoint_card", pressed)
        outcome = call(capsys, *given, only, "--output", tmp_path / "out")
    require_as_said(outcome, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert call(capsys, *given, only, "--output", tmp_path / "out").result["calibration"]["lists"] > 50


@pytest.mark.timeout(900)  # fifteen runs
def test_at_any_moment(warm_python: WarmPython, given: list[object], tmp_path: Path) -> None:
    """A real process and real signals, at moments of all its time; what goes on ends with the same weights."""
    environment = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    began = time.monotonic()
    whole = ended(forked(warm_python, *given, "--output", tmp_path / "whole", **environment)).result
    seconds = time.monotonic() - began
    said, eighths, numbers = set(), deque(range(1, 8)), count()
    while eighths:
        eighth, output, began = eighths.popleft(), tmp_path / f"{next(numbers)}", time.monotonic()
        process = forked(warm_python, *given, "--output", output, **environment)
        time.sleep(seconds * eighth / 8)
        process.send_signal(signal.SIGINT)
        outcome = ended(process)
        if outcome.status == 0:  # it was quicker than the ones before
            seconds = min(seconds, time.monotonic() - began)
            eighths.append(eighth)
            continue
        require_as_said(outcome, output)
        said.add(outcome.err.splitlines()[-1] == ANEW)
        again = ended(forked(warm_python, *given, "--output", output, **environment)).result
        assert again["fingerprint"] == whole["fingerprint"]
    assert False in said, "no moment was late enough to go on from"
