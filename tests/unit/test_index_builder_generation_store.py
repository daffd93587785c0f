"""The pointer and the way back, what is collected, and TRIAL beside CURRENT."""

import contextlib
import errno
import math
import os
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fakes import HashEncoder, pool

from polyrank.index_builder import layout
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.errors import GenerationCorrupt, GenerationNotFound, StoreUnavailable
from polyrank.index_builder.store import generation_store, pointer
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.leftovers import Copies
from polyrank.index_builder.store.pointer import Trial
from polyrank.model.errors import InvalidInput, Shortage
from polyrank.model.inputs import read_input


def test_nobody_goes_back_over_a_switch_that_came_meanwhile(store: GenerationStore) -> None:
    a, b, c, d = store.ids()
    for each in (a, b, c):
        store.activate(each)
    opened = store.verify(b)
    store.activate(d)
    assert not store.go_back(opened)
    assert (store.current(), store.history()) == (d, [a, b, c])
    assert store.rollback() == c
    assert store.go_back(opened)
    assert (store.current(), store.history()) == (b, [a])


def test_a_crash_between_any_two_writes_of_the_pointer_loses_no_way_back(store: GenerationStore, monkeypatch) -> None:
    """Each change is cut after 0, 1, 2, … writes; after each cut CURRENT and the way back are the old or the new."""
    a, b, c, d = store.ids()
    for each in (a, b, c):
        store.activate(each)
    write = pointer.write_atomically
    seen = set()
    for change in (lambda: store.activate(d), store.rollback, store.rollback):
        for allowed in range(4):
            left = iter(range(allowed))

            def limited(path: Path, content: bytes, left: Iterator[int] = left) -> None:
                if next(left, None) is None:
                    raise KeyboardInterrupt
                write(path, content)

            monkeypatch.setattr(pointer, "write_atomically", limited)
            with contextlib.suppress(KeyboardInterrupt, GenerationNotFound):
                change()
            state = (store.current(), *store.history())
            assert state in {(d, a, b, c), (c, a, b), (b, a), (a,)}
            seen.add(state)
    assert seen == {(d, a, b, c), (c, a, b), (b, a), (a,)}


def test_a_damaged_history_loses_only_its_bad_lines(store: GenerationStore) -> None:
    a, b, c, _ = store.ids()
    for each in (a, b, c):
        store.activate(each)
    (store.root / "HISTORY").write_bytes(f"{a}\n../..\n\xff\xfe\n{b[:-1]}\n".encode("latin-1"))
    assert store.history() == [a]
    assert store.rollback() == a


def test_what_stands_in_for_the_active_generation_was_approved_or_is_older(store: GenerationStore) -> None:
    a, b, c, d = store.ids()
    assert store.serving_order() == []
    store.activate(c)
    assert store.serving_order() == [c, b, a, d]
    store.activate(a)
    assert store.serving_order() == [a, c, d, b]
    store.activate(c)
    assert store.serving_order() == [c, a, b, d]
    shutil.rmtree(store.path(c))
    assert store.serving_order() == [c, a, b, d], "it is told that it is gone"
    (store.root / "CURRENT").write_text("?")
    assert store.serving_order() == [a, d, b]
    (store.root / "HISTORY").unlink()
    assert store.serving_order() == [d, b, a]


def test_ids_sort_after_all_others_even_when_the_clock_was_set_back(store: GenerationStore, monkeypatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime(2001, 1, 1, tzinfo=UTC)

    newest = store.ids()[-1]
    assert store.new_id("ab" * 32) > newest
    monkeypatch.setattr(layout, "datetime", Clock)
    following = store.new_id("cd" * 32)
    assert following > newest
    assert following.endswith("-cdcdcdcd")
    assert GenerationStore(store.root / "new").new_id("cd" * 32) == "20010101T000000000000-cdcdcdcd"


def test_bytes_are_on_the_disk_before_the_names_that_lead_to_them(tmp_path: Path, monkeypatch) -> None:
    """Record every fsync and rename of a second build: a chunk, then the journal that tells of it; at last files,
    directories, then the name, then its directory."""
    root = tmp_path / "store"
    old = build(HashEncoder(), pool(5), root).generation
    calls: list[str] = []
    fsync, fdatasync, replace = os.fsync, os.fdatasync, os.replace

    def named(path: str | Path) -> str:
        return re.sub(r"\.[0-9a-f]{16}\.tmp$", ".DRAWN.tmp", os.path.relpath(path, root))

    def record_fsync(descriptor: int) -> None:
        calls.append(f"sync {named(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        fsync(descriptor)

    def record_fdatasync(descriptor: int) -> None:
        calls.append(f"sync {named(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        fdatasync(descriptor)

    def record_replace(source: Path, target: Path) -> None:
        calls.append(f"rename {named(source)} -> {named(target)}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "fdatasync", record_fdatasync)
    monkeypatch.setattr(os, "replace", record_replace)
    new = build(HashEncoder(), pool(5), root, BuildOptions(index="flat")).generation
    tmp = f"generations/.tmp-{new}"
    files = ["candidates.arrow", "embeddings.bin", "ids.index", "index.faiss", "manifest.json", "texts.index"]
    assert calls == [
        f"sync {tmp}/embeddings.bin", f"sync {tmp}", f"sync generations/.journal-{new}", "sync generations",
        f"sync {tmp}/model/polyrank.json", f"sync {tmp}/model/tokenizer.json",
        f"sync {tmp}/model", *(f"sync {tmp}/{name}" for name in files), f"sync {tmp}",
        f"rename {tmp} -> generations/{new}",
        "sync generations", f"sync log/.{new}.log.DRAWN.tmp", f"rename log/.{new}.log.DRAWN.tmp -> log/{new}.log",
        "sync log", "sync .HISTORY.DRAWN.tmp", "rename .HISTORY.DRAWN.tmp -> HISTORY", "sync .",
        "sync .CURRENT.DRAWN.tmp", "rename .CURRENT.DRAWN.tmp -> CURRENT", "sync .", f"sync log/{new}.log",
    ]  # fmt: skip
    assert GenerationStore(root).history() == [old]


def test_a_new_store_is_entered_durably_in_its_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    with GenerationStore(tmp_path / "a" / "b").building():
        assert synced == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The generations whose copies are removed."""
    found: list[str] = []
    monkeypatch.setattr(Copies, "forget", lambda _, generation: found.append(generation))
    return found


def test_gc_says_why_it_keeps_each(store: GenerationStore) -> None:
    a, b, c, d = store.ids()
    for each in (b, c, d):
        store.activate(each)
    store.rollback()
    store.rollback()
    newer = "newer than the active one, so it may wait for its activation"
    assert store.reasons_to_keep(2) == {a: "among the 2 to keep", b: "active", c: newer, d: newer}
    store.begin_trial(c)
    assert store.reasons_to_keep(1) == {b: "active", c: "on trial", d: newer}
    assert store.gc(keep=1) == [a]


def test_gc_keeps_the_newest_where_there_is_no_way_back(store: GenerationStore) -> None:
    a, b, c, d = store.ids()
    store.activate(d)
    assert store.gc(keep=3) == [a]
    assert store.ids() == [b, c, d]
    (store.root / "CURRENT").unlink()
    assert store.gc(keep=2) == [b]


def test_gc_does_not_guess_what_a_damaged_pointer_meant(store: GenerationStore) -> None:
    (store.root / "CURRENT").write_text("?")
    with pytest.raises(GenerationCorrupt):
        store.gc(keep=1)
    assert len(store.ids()) == 4


def test_gc_removes_what_killed_builds_have_left_but_not_a_running_ones(
    store: GenerationStore, forgotten: list[str]
) -> None:
    left = store.begin(store.new_id("ab" * 32))
    (left / "model").mkdir()
    (left / "model" / "x").write_bytes(b"x")
    with store.building():
        store.gc(keep=4)
        assert left.exists()
    store.gc(keep=4)
    assert not left.exists()
    assert forgotten == [left.name.removeprefix(".tmp-")]


def test_what_cannot_be_forgotten_now_is_forgotten_at_the_next_collection(store: GenerationStore, monkeypatch) -> None:
    def fail(_copies: Copies, _generation: str) -> None:
        raise StoreUnavailable("down")

    left = store.begin(store.new_id("ab" * 32))
    (left / "x").write_bytes(b"x")
    with monkeypatch.context() as down:
        down.setattr(Copies, "forget", fail)
        store.gc(keep=4)
        assert list(left.iterdir()) == []
        store.activate(store.ids()[-1])
        with pytest.raises(StoreUnavailable):
            store.gc(keep=1)
        assert len(store.ids()) == 4
    store.gc(keep=1)
    assert not left.exists()
    assert len(store.ids()) == 1


def test_gc_removes_the_logs_of_bad_rows_older_than_what_is_kept(store: GenerationStore) -> None:
    a, _, c, d = store.ids()
    failed = f"{c[:21]}-ffffffff"
    for each in (a, c, failed, d):
        store.rejected_log(each).parent.mkdir(parents=True)
        store.rejected_log(each).write_bytes(b"{}\n")
    (store.root / "rejected" / "0-notes").mkdir()
    store.activate(d)
    store.gc(keep=2)
    left = sorted(path.name for path in (store.root / "rejected").iterdir())
    assert left == sorted(["0-notes", c, failed, d])


def test_a_generation_that_is_being_removed_is_not_listed(store: GenerationStore, monkeypatch) -> None:
    store.activate(store.ids()[-1])
    removed: list[list[str]] = []
    rmtree = shutil.rmtree
    monkeypatch.setattr(generation_store.shutil, "rmtree", lambda path: (removed.append(store.ids()), rmtree(path)))
    store.gc(keep=1)
    assert [len(listed) for listed in removed] == [3, 2, 1]


def test_no_rollback_leads_twice_to_a_generation_because_another_was_collected(store: GenerationStore) -> None:
    a, b, c, d = store.ids()
    for each in (c, a, c, d):
        store.activate(each)
    shutil.rmtree(store.path(a))
    assert store.history() == [c]
    assert store.rollback() == c
    with pytest.raises(GenerationNotFound):
        store.rollback()
    assert b in store.ids()


def test_the_active_one_cannot_be_on_trial_however_late_it_became_that(store: GenerationStore) -> None:
    a, b, _, _ = store.ids()
    for each in (a, b):
        store.activate(each)
    with pytest.raises(InvalidInput, match="is active; put another one on trial"):
        store.begin_trial(b)
    store.rollback()
    assert store.trial() is None


def test_a_trial_that_a_killed_switch_left_does_not_come_back(store: GenerationStore) -> None:
    a, b, _, _ = store.ids()
    store.activate(a)
    store.begin_trial(b)
    (store.root / "CURRENT").write_text(f"{b}\n")  # it died before it ended the trial
    (store.root / "HISTORY").write_text(f"{a}\n")
    assert store.trial() is None
    store.rollback()
    assert (store.current(), store.trial()) == (a, None)


def test_a_trial_that_cannot_be_read_now_is_neither_over_nor_removed(store: GenerationStore, monkeypatch) -> None:
    a, b, c, _ = store.ids()
    for each in (b, c):
        store.activate(each)
    store.begin_trial(a)

    def fails(path: Path) -> bytes:
        if path.name == "TRIAL":
            raise OSError(errno.EMFILE, "Too many open files")
        return read_input(path)

    with monkeypatch.context() as short:
        short.setattr("polyrank.index_builder.store.pointer.read_input", fails)
        for doing in (store.trial, lambda: store.gc(keep=1), store.rollback):
            with pytest.raises(Shortage):
                doing()
    assert (store.trial(), store.current()) == (Trial(a), c)
    assert a in store.ids()


@pytest.mark.parametrize("content", [
    b"", b"../..\xff\n", b"{}", b"[" * 100_000, b'{"generation": "../..", "share": 0.0, "renewed": null}',
    b'{"generation": "20200101T000000000000-00000000", "share": 2, "renewed": null}',
    b'{"generation": "20200101T000000000000-00000000", "share": "all"}',
    b'{"generation": "20200101T000000000000-00000000", "other": 1}', b"20200101T000000000000-00000000\n",
])  # fmt: skip
def test_a_damaged_file_is_no_trial(store: GenerationStore, content: bytes) -> None:
    a, _, _, _ = store.ids()
    store.activate(a)
    (store.root / "TRIAL").write_bytes(content)
    assert store.trial() is None
    store.end_trial()
    assert not (store.root / "TRIAL").exists()


def test_a_trial_has_a_share_and_a_time_and_is_renewed_while_it_lasts(store: GenerationStore) -> None:
    a, b, c, _ = store.ids()
    store.activate(a)
    store.begin_trial(b, 0.05, 1e9)
    assert store.trial() == Trial(b, 0.05, 1e9)
    assert store.renew_trial(Trial(b, 0.2, 2e9))
    assert store.trial() == Trial(b, 0.2, 2e9)
    assert not store.renew_trial(Trial(c, 0.2))
    store.end_trial()
    assert not store.renew_trial(Trial(b, 0.5)), "what was withdrawn does not come back"
    assert store.trial() is None


@pytest.mark.parametrize(
    ("share", "renewed"), [(-0.1, None), (1.1, None), (math.nan, None), (True, None), ("1", None), (0.5, math.inf)]
)
def test_what_is_no_share_or_time_is_refused(share: Any, renewed: Any) -> None:
    with pytest.raises(ValueError, match=r"share|renewed"):
        Trial("20200101T000000000000-00000000", share, renewed)
