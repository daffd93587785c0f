"""`polyrank loop` from a log of feedback to a new live model, killed again and again, and refused where it must be."""

import os
import random
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from command_line import COMMAND, Outcome, start
from loop_store import write_config, write_golden, write_store, written

from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.service.loop.state import Runs

Capture = pytest.CaptureFixture[str]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with feedback that no run has learnt from, and a golden set."""
    folder = tmp_path_factory.mktemp("taught")
    write_store(folder, written(600))
    write_golden(folder / "golden.jsonl")
    return folder


@pytest.fixture
def folder(taught: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(taught, tmp_path / "copy")


def run(folder: Path, *, command: list[str] = COMMAND, **settings: Any) -> Outcome:
    """Run the loop as a process of its own."""
    return ended_late(start("loop", "run", "--config", write_config(folder, **settings), "--json", command=command))


def ended_late(process: "subprocess.Popen[str]") -> Outcome:
    out, err = process.communicate(timeout=600)
    return Outcome(process.returncode, out, err)


def made(folder: Path) -> tuple[dict[str, dict[str, str]], bytes, bytes]:
    """What a run has made, to the byte: outputs of its stages, figures, vectors of the generation that is active."""
    runs, store = Runs(folder / "store"), GenerationStore(folder / "store")
    latest = runs.latest()
    assert latest is not None
    assert (latest.verdict, store.current()) == ("switched", latest.new)
    outputs = {name: done.outputs for name, done in latest.stages.items() if name != "build"}
    vectors = store.path(str(latest.new)) / "embeddings.bin"
    return outputs, (runs.path(latest.id) / "gate.json").read_bytes(), vectors.read_bytes()


def test_killed_at_any_moment_it_ends_with_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    """Half of the kills hit the command alone, whose stage goes on; the others hit both. They come later each time."""
    other = shutil.copytree(folder, tmp_path / "other")
    whole = run(other)
    assert whole.result["verdict"] == "switched"
    draw, kills = random.Random(), 0
    arguments = [*COMMAND, "loop", "run", "--config", str(write_config(folder))]
    while True:
        process = subprocess.Popen(
            arguments, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )
        try:
            process.wait(draw.uniform(0, 4 + 2 * kills))  # a stage that is killed each time would never end
        except subprocess.TimeoutExpired:
            kills += 1
            if draw.random() < 0.5:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            process.wait()
        else:
            assert process.returncode == 0
            break
    assert kills > 1
    assert made(folder) == made(other)
    assert not list((folder / "store" / "loop").glob("*/data"))
