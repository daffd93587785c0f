"""The script that runs all that waits for a GPU, small and on a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.gpu import precision

REPOSITORY = Path(__file__).parents[2]


def run(*given: str | Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # the script calls python
    return subprocess.run(
        ["bash", "benchmarks/gpu/all.sh", *given],
        cwd=REPOSITORY, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_part_that_fails_is_named_and_the_others_bring_their_figures(tmp_path: Path) -> None:
    base, out = tmp_path / "base", tmp_path / "out"
    base.mkdir()
    done = run(out, "--device", "cpu", "--base", base)
    assert (done.returncode, done.stderr) == (1, "")
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert {name: part["status"] for name, part in summary["parts"].items()} == {
        "check": 0, "scan": 0, "precision": 1, "serve": 0, "training": 0
    }  # fmt: skip
    assert summary["parts"]["precision"]["said"] == "failed with status 1"
    assert "config.json is missing" in (out / "precision.log").read_text(encoding="utf-8")
    assert [row["wrong"] for row in rows(out / "check.jsonl")[1:]] == [0] * 4
    assert {(row["n"], row["wrong"]) for row in rows(out / "scan.jsonl")[1:]} == {(100, 0), (200, 0)}
    served = rows(out / "serve.jsonl")[1:]
    assert {row["what"] for row in served} == {"batch", "memory", "batches", "build", "encode", "rank"}
    assert {row["precision"] for row in served if row["what"] == "build"} == {"float32", "float16", "bfloat16"}
    [trained] = rows(out / "training.jsonl")[1:]
    assert trained["steps"] == 3


def test_without_a_gpu_it_says_what_to_do(tmp_path: Path) -> None:
    done = run(tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0].endswith("give --device cpu to see that the parts run")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([], "give OUT"),
        (["out", "more"], "one OUT is enough"),
        (["out", "--device", "tpu"], "not tpu"),
        (["out", "--base", "none"], "none is no folder"),
        (["out", "--base"], "--base needs a value"),
        (["out", "--fast"], "--fast is unknown"),
    ],
)
def test_wrong_usage_is_named(given: list[str], why: str) -> None:
    done = run(*given)
    assert done.returncode == 2
    assert why in done.stderr


def test_every_precision_of_every_part_is_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert precision.main(["--device", "cpu", "--tiny"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    tried = [(row["model"], row["part"], row["tried"]) for row in told if "part" in row]
    parts = [("poly", "contexts"), ("poly", "candidates"), ("uni", "known"), ("uni", "beside")]
    assert tried == [(*part, each) for part in parts for each in ("float32", "bfloat16", "float16")]
    assert [row["model"] for row in told if "choice" in row] == ["poly", "uni"]
