"""Old generations go, but never one that may be needed."""

import asyncio
import errno
import os
import threading
import time
from pathlib import Path

import pytest
from service_fakes import build_store, count_nothing, load, pool

from polyrank.index_builder.building.job_records import JobRecord, JobRequest
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.service import machine, resources
from polyrank.service.changes.jobs import Jobs
from polyrank.service.errors import SettingsError
from polyrank.service.live.models import Loaders
from polyrank.service.live.searchable import Opener
from polyrank.service.live.switching import Live
from polyrank.service.observe.metrics import Metrics
from polyrank.service.observe.tracing import OFF
from polyrank.service.ranking.here import Here
from polyrank.service.resources import collect, device_of
from polyrank.service.settings import Settings


class Fixture:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = Settings(store=root)
        self.store = GenerationStore(root)
        self.live = Live(self.store, Here(self.store, Opener(count_nothing, None, load)), Metrics())

    def build(self) -> str:
        return build_store(self.root, pool(5))

    def collect(self) -> list[str]:
        collect(self.settings, self.store, self.live)
        return self.store.ids()


@pytest.fixture
def store(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path)


def test_as_many_as_set_are_kept(store: Fixture) -> None:
    _, second, third = store.build(), store.build(), store.build()
    store.live.start()
    assert store.collect() == [second, third]


def test_none_goes_while_another_than_the_active_one_is_served(store: Fixture) -> None:
    first = store.build()
    store.live.start()
    rest = [store.build() for _ in range(3)]
    assert store.collect() == [first, *rest]
    store.live.follow_current()
    assert store.collect() == rest[1:]


def test_none_goes_while_nothing_is_served(store: Fixture) -> None:
    built = [store.build() for _ in range(3)]
    assert store.collect() == built


def test_a_redis_that_is_down_is_no_failure(store: Fixture, caplog: pytest.LogCaptureFixture) -> None:
    built = [store.build() for _ in range(3)]
    store.settings = Settings(store=store.root, redis_url="redis://127.0.0.1:1/0")
    store.live.start()
    assert store.collect() == built
    assert "could not be removed" in caplog.text


def test_the_last_rebuild_that_succeeded_is_told_and_no_compaction() -> None:
    def job(state: str, finished: str | None, compacts: bool = False) -> JobRecord:
        request = JobRequest(pool=(), compacts=compacts)
        return JobRecord(id="1", request=request, created="now", state=state, finished=finished)

    metrics = Metrics()
    ended = [
        job("succeeded", "1970-01-01T00:00:01+00:00"),
        job("succeeded", "1970-01-01T00:00:07+00:00"),
        job("succeeded", "1970-01-01T00:00:09+00:00", compacts=True),
        job("failed", "1970-01-01T00:00:11+00:00"),
        job("running", None),
    ]

    def told() -> float | None:
        return metrics.registry.get_sample_value("polyrank_build_last_success_timestamp_seconds")

    resources.show_last_build(metrics, ended[2:])
    assert told() == 0
    resources.show_last_build(metrics, ended)
    assert told() == 7


async def test_nothing_is_begun_any_more_when_the_jobs_are_closed(
    store: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.build()
    monkeypatch.setattr(resources, "LOOK_SECONDS", 0.001)
    close, told = Jobs.close, list[int]()

    def looking() -> int:
        return sum("_repeat" in repr(task.get_coro()) for task in asyncio.all_tasks())

    async def closing(jobs: Jobs) -> None:
        told.append(looking())
        await close(jobs)

    monkeypatch.setattr(Jobs, "close", closing)
    async with resources.opened(store.settings, Metrics(), OFF, Loaders(load, load, load)):
        await asyncio.sleep(0.05)
        told.append(looking())
    assert told == [8, 0]


async def test_what_fails_is_tried_again_with_growing_pauses(store: Fixture, monkeypatch, caplog) -> None:
    monkeypatch.setattr(resources, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(resources, "LONGEST_PAUSE_SECONDS", 0.1)
    tried, enough = list[float](), threading.Event()

    def fail(_: Live) -> None:
        tried.append(time.monotonic())
        if len(tried) == 6:
            enough.set()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Live, "follow_current", fail)
    async with resources.opened(store.settings, Metrics(), OFF, Loaders(load, load, load)):
        assert await asyncio.to_thread(enough.wait, 30)
    said = [record.__dict__["fields"]["again_in_seconds"] for record in caplog.records if record.levelname == "ERROR"]
    assert said[:5] == [0.04, 0.08, 0.1, 0.1, 0.1]
    assert all(later - one >= pause - 0.001 for one, later, pause in zip(tried, tried[1:], said, strict=False))


def test_models_run_on_a_gpu_where_there_is_one_or_where_they_are_told_to(tmp_path: Path, monkeypatch) -> None:
    def device(**given: str) -> str:
        return device_of(Settings(store=tmp_path, **given))

    monkeypatch.setattr(machine, "may_have_gpu", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert (device(), device(device="cpu")) == ("cpu", "cpu")
    with pytest.raises(SettingsError, match="no GPU"):
        device(device="cuda:1")
    with pytest.raises(ValueError, match="device"):
        device(device="tpu")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert (device(), device(device="cpu"), device(device="cuda:1")) == ("cuda", "cpu", "cuda:1")
    assert (device(precision="int8"), device(backend="openvino")) == ("cpu", "cpu")
    with pytest.raises(ValueError, match="precision = int8 runs on CPUs; use another one on a GPU"):
        device(device="cuda", precision="int8")
    monkeypatch.setattr(machine, "may_have_gpu", lambda: False)
    assert (device(), device(device="cpu")) == ("cpu", "cpu")
