"""TRIAL beside CURRENT: which generation servers load for comparing, and when that ends."""

import errno
from pathlib import Path

import pytest

from polyrank.index_builder.errors import GenerationNotFound
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.errors import InvalidInput, Shortage
from polyrank.model.inputs import read_input


def test_a_trial_is_named_beside_the_active_one_and_another_takes_its_place(store: GenerationStore) -> None:
    a, b, c, _ = store.ids()
    store.activate(a)
    assert store.trial() is None
    for each in (b, c):
        store.begin_trial(each)
        assert (store.trial(), store.current(), store.history()) == (each, a, [])
    with pytest.raises(GenerationNotFound):
        store.begin_trial("20200101T000000000000-00000000")
    assert store.trial() == c
    store.end_trial()
    store.end_trial()
    assert store.trial() is None


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


def test_a_trial_that_cannot_be_read_now_is_neither_over_nor_removed(
    store: GenerationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert (store.trial(), store.current()) == (a, c)
    assert a in store.ids()


def test_a_damaged_file_is_no_trial(store: GenerationStore) -> None:
    a, _, _, _ = store.ids()
    store.activate(a)
    (store.root / "TRIAL").write_bytes(b"../..\xff\n")
    assert store.trial() is None
    store.end_trial()
    assert not (store.root / "TRIAL").exists()
