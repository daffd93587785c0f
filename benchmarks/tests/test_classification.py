"""The benchmark of classifiers, over tiny models and made-up pairs."""

from pathlib import Path

import numpy as np
import orjson
import pytest
import zstandard
from benchmarks import classification
from benchmarks.random_models import TINY, write_base

from polyrank.model.checkpoint.files import WEIGHTS_FILE
from polyrank.service.cli.commands.evaluate import measure


def write_pairs(path: Path, count: int) -> None:
    labels = ("contradiction", "entailment", "neutral")
    write(path, [{"a": f"w{n % 7} w9", "b": f"w{20 + n % 3}", "label": labels[n % 3]} for n in range(count)])


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_bytes(zstandard.compress(b"".join(orjson.dumps(row) + b"\n" for row in rows)))


def test_accuracies_are_those_of_evaluate_and_finished_runs_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pairs(tmp_path / "train.jsonl.zst", 60)
    write_pairs(tmp_path / "valid.jsonl.zst", 24)
    base, output = write_base(tmp_path / "base", TINY), tmp_path / "out"
    given = ["--data", str(tmp_path), "--output", str(output), "--base", str(base), "--models", "bi", "cross"]
    classification.main([*given, "--steps", "2"])
    table = capsys.readouterr().out.splitlines()
    written = (output / "bi-0" / WEIGHTS_FILE).stat().st_mtime_ns
    for name, row in zip(("bi", "cross"), table[2:], strict=True):
        accuracy = measure(str(output / f"{name}-0"), output / "valid.jsonl").as_object()["accuracy"]
        assert row.startswith(f"| {name} | {accuracy:.3f} ["), row
    classification.main([*given, "--steps", "2"])
    assert capsys.readouterr().out.splitlines() == table
    assert (output / "bi-0" / WEIGHTS_FILE).stat().st_mtime_ns == written
    with pytest.raises(SystemExit):
        classification.main([*given, "--steps", "3"])
    assert "was trained with another steps; give another --output" in capsys.readouterr().err


def test_sets_are_read_as_pairs_or_single_texts(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {
            "id": f"d{n}",
            "context": ["a", f"b{n}"],
            "positives": ["p"],
            "adversarial_negatives": ["q", "r"],
            "random_negatives": ["s"],
        }
        for n in range(10)
    ]
    write(tmp_path / "valid.jsonl.zst", rows)
    split = classification.replies(tmp_path)
    assert (len(split.train), len(split.valid)) == (8 * 4, 2 * 4)
    assert {row["dialogue"] for row in split.valid} == {"d4", "d9"}
    kinds = [(row["response"], row["label"]) for row in split.valid[:4]]
    assert kinds == [("p", "relevant"), ("q", "adversarial"), ("r", "adversarial"), ("s", "random")]
    write(tmp_path / "train.jsonl.zst", [{"text": f"w{n}", "intent": "card_arrival"} for n in range(20)])
    split = classification.banking(tmp_path)
    assert (len(split.train), len(split.valid)) == (18, 2)
    assert split.train[0] == {"context": ["w1"], "label": "card arrival"}
    for part in ("val", "oos_train", "oos_val"):
        write(tmp_path / f"{part}.jsonl.zst", [{"text": part, "intent": "oos"}])
    split = classification.clinc(tmp_path)
    assert [row["label"] for row in split.valid] == ["something else"] * 2
    assert len(split.train) == 21


def test_single_texts_are_trained_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, object]] = [{"text": f"w{n % 3} w{n % 20}", "intent": f"w{30 + n % 3}"} for n in range(60)]
    write(tmp_path / "train.jsonl.zst", rows)
    base, output = write_base(tmp_path / "base", TINY), tmp_path / "out"
    given = ["--set", "banking", "--data", str(tmp_path), "--output", str(output), "--base", str(base)]
    for _ in range(2):
        classification.main([*given, "--models", "bi", "--steps", "2"])
        accuracy = measure(str(output / "bi-0"), output / "valid.jsonl").as_object()["accuracy"]
        assert capsys.readouterr().out.splitlines()[2].startswith(f"| bi | {accuracy:.3f} [")


def test_differences_are_paired(capsys: pytest.CaptureFixture[str]) -> None:
    own = np.array([[1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0]])
    classification.print_table({"mix": own, "bi": 1 - own})
    _, _, mix, bi = capsys.readouterr().out.splitlines()
    assert mix.startswith("| mix | 0.625 [")
    assert "| 0.750, 0.500 | +0.250 [" in mix
    assert bi.endswith("| 0.250, 0.500 |  |")
