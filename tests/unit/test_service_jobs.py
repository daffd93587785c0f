"""A client's path stays below the root."""

import asyncio
import errno
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polyrank.index_builder.errors import JobConflict
from polyrank.model.errors import InvalidInput
from polyrank.service.changes import jobs
from polyrank.service.changes.jobs import MOST_LOG_BYTES, Compacting, IdempotencyKeys, checked_key, confined
from polyrank.service.errors import HeaderInvalid, IdempotencyMismatch, NotConfigured


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "deep").mkdir(parents=True)
    (root / "deep" / "pool.jsonl").touch()
    (tmp_path / "secret").touch()
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "in").symlink_to(root / "deep" / "pool.jsonl")
    (root / "loop").symlink_to(root / "loop")
    return root


@pytest.mark.parametrize("given", ["deep/pool.jsonl", "deep/../deep/pool.jsonl", "./deep/pool.jsonl", "in"])
def test_inside(root: Path, given: str) -> None:
    assert confined(root, given, "pool") == root / "deep" / "pool.jsonl"


@pytest.mark.parametrize(
    "given",
    ["../secret", "/etc/passwd", "out", "deep/../../secret", "nothing", "loop", ".", "", "a\0b", "x" * 5000, "~/x"],
)
def test_outside_or_nothing(root: Path, given: str) -> None:
    with pytest.raises(InvalidInput, match="pool root"):
        confined(root, given, "pool")


def test_without_a_root_the_setting_is_named() -> None:
    with pytest.raises(NotConfigured, match="model_root"):
        confined(None, "x", "model")


# --- a key means one job, for a day, across restarts


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "jobs").mkdir()
    return tmp_path


def test_a_key_is_remembered_by_the_store(store: Path) -> None:
    IdempotencyKeys(store).remember("k", "body", "job")
    assert IdempotencyKeys(store).job_of("k", "body") == "job"
    assert IdempotencyKeys(store).job_of("other", "body") is None
    with pytest.raises(IdempotencyMismatch, match="job"):
        IdempotencyKeys(store).job_of("k", "another body")


def test_old_keys_are_forgotten(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = IdempotencyKeys(store)
    keys.remember("old", "body", "job")

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(UTC) + jobs.KEY_KEPT

    monkeypatch.setattr(jobs, "datetime", Tomorrow)
    keys.remember("new", "body", "job2")
    assert keys.job_of("old", "body") is None
    assert keys.job_of("new", "body") == "job2"


def test_a_damaged_file_counts_as_empty(store: Path) -> None:
    (store / "jobs" / "idempotency.json").write_bytes(b"{")
    assert IdempotencyKeys(store).job_of("k", "body") is None


@pytest.mark.parametrize("key", ["", "a b", "ä", "x" * 256, "a\tb"])
def test_a_bad_key_is_refused(key: str) -> None:
    with pytest.raises(HeaderInvalid):
        checked_key(key)


@pytest.mark.parametrize("key", [None, "8e03978e-40d5-43e8-bc93-6894a57f9324", '"quoted"', "x" * 255])
def test_a_good_key_is_taken(key: str | None) -> None:
    assert checked_key(key) == key


# --- when the server compacts


@dataclass
class Jobs:
    """Counts what is started."""

    fails: Exception | None = None
    started: int = 0

    async def compact(self) -> Any:
        if self.fails:
            raise self.fails
        self.started += 1
        return SimpleNamespace(id="job")


@dataclass
class Store:
    """Knows what is active."""

    active: str | None = None

    def current_or_none(self) -> str | None:
        return self.active


@dataclass
class Live:
    """Serves a generation with so many changes."""

    current: Any = None
    jobs: Jobs = field(default_factory=Jobs)
    store: Store = field(default_factory=Store)

    def serve(
        self,
        generation: str,
        changed: int,
        count: int = 10,
        has_matrix: bool = True,
        log: int = 0,
        counted: int | None = None,
    ) -> None:
        snapshot, parts = SimpleNamespace(changes=changed, count=count), [SimpleNamespace(has_matrix=has_matrix)]
        words = (
            None
            if counted is None
            else SimpleNamespace(table=SimpleNamespace(statistics=SimpleNamespace(texts=counted)))
        )
        held = SimpleNamespace(id=generation, words=words)
        self.current = SimpleNamespace(generation=held, snapshot=snapshot, parts=parts, log=SimpleNamespace(size=log))
        self.store.active = generation


@pytest.fixture
def live() -> Live:
    return Live()


@pytest.fixture
def compacting(live: Live) -> Compacting:
    """Begins at a hundred changes."""
    return Compacting(live.store, live, live.jobs, 100)


def looks(compacting: Compacting, times: int = 1) -> None:
    for _ in range(times):
        asyncio.run(compacting.look())


def test_it_begins_when_much_has_changed_and_once(live: Live, compacting: Compacting) -> None:
    looks(compacting)
    live.serve("a", 99)
    looks(compacting)
    assert live.jobs.started == 0
    live.serve("a", 100)
    looks(compacting, 3)
    assert live.jobs.started == 1


def test_one_that_failed_is_tried_again_when_twice_as_much_has_changed(live: Live, compacting: Compacting) -> None:
    for changed, started in ((150, 1), (299, 1), (300, 2)):
        live.serve("a", changed)
        looks(compacting, 2)
        assert live.jobs.started == started
    live.serve("b", 100)
    looks(compacting)
    assert live.jobs.started == 3


def test_a_few_large_changes_are_much_too(live: Live, compacting: Compacting) -> None:
    for size, started in ((MOST_LOG_BYTES - 1, 0), (MOST_LOG_BYTES, 1), (2 * MOST_LOG_BYTES - 1, 1)):
        live.serve("a", 1, log=size)
        looks(compacting, 2)
        assert live.jobs.started == started
    live.serve("a", 1, log=2 * MOST_LOG_BYTES)
    looks(compacting)
    assert live.jobs.started == 2


@pytest.mark.parametrize(("counted", "due"), [(1, 50), (100, 50), (101, 51), (1000, 500)])
def test_half_as_many_changes_as_texts_are_much_where_words_count(live: Live, counted: int, due: int) -> None:
    compacting: Any = Compacting(live.store, live, live.jobs, 10_000)
    live.serve("a", due - 1, counted=counted)
    looks(compacting)
    assert live.jobs.started == 0
    live.serve("a", due, counted=counted)
    looks(compacting, 2)
    assert live.jobs.started == 1
    never: Any = Compacting(live.store, live, live.jobs, 0)
    looks(never)
    assert live.jobs.started == 1


def test_it_waits_for_another_job(live: Live, compacting: Compacting) -> None:
    live.serve("a", 100)
    live.jobs.fails = JobConflict("another")
    looks(compacting, 3)
    live.jobs.fails = None
    looks(compacting)
    assert live.jobs.started == 1


def test_never_on_a_replica_without_the_matrix(live: Live, compacting: Compacting) -> None:
    live.serve("a", 1000, has_matrix=False)
    looks(compacting, 2)
    assert live.jobs.started == 0


def test_never_where_it_is_switched_off_or_nothing_is_left(live: Live, compacting: Compacting) -> None:
    live.serve("a", 1000)
    looks(Compacting(live.store, live, live.jobs, 0))
    live.serve("a", 1000, count=0)
    looks(compacting)
    assert live.jobs.started == 0


def test_nothing_is_done_while_another_than_the_active_one_is_served(live: Live, compacting: Compacting) -> None:
    live.serve("stand-in", 1000)
    for active in ("active", None):
        live.store.active = active
        looks(compacting)
    assert live.jobs.started == 0
    live.store.active = "stand-in"
    looks(compacting)
    assert live.jobs.started == 1


def test_a_store_that_cannot_be_written_is_told_once(
    live: Live, compacting: Compacting, caplog: pytest.LogCaptureFixture
) -> None:
    live.serve("a", 150)
    live.jobs.fails = OSError(errno.EROFS, "read-only")
    looks(compacting, 3)
    assert caplog.text.count("nothing can be compacted") == 1
    live.jobs.fails = None
    for changed, started in ((299, 0), (300, 1)):
        live.serve("a", changed)
        looks(compacting)
        assert live.jobs.started == started


def test_what_the_system_lacks_for_the_moment_puts_nothing_off(live: Live, compacting: Compacting) -> None:
    live.serve("a", 150)
    live.jobs.fails = OSError(errno.EMFILE, "too many open files")
    with pytest.raises(OSError, match="too many open files"):
        looks(compacting)
    live.jobs.fails = None
    looks(compacting)
    assert live.jobs.started == 1
