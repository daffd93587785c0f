"""Nobody waits for a lock without an end, and who waits in vain is told who holds it."""

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from fakes import HashEncoder, pool

from polyrank.index_builder.building.compaction import compact
from polyrank.index_builder.building.job_records import FAILED, JobRequest, JobStore
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.errors import StoreBusy
from polyrank.index_builder.store import locks
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.locks import locked

HOLDER = rf"is held by process {os.getpid()} on \S+ since \d{{4}}-\d\d-\d\dT[\d:]+\+00:00;"


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "WAIT_SECONDS", 0.05)


def held(path: Path) -> AbstractContextManager[None]:
    path.parent.mkdir(exist_ok=True)
    return locked(path)


@pytest.mark.parametrize("lock", ["pointer.lock", "log/write.lock"])
@pytest.mark.parametrize(
    "change",
    [lambda store: store.activate(store.ids()[0]), lambda store: store.rollback(), lambda store: store.gc(keep=1)],
    ids=["activate", "rollback", "gc"],
)
def test_a_change_of_the_store_ends_and_names_the_holder(
    store: GenerationStore, lock: str, change: Callable[[GenerationStore], object]
) -> None:
    *_, c, d = store.ids()
    store.activate(c)
    store.activate(d)
    with held(store.root / lock), pytest.raises(StoreBusy, match=f"{lock} {HOLDER}"):
        change(store)
    assert store.current() == d
    change(store)


def test_a_compaction_ends_and_names_the_holder(store: GenerationStore) -> None:
    store.activate(store.ids()[-1])
    with held(store.root / "log" / "write.lock"), pytest.raises(StoreBusy, match=HOLDER):
        compact(store.root)


def test_a_build_that_cannot_publish_is_continued_by_the_next(store: GenerationStore) -> None:
    with held(store.root / "pointer.lock"), pytest.raises(StoreBusy, match=HOLDER):
        build(HashEncoder(), pool(7), store.root)
    assert build(HashEncoder(), pool(7), store.root).resumed == 7
    assert store.strays() == []


@pytest.mark.parametrize("lock", ["create.lock", "update.lock"])
def test_a_job_is_refused_and_can_still_be_looked_at(tmp_path: Path, lock: str) -> None:
    jobs = JobStore(tmp_path)
    left = jobs.create(JobRequest(pool=()))
    jobs.update(left.evolve(state="running"))  # by a process that is gone
    with held(tmp_path / "jobs" / lock):
        assert jobs.get(left.id).state == FAILED
        with pytest.raises(StoreBusy, match=f"{lock} {HOLDER}"):
            jobs.create(JobRequest(pool=()))
    assert jobs.create(JobRequest(pool=())).id > left.id


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"two\nlines\n"])
def test_a_holder_that_says_nothing_is_another_process(tmp_path: Path, content: bytes) -> None:
    lock = tmp_path / "some.lock"
    with locked(lock):
        lock.write_bytes(content)
        with pytest.raises(StoreBusy, match=re.escape(f"{lock} is held by another process;")), locked(lock):
            raise AssertionError


def test_a_link_in_the_place_of_a_lock_is_not_followed(store: GenerationStore, tmp_path: Path) -> None:
    (store.root / "pointer.lock").unlink(missing_ok=True)
    (store.root / "pointer.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"pointer\.lock"):
        store.activate(store.ids()[0])
    assert not (tmp_path / "elsewhere").exists()
