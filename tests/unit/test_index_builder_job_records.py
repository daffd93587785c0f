import errno
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest

from polyrank.index_builder.building import job_records as module
from polyrank.index_builder.building.job_records import (
    CANCELLED,
    FAILED,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    JobRequest,
    JobStore,
)
from polyrank.index_builder.errors import JobConflict, JobNotFound

REQUEST = JobRequest(pool=("a.jsonl", "b.csv"), model="m", activate=False)


@pytest.fixture
def jobs(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path)


def test_a_job_is_kept_as_it_was_asked_for(jobs: JobStore, tmp_path: Path) -> None:
    record = jobs.create(REQUEST)
    assert record.state == QUEUED
    assert jobs.get(record.id) == JobStore(tmp_path).get(record.id) == record
    assert record.request == REQUEST
    assert datetime.now(UTC) - datetime.fromisoformat(record.created) < timedelta(minutes=1)


def test_a_job_runs_to_its_end(jobs: JobStore) -> None:
    record = jobs.create(REQUEST)
    with jobs.running(record.id) as running:
        assert jobs.get(record.id) == running
        assert (running.state, running.pid, running.is_finished) == (RUNNING, os.getpid(), False)
        assert running.started is not None
        jobs.update(running.evolve(stage="encode", done=5, total=10, rate=2.5, eta_seconds=2.0))
        assert jobs.get(record.id).done == 5
        jobs.update(running.finish(SUCCEEDED, generation="g"))
    ended = jobs.get(record.id)
    assert (ended.state, ended.generation, ended.is_finished) == (SUCCEEDED, "g", True)
    assert (ended.stage, ended.done, ended.total, ended.rate, ended.eta_seconds) == ("done", 1, 1, None, None)
    assert ended.finished is not None


def test_one_job_at_a_time(jobs: JobStore) -> None:
    first = jobs.create(REQUEST)
    with pytest.raises(JobConflict) as caught:
        jobs.create(REQUEST)
    assert caught.value.job_id == first.id
    with jobs.running(first.id) as running:
        with pytest.raises(JobConflict):
            jobs.create(REQUEST)
        with pytest.raises(JobConflict), jobs.running(first.id):
            raise AssertionError
        jobs.update(running.finish(FAILED, error="why"))
    second = jobs.create(REQUEST)
    assert [each.id for each in jobs.records()] == [second.id, first.id]
    assert jobs.active() == second


def test_of_many_that_come_at_once_one_is_taken(jobs: JobStore) -> None:
    def create(_: int) -> str | None:
        try:
            return jobs.create(REQUEST).id
        except JobConflict:
            return None

    with ThreadPoolExecutor(8) as threads:
        created = [each for each in threads.map(create, range(32)) if each]
    assert len(created) == len(jobs.records()) == 1


@pytest.mark.parametrize("state", [SUCCEEDED, FAILED, CANCELLED])
def test_a_job_that_has_ended_is_not_run_again(jobs: JobStore, state: str) -> None:
    record = jobs.create(REQUEST)
    jobs.update(record.finish(state))
    with pytest.raises(JobConflict), jobs.running(record.id):
        raise AssertionError


def test_a_job_whose_process_was_killed_is_failed(jobs: JobStore, tmp_path: Path) -> None:
    record = jobs.create(REQUEST)
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from polyrank.index_builder.building.job_records import JobStore\n"
        "with JobStore(Path(sys.argv[1])).running(sys.argv[2]): os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    subprocess.run([sys.executable, "-c", script, str(tmp_path), record.id], env=environment)
    assert json.loads((tmp_path / "jobs" / f"{record.id}.json").read_text())["state"] == RUNNING
    found = jobs.get(record.id)
    assert (found.state, found.error) == (FAILED, "interrupted: the process that ran it is gone")
    assert jobs.active() is None
    jobs.create(REQUEST)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_job_that_has_died_is_failed_where_nothing_can_be_written(jobs: JobStore, monkeypatch, number: int) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, "no")

    record = jobs.create(REQUEST)
    jobs.update(record.evolve(state=RUNNING))
    monkeypatch.setattr(module, "write_atomically", refuse)
    assert jobs.get(record.id).state == FAILED
    assert [each.state for each in jobs.records()] == [FAILED]
    assert jobs.active() is None


def test_a_job_that_nobody_took_is_failed(jobs: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    record = jobs.create(REQUEST)
    jobs.update(record.evolve(created=(datetime.now(UTC) - timedelta(seconds=59)).isoformat()))
    assert jobs.get(record.id).state == QUEUED
    jobs.update(record.evolve(created=(datetime.now(UTC) - timedelta(seconds=61)).isoformat()))
    assert jobs.get(record.id).state == FAILED
    with pytest.raises(JobConflict), jobs.running(record.id):
        raise AssertionError


def test_a_job_is_cancelled_where_nobody_runs_it_and_whoever_runs_it_is_asked(jobs: JobStore) -> None:
    record = jobs.create(REQUEST)
    assert jobs.withdraw(record.id).state == CANCELLED
    with pytest.raises(JobConflict), jobs.running(record.id):
        raise AssertionError
    with jobs.running(jobs.create(REQUEST).id) as running:
        assert not jobs.is_withdrawn(running.id)
        assert jobs.withdraw(running.id) == running
        assert jobs.is_withdrawn(running.id)
        jobs.update(running.finish(SUCCEEDED))
        assert not jobs.is_withdrawn(running.id)
    assert jobs.withdraw(running.id).state == SUCCEEDED
    assert not jobs.is_withdrawn(running.id)
    dead = jobs.create(REQUEST)
    jobs.update(dead.evolve(state=RUNNING))
    assert jobs.withdraw(dead.id).state == FAILED
    with pytest.raises(JobNotFound):
        jobs.withdraw("20261121T013000123456-1a2b3c4d")


def test_a_job_that_ends_between_two_looks_has_not_failed(jobs: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    record = jobs.create(REQUEST)
    is_locked = module.is_locked

    def ends_now(path: Path) -> bool:
        jobs.update(record.finish(SUCCEEDED, generation="g"))
        return is_locked(path)

    jobs.update(record.evolve(state=RUNNING))
    monkeypatch.setattr(module, "is_locked", ends_now)
    assert jobs.get(record.id).state == SUCCEEDED


def test_who_looks_does_not_overwrite_who_knows(jobs: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    record = jobs.create(REQUEST)
    known = record.finish(FAILED, error="the builder ended with status -9")
    is_locked, writer = module.is_locked, Thread(target=jobs.update, args=[known])
    looks = 0

    def settles_at_the_second_look(path: Path) -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:
            writer.start()
            writer.join(0.2)
        return is_locked(path)

    jobs.update(record.evolve(state=RUNNING))
    monkeypatch.setattr(module, "is_locked", settles_at_the_second_look)
    jobs.get(record.id)
    writer.join()
    assert looks == 2
    assert jobs.get(record.id) == known


def test_inline_candidates_go_when_the_job_has_ended(jobs: JobStore) -> None:
    job_id = jobs.new_id()
    inline = jobs.inline_pool(job_id)
    inline.write_text('{"text": "a"}\n')
    record = jobs.create(JobRequest(pool=(str(inline),)), job_id)
    assert record.id == job_id
    assert inline.exists()
    refused = jobs.inline_pool(jobs.new_id())
    refused.write_text("")
    with pytest.raises(JobConflict):
        jobs.create(REQUEST, refused.stem)
    assert not refused.exists()
    jobs.update(record.finish(CANCELLED))
    assert not inline.exists()


def test_old_records_are_forgotten(jobs: JobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_RECORDS", 3)
    for _ in range(5):
        with jobs.running(jobs.create(REQUEST).id) as running:
            jobs.update(running.finish(SUCCEEDED))
    latest = jobs.create(REQUEST)
    assert len(jobs.records()) == 3
    assert jobs.records()[0] == latest
    assert len(list((tmp_path / "jobs").glob("*-*.lock"))) == 2


@pytest.mark.parametrize("name", ["", "..", "../x", "create", "20261121T013000123456-1a2b3c4d/..", "x" * 500])
def test_nothing_but_an_id_becomes_a_path(jobs: JobStore, name: str) -> None:
    jobs.create(REQUEST)
    with pytest.raises(JobNotFound):
        jobs.get(name)
    with pytest.raises(JobNotFound), jobs.running(name):
        raise AssertionError
    with pytest.raises(JobNotFound):
        jobs.inline_pool(name)


def test_a_job_that_is_not_there_is_told(jobs: JobStore) -> None:
    with pytest.raises(JobNotFound, match="no job '20261121T013000123456-1a2b3c4d'"):
        jobs.get("20261121T013000123456-1a2b3c4d")
    assert jobs.records() == []
    assert jobs.active() is None


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"request": {"pool": []}, "from": "the future"}'])
def test_a_damaged_record_hides_no_other(jobs: JobStore, tmp_path: Path, content: str) -> None:
    damaged = jobs.create(REQUEST)
    (tmp_path / "jobs" / f"{damaged.id}.json").write_text(content)
    with pytest.raises(JobNotFound):
        jobs.get(damaged.id)
    record = jobs.create(REQUEST)
    assert jobs.records() == [record]


def test_many_may_find_at_once_that_a_process_has_died(jobs: JobStore) -> None:
    record = jobs.create(REQUEST)
    jobs.update(record.evolve(state=RUNNING))
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(jobs.get, [record.id] * 64))
    assert {each.state for each in found} == {FAILED}
