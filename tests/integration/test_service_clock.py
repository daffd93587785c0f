"""F10: the wall clock jumps by an hour, ahead or back, and nothing happens: no deadline, rate or lease goes by it."""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import redis
from served import serve
from service_fakes import build_store, load, pool

from polyrank.index_builder.building import job_records
from polyrank.index_builder.building.job_records import FAILED, QUEUED, RUNNING, SUCCEEDED, JobRequest, JobStore
from polyrank.index_builder.errors import BuildBusy
from polyrank.index_builder.store import locks
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.locks import Lease
from polyrank.service.app import create_app
from polyrank.service.settings import Settings

HOUR = 3600.0
JUMPS = pytest.mark.parametrize("seconds", [HOUR, -HOUR])

Jump = Callable[[float], None]


@pytest.fixture
def jump(monkeypatch: pytest.MonkeyPatch) -> Jump:
    """Moves the wall clock of this process, as every module of ours sees it."""
    real, loaded = time.time, [each for each in sys.modules.values() if each is not None]
    ours = [each for each in loaded if each.__name__.startswith("polyrank.")]
    dated = [each for each in ours if vars(each).get("datetime") is datetime]
    assert dated

    def jumping(seconds: float) -> None:
        class Shifted(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:
                return datetime.now(tz) + timedelta(seconds=seconds)

        monkeypatch.setattr(time, "time", lambda: real() + seconds)
        for module in dated:
            monkeypatch.setattr(module, "datetime", Shifted)

    return jumping


@JUMPS
def test_f10_no_request_that_waits_is_given_up_or_kept_longer(tmp_path: Path, jump: Jump, seconds: float) -> None:
    build_store(tmp_path)
    with serve(create_app(Settings(store=tmp_path), load)) as server, ThreadPoolExecutor(2) as callers:
        entered, released = Event(), Event()

        def busy() -> None:
            entered.set()
            assert released.wait(60)

        server.app.state.resources.live.current.ranker.on_encode = busy
        patient = callers.submit(server.rank, context="w1", timeout_ms=60_000)
        assert entered.wait(10)
        hasty = callers.submit(server.rank, context="w2", timeout_ms=400)
        jump(seconds)
        began = time.monotonic()
        assert hasty.result(60).status_code == 504
        assert time.monotonic() - began < 30
        released.set()
        answer = patient.result(60)
        assert answer.status_code == 200
        assert 0 < answer.json()["timings_ms"]["total"] < 60_000
        assert server.rank(context="w3").status_code == 200
        assert server.client.get("/readyz").status_code == 200
        assert server.client.get("/livez").status_code == 200


@JUMPS
def test_f10_nobody_may_call_more_often_for_it_or_waits_for_an_hour(tmp_path: Path, jump: Jump, seconds: float) -> None:
    build_store(tmp_path)
    settings = Settings(store=tmp_path, rate_limit_per_s=1.0)
    with serve(create_app(settings, load)) as server:
        assert server.rank(context="w1").status_code == 200
        jump(seconds)
        refused = server.rank(context="w1")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        time.sleep(1.1)
        assert server.rank(context="w1").status_code == 200


@JUMPS
def test_f10_a_lease_is_neither_lost_nor_held_longer(
    tmp_path: Path, redis_tcp_url: str, jump: Jump, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    def take(machine: str) -> Lease:
        monkeypatch.setattr(locks, "_machine", lambda: machine)
        return Lease(tmp_path, redis_tcp_url)

    held = take("a")
    key = f"pe:{{{(tmp_path / 'ID').read_text().strip()}}}:lease"
    jump(seconds)
    held.check()
    assert held._renew()
    with redis.Redis.from_url(redis_tcp_url) as client:
        assert 29_000 < client.pttl(key) <= 30_000
    with pytest.raises(BuildBusy):
        take("b")
    held.release()
    take("b").release()


@JUMPS
def test_f10_a_job_is_kept_whatever_the_ids_of_those_before(tmp_path, jump: Jump, monkeypatch, seconds: float) -> None:
    monkeypatch.setattr(job_records, "KEPT_RECORDS", 3)
    jobs = JobStore(tmp_path)

    def ended() -> str:
        with jobs.running(jobs.create(JobRequest(pool=())).id) as running:
            jobs.update(running.finish(SUCCEEDED))
        return running.id

    before = [ended() for _ in range(3)]
    jump(seconds)
    after = [ended() for _ in range(2)]
    assert [each.id for each in jobs.records()] == [*reversed(after), before[-1]]


def test_a_clock_that_is_set_back_keeps_no_dead_job_queued(tmp_path: Path, jump: Jump) -> None:
    jobs = JobStore(tmp_path)
    never_started = jobs.create(JobRequest(pool=()))
    jump(-HOUR)
    assert jobs.get(never_started.id).state == QUEUED
    jump(-HOUR + 55)
    assert jobs.get(never_started.id).state == QUEUED
    jump(-HOUR + 65)
    assert jobs.get(never_started.id).state == FAILED
    assert jobs.active() is None


def test_a_clock_that_is_set_back_ends_no_job_that_waits_for_its_builder(tmp_path: Path, jump: Jump) -> None:
    jobs = JobStore(tmp_path)
    waiting = jobs.create(JobRequest(pool=()))
    jump(-90)
    assert jobs.active() is not None
    with jobs.running(waiting.id) as running:
        assert running.state == RUNNING


@JUMPS
def test_f10_a_generation_that_is_built_then_follows_the_ones_before(tmp_path, jump: Jump, seconds: float) -> None:
    before = build_store(tmp_path, pool(20, "a"))
    with serve(create_app(Settings(store=tmp_path), load)) as server:
        jump(seconds)
        built = build_store(tmp_path, pool(20, "b"))
        assert GenerationStore(tmp_path).ids() == [before, built]
        put: Any = server.client.put("/index/candidates", json=[{"id": "x", "text": "w1"}])
        assert put.json()["revision"] == 1
        server.app.state.resources.live.follow_current()
        assert server.rank(context="w1").json()["generation"] == built
        assert server.client.post("/index/rollback").json()["active"]["id"] == before
