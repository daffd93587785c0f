import shutil

import pytest

from polyrank.index_builder.errors import GenerationNotFound, StoreUnavailable
from polyrank.index_builder.store import generation_store
from polyrank.index_builder.store.copies import Copies
from polyrank.index_builder.store.generation_store import GenerationStore


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
    assert store.kept(2) == {a: "among the 2 to keep", b: "active", c: newer, d: newer}
    store.begin_trial(c)
    assert store.kept(1) == {b: "active", c: "on trial", d: newer}
    assert store.gc(keep=1) == [a]


def test_gc_keeps_the_newest_where_there_is_no_way_back(store: GenerationStore) -> None:
    a, b, c, d = store.ids()
    store.activate(d)
    assert store.gc(keep=3) == [a]
    assert store.ids() == [b, c, d]
    (store.root / "CURRENT").unlink()
    assert store.gc(keep=2) == [b]


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
