"""`polyrank serve` as a process: ready, stopped, killed, and without its Redis."""

import json
import signal
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_line import READY, call, ended, forked, start
from service_fakes import pool
from warm_python import WarmProcess, WarmPython

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions

Capture = pytest.CaptureFixture[str]
Serve = Callable[..., tuple[Any, str]]


@pytest.fixture(scope="module")
def store(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    ranker = polyrank.load(checkpoints / "poly")
    build(ranker, pool(50), root)
    build(ranker, pool(60, "later"), root, BuildOptions(activate=False))
    return root


@pytest.fixture
def served(warm_python: WarmPython) -> Iterator[Serve]:
    """Starts servers on free ports; returns the process and its URL once it is ready."""
    started: list[subprocess.Popen[str] | WarmProcess] = []

    def begin(*flags: object, cold: bool = False, port: str = "0", **environment: str) -> tuple[Any, str]:
        begun = start if cold else partial(forked, warm_python)
        process = begun("serve", "--port", port, *flags, POLYRANK_DRAIN_DELAY_S="0", **environment)
        started.append(process)
        line = process.stdout.readline()
        assert line.startswith(READY + "http://127.0.0.1:"), line + ended(process).err
        return process, line.removeprefix(READY).strip()

    yield begin
    for process in started:
        if process.returncode is None:
            process.kill()
            process.communicate()


def same_within_rounding(mine: Any, theirs: Any) -> bool:
    """Compare answers of two processes: products of matrices round by where their numbers lie in memory."""
    if isinstance(mine, dict):
        return all(same_within_rounding(value, theirs[name]) for name, value in mine.items())
    if isinstance(mine, list):
        return len(mine) == len(theirs) and all(map(same_within_rounding, mine, theirs))
    return bool(mine == pytest.approx(theirs, abs=1e-4) if isinstance(mine, float) else mine == theirs)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)


def test_ready_killed_started_again_and_stopped(capsys: Capture, served: Serve, store: Path) -> None:
    process, url = served("--store", store, cold=True)
    active = (store / "CURRENT").read_text().strip()
    assert get(f"{url}/readyz") == {"status": "ready", "generation": active}
    mine = call(capsys, "rank", "w1 w2", "w3", "--store", store, "--json").result
    theirs = call(capsys, "rank", "w1 w2", "w3", "--url", url, "--json").result
    assert mine["generation"] == active
    assert same_within_rounding(mine, theirs)
    process.kill()
    assert ended(process).status == -signal.SIGKILL
    again, same_url = served("--store", store, port=url.rsplit(":", 1)[1])
    assert (same_url, get(f"{url}/readyz")["generation"]) == (url, active)
    again.send_signal(signal.SIGTERM)
    outcome = ended(again)
    assert (outcome.status, outcome.out) == (0, ""), outcome.err
    assert "Traceback" not in outcome.err


def test_a_first_start_says_what_it_does(served: Serve, store: Path, tmp_path: Path) -> None:
    cache = {"POLYRANK_COMPILED_CACHE_DIR": str(tmp_path), "POLYRANK_COMPILED_CACHE_MB": "100"}
    choice = {"POLYRANK_BACKEND": "auto", "POLYRANK_PRECISION": "auto"}
    process, _ = served("--store", store, "--workers", 2, POLYRANK_LOG_FORMAT="json", **cache, **choice)
    process.send_signal(signal.SIGTERM)
    outcome = ended(process)
    lines = [json.loads(line) for line in outcome.err.splitlines()]
    told = [line for line in lines if line["logger"] == "polyrank.model.progress"]
    assert all(type(line["seconds"]) is float for line in told)
    done = Counter(line["message"] for line in told if not line["message"].startswith("still "))
    stages = ["loading the server's code", "loading model", "warming up the model", "preparing the search", "starting"]
    # Either worker may have chosen the back-end, but one of them speaks.
    parts = [f"making the encoder of {part} ready" for part in ("contexts", "candidates")]
    assert {stage: done[stage] for stage in (*stages, *parts)} == dict.fromkeys((*stages, *parts), 1)
