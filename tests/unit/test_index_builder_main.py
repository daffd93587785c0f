"""Signals to the builder's process: until it publishes they cancel the job, from then on they come too late."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from fakes import HashEncoder

from polyrank.index_builder import __main__ as builder
from polyrank.index_builder.building.job_records import CANCELLED, FAILED, SUCCEEDED, JobRecord, JobRequest, JobStore
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildResult
from polyrank.index_builder.store import locks
from polyrank.index_builder.store.generation_store import GenerationStore


@pytest.fixture
def own_signals() -> Iterator[None]:
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    yield
    for each, handler in handlers.items():
        signal.signal(each, handler)


class Signalling:
    """Sends a signal when it is destroyed: what the handler raises then is dropped."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("own_signals")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_python_drops_cancels_at_the_next_progress(tmp_path: Path, monkeypatch) -> None:
    def load(_name: str) -> HashEncoder:
        Signalling()
        return HashEncoder()

    run_with(tmp_path, monkeypatch, load)
    assert builder.main() == 1
    (record,) = JobStore(tmp_path).records()
    assert (record.state, record.stage) == (CANCELLED, None)
    assert list((tmp_path / "generations").iterdir()) == []


def run_with(root: Path, monkeypatch: pytest.MonkeyPatch, load: Callable[[str], HashEncoder]) -> str:
    """Queue a job for `main`, whose model is loaded by `load`; returns its id."""
    (root / "pool.jsonl").write_text('{"text": "a"}\n')
    job_id = JobStore(root).create(JobRequest(pool=(str(root / "pool.jsonl"),), model="hash")).id
    monkeypatch.setattr(builder, "_load", load)
    monkeypatch.setattr(os, "nice", lambda _more: 0)
    monkeypatch.setattr(sys, "argv", ["index_builder", "--store", str(root), "--job", job_id])
    return job_id


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("stage", "state"), [("encode", CANCELLED), ("manifest", CANCELLED), ("rename", SUCCEEDED), ("CURRENT", SUCCEEDED)]
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

    jobs, store = JobStore(tmp_path), GenerationStore(tmp_path)
    monkeypatch.setattr(builder, "build", build_with_a_signal)
    job_id = run_with(tmp_path, monkeypatch, lambda _name: HashEncoder())
    assert builder.main() == (0 if state == SUCCEEDED else 1)
    record = jobs.get(job_id)
    assert (record.state, record.generation) == (state, store.current())
    assert len(list((tmp_path / "generations").iterdir())) == (1 if state == SUCCEEDED else 0)


@pytest.mark.usefixtures("own_signals")
def test_a_signal_after_the_build_has_failed_leaves_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Signalled(JobStore):
        def update(self, record: JobRecord, *, within_seconds: float | None = None) -> None:
            if record.is_finished:
                os.kill(os.getpid(), signal.SIGTERM)
            super().update(record, within_seconds=within_seconds)

    monkeypatch.setattr(builder, "JobStore", Signalled)
    run_with(tmp_path, monkeypatch, lambda _name: HashEncoder())
    (tmp_path / "pool.jsonl").write_text("")
    assert builder.main() == 1
    (record,) = JobStore(tmp_path).records()
    assert (record.state, record.error) == (FAILED, "the pool holds no candidate")


@pytest.mark.usefixtures("own_signals")
def test_a_job_that_succeeded_waits_long_for_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = ExitStack()

    def build_beside_a_held_lock(*arguments: Any, **options: Any) -> BuildResult:
        result = build(*arguments, **options)
        held.enter_context(locks.locked(tmp_path / "jobs" / "update.lock"))
        Timer(0.3, held.close).start()
        return result

    monkeypatch.setattr(locks, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(builder, "build", build_beside_a_held_lock)
    job_id = run_with(tmp_path, monkeypatch, lambda _name: HashEncoder())
    assert builder.main() == 0
    record = JobStore(tmp_path).get(job_id)
    assert (record.state, record.generation) == (SUCCEEDED, GenerationStore(tmp_path).current())


@pytest.mark.usefixtures("own_signals")
def test_an_error_that_cannot_be_recorded_is_raised_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as held:

        def fail(_name: str) -> HashEncoder:
            held.enter_context(locks.locked(tmp_path / "jobs" / "update.lock"))
            raise ValueError("why")

        monkeypatch.setattr(locks, "WAIT_SECONDS", 0.01)
        monkeypatch.setattr(builder, "_END_WITHIN_SECONDS", 0.01, raising=False)
        run_with(tmp_path, monkeypatch, fail)
        with pytest.raises(ValueError, match="why"):
            builder.main()
