"""The benchmark of classifiers, over tiny models and made-up pairs."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import pytest
import zstandard
from accelerate.state import AcceleratorState
from benchmarks import classification
from benchmarks.random_models import TINY, write_base

from polyrank.model.checkpoint.files import WEIGHTS_FILE
from polyrank.service.cli.commands.evaluate import measure


@pytest.fixture(autouse=True)
def own_precision() -> Iterator[None]:
    """Forget the precision of another test's training, which holds for the whole process."""
    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


def write_pairs(path: Path, count: int) -> None:
    labels = classification.LABELS
    rows = [{"a": f"w{n % 7} w9", "b": f"w{20 + n % 3}", "label": labels[n % 3]} for n in range(count)]
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


def test_differences_are_paired(capsys: pytest.CaptureFixture[str]) -> None:
    own = np.array([[1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0]])
    classification.print_table({"mix": own, "bi": 1 - own})
    _, _, mix, bi = capsys.readouterr().out.splitlines()
    assert mix.startswith("| mix | 0.625 [")
    assert "| 0.750, 0.500 | +0.250 [" in mix
    assert bi.endswith("| 0.250, 0.500 |  |")
