"""TRIAL beside CURRENT: which generation servers load for comparing, its share, and its lease."""

import errno
import math
from pathlib import Path
from typing import Any

import pytest

from polyrank.index_builder.errors import GenerationNotFound
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.pointer import Trial
from polyrank.model.errors import InvalidInput, Shortage
from polyrank.model.inputs import read_input


def test_a_trial_is_named_beside_the_active_one_and_another_takes_its_place(store: GenerationStore) -> None:
    a, b, c, _ = store.ids()
    store.activate(a)
    assert store.trial() is None
    for each in (b, c):
        store.begin_trial(each)
        assert (store.trial(), store.current(), store.history()) == (Trial(each), a, [])
    with pytest.raises(GenerationNotFound):
        store.begin_trial("20200101T000000000000-00000000")
    assert store.trial() == Trial(c)
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
