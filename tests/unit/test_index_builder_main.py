"""Signals to the builder's process: until it publishes they cancel the job, from then on they come too late."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import HashEncoder

from index_builder import __main__ as builder
from index_builder.build import BuildResult, build
from index_builder.generations import GenerationStore
from index_builder.jobs import CANCELLED, SUCCEEDED, JobRequest, JobStore


@pytest.fixture
def own_signals() -> Iterator[None]:
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    yield
    for each, handler in handlers.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("stage", "state"),
    [("encode", CANCELLED), ("manifest", CANCELLED), ("rename", SUCCEEDED), ("CURRENT", SUCCEEDED)],
)
@pytest.mark.usefixtures("own_signals")
def test_a_signal_cancels_until_others_see_the_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, state: str, number: int
) -> None:
    def build_with_a_signal(*arguments: Any, progress: Any, **options: Any) -> BuildResult:
        def told(at: str, done: int, total: int | None) -> None:
            progress(at, done, total)
            if at == stage:
                os.kill(os.getpid(), number)

        return build(*arguments, progress=told, **options)

    (tmp_path / "pool.jsonl").write_text('{"text": "a"}\n')
    jobs, store = JobStore(tmp_path), GenerationStore(tmp_path)
    job_id = jobs.create(JobRequest(pool=(str(tmp_path / "pool.jsonl"),), model="hash")).id
    monkeypatch.setattr(builder, "build", build_with_a_signal)
    monkeypatch.setattr(builder, "_load", lambda _name: HashEncoder())
    monkeypatch.setattr(os, "nice", lambda _more: 0)
    monkeypatch.setattr(sys, "argv", ["index_builder", "--store", str(tmp_path), "--job", job_id])
    assert builder.main() == (0 if state == SUCCEEDED else 1)
    record = jobs.get(job_id)
    assert (record.state, record.generation) == (state, store.current())
    assert len(list((tmp_path / "generations").iterdir())) == (1 if state == SUCCEEDED else 0)
