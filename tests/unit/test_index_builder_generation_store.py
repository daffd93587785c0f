import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fakes import HashEncoder, pool

from polyrank.index_builder import layout
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.errors import GenerationNotFound
from polyrank.index_builder.store import pointer
from polyrank.index_builder.store.generation_store import GenerationStore


def test_activating_moves_the_pointer_and_remembers_the_way_back(store: GenerationStore) -> None:
    a, b, c, _ = store.ids()
    assert store.current() is None
    for each in (a, b, b, c):
        store.activate(each)
        assert store.current() == each
        assert (store.root / "CURRENT").read_text() == f"{each}\n"
    assert store.history() == [a, b]


def test_activating_the_active_one_again_is_seen_and_changes_no_history(store: GenerationStore) -> None:
    a, b, _, _ = store.ids()
    assert store.stamp() is None
    for each in (a, b):
        store.activate(each)
    before = store.stamp()
    assert before == store.stamp() is not None
    store.activate(b)
    assert store.stamp() != before
    assert (store.current(), store.history()) == (b, [a])


def test_rolling_back_goes_back_step_by_step(store: GenerationStore) -> None:
    a, b, c, d = store.ids()
    for each in (a, b, c):
        store.activate(each)
    assert store.rollback() == b
    assert store.rollback() == a
    with pytest.raises(GenerationNotFound, match="no earlier generation to roll back to"):
        store.rollback()
    assert store.current() == a
    store.activate(d)
    assert store.rollback() == a


def test_a_rollback_skips_what_is_gone(store: GenerationStore) -> None:
    a, b, c, d = store.ids()
    for each in (a, b, c, d):
        store.activate(each)
    shutil.rmtree(store.path(c))
    assert store.history() == [a, b]
    assert store.rollback() == b
    assert store.history() == [a]


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


def test_the_way_back_passes_through_a_generation_that_was_active_twice(store: GenerationStore) -> None:
    a, b, _, _ = store.ids()
    for each in (a, b, a):
        store.activate(each)
    assert [store.rollback(), store.rollback()] == [b, a]


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
        f"sync {tmp}/model/polyrank.json", f"sync {tmp}/model/tokenizer.json", f"sync {tmp}/model",
        *(f"sync {tmp}/{name}" for name in files), f"sync {tmp}", f"rename {tmp} -> generations/{new}",
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
