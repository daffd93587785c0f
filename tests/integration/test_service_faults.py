"""No room, a store or a pool that permissions close, a Redis that is gone: one line, the live generation, no litter.

Each for `polyrank build`, `polyrank store compact` and jobs of the API. For updates see test_service_updates.py.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from command_line import call, left_half_written, pool_rows, write_rows
from fakes import HashEncoder, pool
from in_process import TestClient
from redis_process import RedisProcess, vector_keys
from service_fakes import build_store, words_app
from service_fakes import pool as words
from unprivileged import bound_by_permissions, python_bound_by_permissions, read_only
from updated import LiveStore

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.service.changes import jobs
from polyrank.service.cli.output import Progress

Capture = pytest.CaptureFixture[str]

ROWS = 4000
LIMIT = 100_000  # bytes a file: less than the matrix takes of so many rows
NO_ROOM = "no room left under {store}: File too large; free some space and try again"


class Watched:
    """A store with an updated live generation, to be found as it was."""

    def __init__(self, root: Path) -> None:
        self.root = root
        build_store(root, words(ROWS))
        live = LiveStore(root)
        live.delete("c1")
        live.close()
        self._before = self._seen()

    def _seen(self) -> dict[str, str]:
        """The digest of every file but those of jobs and locks."""
        files = [path for path in self.root.rglob("*") if path.is_file() and path.suffix not in (".lock", ".json")]
        kept = [path for path in files if path.name not in ("ID", "FENCE")]
        return {str(path.relative_to(self.root)): sha256(path.read_bytes()).hexdigest() for path in kept}

    def assert_untouched(self) -> None:
        """As it was: CURRENT, every byte of the live generation, and nothing beside it."""
        assert self._seen() == self._before
        store = GenerationStore(self.root)
        [only] = store.ids()
        assert store.current() == store.verify(only).id
        assert [path.name for path in (self.root / "generations").iterdir()] == [only]

    def assert_next_build_works(self) -> None:
        """After the fault is gone."""
        built = build(HashEncoder(), pool(3), self.root).generation
        assert GenerationStore(self.root).current() == built
        left = [name for name in left_half_written(self.root) if not name.startswith(("jobs/", "copies/"))]
        assert left == []


@pytest.fixture
def store(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "store")


@pytest.fixture(params=["build", "compact"])
def command(request: pytest.FixtureRequest, store: Watched, checkpoints: Path, tmp_path: Path) -> list[object]:
    """What is to fail."""
    if request.param == "compact":
        return ["store", "compact", "--store", store.root]
    rows = write_rows(tmp_path / "pool.jsonl", pool_rows(ROWS))
    return ["build", "--model", checkpoints / "poly", "--pool", rows, "--store", store.root]


@contextmanager
def files_limited() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_no_room_for_a_command(capsys: Capture, store: Watched, command: list[object]) -> None:
    with files_limited():
        assert call(capsys, *command).failure() == NO_ROOM.format(store=store.root)
    store.assert_untouched()
    store.assert_next_build_works()


def test_a_store_that_a_command_may_not_write(capsys: Capture, store: Watched, command: list[object]) -> None:
    with read_only(store.root), bound_by_permissions():
        message = call(capsys, *command).failure()
    assert message.startswith(f"Permission denied: {store.root}/")
    store.assert_untouched()
    store.assert_next_build_works()


def test_a_pool_that_a_command_may_not_read(capsys: Capture, store: Watched, checkpoints: Path, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "pool.jsonl", pool_rows(3))
    rows.chmod(0)
    with bound_by_permissions():
        outcome = call(capsys, "build", "--model", checkpoints / "poly", "--pool", rows, "--store", store.root)
    message = outcome.failure()
    assert message.startswith(f"{rows}: cannot be read: ")
    assert "Permission denied" in message
    store.assert_untouched()
    store.assert_next_build_works()


def test_a_redis_that_is_gone_in_the_middle_of_a_command(
    capsys: Capture, store: Watched, command: list[object], redis_process: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(_self: Progress, stage: str, _done: int, _total: int | None) -> None:
        if stage == "redis":
            redis_process.kill()

    with monkeypatch.context() as patched:
        patched.setattr(Progress, "__call__", kill)
        assert call(capsys, *command, "--redis", redis_process.url).failure().startswith("Redis failed: ")
    assert_but_for_reminders(store)
    store.assert_next_build_works()


def test_a_redis_that_is_full_keeps_nothing_of_a_command(capsys, store: Watched, command: list[object]) -> None:
    with closing(RedisProcess("--maxmemory", "1500kb", "--maxmemory-policy", "noeviction")) as server:
        message = call(capsys, *command, "--redis", server.url).failure()
        with server.client() as client:
            assert vector_keys(client) == []
    assert message.startswith("Redis is full (maxmemory)")
    store.assert_untouched()
    store.assert_next_build_works()


def assert_but_for_reminders(store: Watched) -> None:
    """Untouched, but that empty names remind of keys that may be left in a Redis that could not be asked."""
    [left] = (store.root / "generations").glob(".tmp-*")
    left.rmdir()
    (store.root / "copies" / left.name.removeprefix(".tmp-")).unlink()
    store.assert_untouched()


class Api:
    """The service on a store, and what becomes of its jobs."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def ended(
        self, job: dict[str, Any], meanwhile: Callable[[dict[str, Any]], None] = lambda _: None
    ) -> dict[str, Any]:
        """Wait for a job's end."""
        deadline = time.monotonic() + 60
        while job["state"] in ("queued", "running"):
            assert time.monotonic() < deadline, job
            time.sleep(0.01)
            job = dict(self.client.get(job["links"]["self"]).json())
            meanwhile(job)
        return job


@contextmanager
def api(store: Watched, checkpoints: Path, tmp_path: Path, **settings: Any) -> Iterator[Api]:
    roots = {"pool_root": tmp_path, "model_root": checkpoints}
    with TestClient(words_app(store.root, **roots, **settings)) as client:
        before = client.get("/index").json()["active"]["id"]
        yield Api(client)
        assert client.get("/index").json()["active"]["id"] == before
        assert client.post("/rank", json={"context": "w1"}).status_code == 200


def as_builder(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run builders by a shell's command line instead of this Python."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\n{command} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(jobs.sys, "executable", str(script))


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize("kind", ["rebuild", "compaction"])
def test_no_room_for_a_job(store: Watched, checkpoints: Path, tmp_path: Path, monkeypatch, kind: str) -> None:
    write_rows(tmp_path / "pool.jsonl", pool_rows(ROWS))
    as_builder(f"ulimit -f {LIMIT // 512}; exec {sys.executable}", tmp_path, monkeypatch)
    with api(store, checkpoints, tmp_path) as server:
        if kind == "compaction":
            started = server.client.post("/index/compact")
        else:
            started = server.client.post("/index", json={"pool": "pool.jsonl", "model": "poly"})
        job = server.ended(started.json())
        assert (job["state"], job["error"]) == ("failed", NO_ROOM.format(store=store.root))
    store.assert_untouched()
    store.assert_next_build_works()


def test_a_pool_that_a_job_may_not_read(store: Watched, checkpoints: Path, tmp_path: Path, monkeypatch) -> None:
    rows = write_rows(tmp_path / "pool.jsonl", pool_rows(3))
    rows.chmod(0)
    as_builder(f"exec {python_bound_by_permissions()}", tmp_path, monkeypatch)
    with api(store, checkpoints, tmp_path) as server:
        job = server.ended(server.client.post("/index", json={"pool": "pool.jsonl", "model": "poly"}).json())
        assert job["state"] == "failed"
        assert job["error"].startswith(f"{rows}: cannot be read: ")
        assert "\n" not in job["error"]
    store.assert_untouched()
    store.assert_next_build_works()


@pytest.mark.usefixtures("warm_children")
def test_a_redis_that_is_gone_in_the_middle_of_a_job(
    store: Watched, checkpoints: Path, tmp_path: Path, redis_process: RedisProcess
) -> None:
    write_rows(tmp_path / "pool.jsonl", pool_rows(ROWS))

    def kill(job: dict[str, Any]) -> None:
        if job["stage"] == "encode":
            redis_process.kill()

    with api(store, checkpoints, tmp_path, redis_url=redis_process.url) as server:
        started = server.client.post("/index", json={"pool": "pool.jsonl", "model": "poly"})
        job = server.ended(started.json(), meanwhile=kill)
        assert job["state"] == "failed"
        assert job["error"].startswith("Redis failed: ")
        assert "\n" not in job["error"]
    assert_but_for_reminders(store)
    store.assert_next_build_works()


def test_a_store_that_the_service_may_not_write(store: Watched, checkpoints: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "pool.jsonl", pool_rows(3))
    told = "this server may not write to its store; change it from where it can be written"
    calls = [
        ("POST", "/index", {"pool": "pool.jsonl", "model": "poly"}),
        ("POST", "/index", {"candidates": [{"text": "w1"}], "model": "poly"}),
        ("POST", "/index/compact", None),
        ("PUT", "/index/candidates", [{"id": "x", "text": "w1"}]),
        ("POST", "/index/candidates/delete", {"ids": ["c2"]}),
        ("POST", "/index/activate", {"generation": GenerationStore(store.root).ids()[0]}),
    ]
    with read_only(store.root), bound_by_permissions(), api(store, checkpoints, tmp_path) as server:
        for method, path, body in calls:
            answer = server.client.request(method, path, json=body)
            assert (answer.status_code, answer.json()["detail"]) == (409, told), (method, path, answer.json())
        assert server.client.get("/index/jobs").json()["jobs"] == []
    store.assert_untouched()
    store.assert_next_build_works()
