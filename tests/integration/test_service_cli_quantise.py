"""`polyrank quantise`: what it writes into a checkpoint, and that nothing is left of one that failed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Outcome, call, write_rows
from tiny import write_base, write_checkpoint
from tiny_int8 import require_int8

import polyrank
from polyrank.model.checkpoint.files import CONFIG_FILE
from polyrank.model.checkpoint.quantised import QUANTISED_FILE
from polyrank.model.quantisation import needs, run
from polyrank.model.registry import UniConfig
from polyrank.model.text.assembly import Conversation
from polyrank.service.cli.commands import train

pytest.importorskip("nncf")
pytestmark = pytest.mark.slow

Capture = pytest.CaptureFixture[str]
ROWS: list[dict[str, Any]] = [
    {"context": [f"w{n % 40} w{n % 7}", f"w{n % 11}"], "response": f"w{n % 13} w{n % 29}", "dialogue": f"{n // 2}"}
    for n in range(200)
]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    require_int8()
    monkeypatch.setattr(needs, "CALIBRATED_ON", 20)


def quantise(capsys: Capture, checkpoint: Path, *more: object) -> Outcome:
    data = write_rows(checkpoint.parent / "data.jsonl", ROWS)
    return call(capsys, "quantise", "--model", checkpoint, "--data", data, "--lists", 60, *more)


def content(checkpoint: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in checkpoint.iterdir()}


@pytest.mark.parametrize("fields", [
    {"architecture": "bi", "reduction": "mean"},
    {"architecture": "poly", "n_codes": 4, "shared_encoder": True},
    {"architecture": "cross"},
    {"architecture": "cross", "residual": True, "n_codes": 4},
    {"architecture": "colbert"},
    {"architecture": "uni", "residual": True, "n_codes": 4},
    {"architecture": "uni", "own": UniConfig(mask="arrow")},
], ids=lambda fields: "-".join(map(str, fields.values())))  # fmt: skip
def test_a_quantised_checkpoint_serves_in_int8(fields: dict[str, Any], tmp_path: Path, capsys: Capture) -> None:
    checkpoint = write_checkpoint(tmp_path, "mine", seed=0, **fields)
    (checkpoint / "README.md").write_text("# Mine\n\n## In int8\n\nold\n\n## Limits\n\nMany.\n")
    before = polyrank.load(checkpoint)
    outcome = quantise(capsys, checkpoint, "--json")
    assert outcome.status == 0, outcome.err
    told = json.loads(outcome.out.splitlines()[-1])
    assert told == json.loads((checkpoint / CONFIG_FILE).read_text())["quantisation"]
    assert (told["lists"], told["conversations"]) == (60, 30)
    assert told["made_for"] == before.fingerprint
    card = (checkpoint / "README.md").read_text()
    assert "old" not in card
    assert card.index("60 lists of 30 other") < card.index("## Limits\n\nMany.")
    ours = polyrank.load(checkpoint, backend="openvino", precision="int8")
    assert (ours.fingerprint, ours.precision) == (before.fingerprint, "int8")
    texts = [row["response"] for row in ROWS[:9]]
    one, other = (each.score_texts(Conversation.of(["w1 w2", "w3"]), texts, None) for each in (ours, before))
    assert 0 < np.linalg.norm(one - other) / np.linalg.norm(other) < 0.1


def test_an_interrupt_leaves_the_checkpoint_as_it_was(tmp_path: Path, capsys: Capture, monkeypatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    checkpoint = write_checkpoint(tmp_path, "mine", seed=0, architecture="bi")
    before = content(checkpoint)
    monkeypatch.setattr(run, "proof", interrupted)
    assert quantise(capsys, checkpoint).status == 1
    assert content(checkpoint) == before
    assert QUANTISED_FILE not in before


def test_equal_runs_find_the_same(tmp_path: Path, capsys: Capture) -> None:
    checkpoint = write_checkpoint(tmp_path, "mine", seed=0, architecture="bi")
    (checkpoint / "README.md").write_bytes(b"# Caf\xe9\n")  # of another encoding
    found = []
    for seed in (1, 1, 2):
        assert quantise(capsys, checkpoint, "--seed", seed).status == 0
        found.append(content(checkpoint))
    assert found[0] == found[1] != found[2]
    assert found[0]["README.md"].startswith(b"# Caf\xe9\n\n## In int8\n")


def test_training_may_end_with_it(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "LISTS", 60)
    data = write_rows(tmp_path / "data.jsonl", ROWS)
    base = write_base(tmp_path / "base", seed=0)
    given = ["--architecture", "bi", "--base", base, "--train", data, "--output", tmp_path / "out", "--no-evidence"]
    settings = ["--steps", 2, "--batch-size", 4, "--max-context-tokens", 40, "--max-candidate-tokens", 16]
    outcome = call(capsys, "train", *given, *settings, "--quantise", data, "--json")
    assert outcome.status == 0, outcome.err
    proof = json.loads((tmp_path / "out" / CONFIG_FILE).read_text())["quantisation"]
    assert outcome.result["quantisation"] == proof
    assert proof["lists"] == 60
    assert "## In int8" in (tmp_path / "out" / "README.md").read_text()


def test_training_refuses_what_cannot_be_quantised_before_it_begins(tmp_path: Path, capsys: Capture) -> None:
    data = write_rows(tmp_path / "data.jsonl", ROWS)
    base = write_base(tmp_path / "base", seed=0)
    given = ["--train", data, "--output", tmp_path / "out", "--quantise", data]
    outcome = call(capsys, "train", "--base", "lexical", "--only-evidence", *given)
    why = "a lexical model, which ranks by words alone; there is no transformer to quantise"
    assert (outcome.status, outcome.err) == (2, f"polyrank: {why}\n")
    outcome = call(capsys, "train", "--architecture", "bi", "--base", base, *given)
    assert outcome.status == 1
    assert outcome.err.startswith("polyrank: 100 conversations, of which 20 are to calibrate on, leave 160 lists")
    assert not (tmp_path / "out").exists()
