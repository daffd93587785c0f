"""Which updates a generation has: when it becomes active, comes back, or is left behind by a crash or a cleaning."""

import math
import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import HashEncoder, pool
from full_disk import fill_disk

from polyrank.index_builder.building.compaction import compact, updated_pool
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.building.stages import OnProgress, no_progress
from polyrank.index_builder.errors import (
    BuildError,
    CompactionOvertaken,
    FingerprintMismatch,
    GenerationCorrupt,
    GenerationNotFound,
    StoreBusy,
    SwitchOvertaken,
)
from polyrank.index_builder.generation.candidates import KnownTexts
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store import locks
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.locks import is_locked, locked
from polyrank.index_builder.store.pointer import Pointer
from polyrank.index_builder.store.switch import MissedUpdates, Switch
from polyrank.index_builder.store.update_log import Update, UpdateLog, UpdateLogs
from polyrank.index_builder.vectors.encoder import encode_texts
from polyrank.index_builder.vectors.local import DTYPES, rounded_all
from polyrank.model.representations import Representations

OTHER = HashEncoder(dim=12, fingerprint="f" * 64)  # another model, of another dimension


class Store:
    """A store whose pools are c0 to c3, and what is in its generations."""

    def __init__(self, root: Path) -> None:
        self.root, self.store = root, GenerationStore(root)
        self.updates = self.store.updates
        self.encoders = {each.fingerprint: each for each in (HashEncoder(), OTHER)}

    def build(self, encoder: HashEncoder | None = None, progress: OnProgress = no_progress, **options: Any) -> str:
        built = build(encoder or HashEncoder(), pool(4), self.root, BuildOptions(**options), progress=progress)
        return built.generation

    def update(self, *upserts: str, deletes: Sequence[str] = ()) -> int:
        """Of the active generation, as the service does it; the texts are the ids and the revision."""
        manifest = self.store.manifest(self.store.current() or "")
        with self.updates.writing():
            log = self.updates.of(manifest)
            list(log.read())
            revision = 1 + max(log.revision, log.floor, manifest.revision)
            candidates = [Candidate(each, f"{each} {revision}") for each in upserts]
            vectors = encode_texts(self.encoders[manifest.model.fingerprint], [each.text for each in candidates])
            log.append(Update(revision, candidates, rounded_all(vectors, manifest.dtype), deletes))
        return revision

    def texts(self, generation: str) -> dict[str, str]:
        """What is in it, by id; each vector is checked to be that of its text by the generation's own model."""
        opened = self.store.open(generation)
        snapshot, encoder = self.store.snapshots([opened])[0], self.encoders[opened.manifest.model.fingerprint]
        found = snapshot.candidates(snapshot.matching({}))
        _, own, added = snapshot.split(snapshot.matching({}))
        vectors = [*opened.embeddings.matrix[own].tolist(), *snapshot.vectors_added[added].tolist()]
        assert vectors == [encoder.vector(each.text).tolist() for each in found]
        opened.close()
        return {each.id: each.text for each in found if each.text != f"text {each.id[1:]}"}

    def revision(self, generation: str) -> int:
        opened = self.store.open(generation)
        snapshot = self.store.snapshots([opened])[0]
        opened.close()
        return snapshot.revision

    def log(self, generation: str) -> Path:
        return self.root / "log" / f"{generation}.log"

    def logs(self) -> list[str]:
        return sorted(path.stem for path in (self.root / "log").glob("*.log"))

    def manifest(self, generation: str) -> Manifest:
        return self.store.manifest(generation)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def damage(path: Path, at: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_what_the_pool_may_reflect_can_be_said(store: Store) -> None:
    store.build()
    store.update("a")
    store.update("b")
    assert store.texts(store.build(revision=1)) == {"b": "b 2"}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("encoder", [HashEncoder(), OTHER])
def test_updates_of_another_model_or_precision_are_encoded_anew(store: Store, dtype: str, encoder: HashEncoder) -> None:
    store.build()
    second = store.build(activate=False, encoder=encoder, dtype=dtype)
    store.update("a", "b")
    store.update(deletes=["b", "c0"])
    store.store.activate(second, partial(encode_texts, encoder))
    assert store.texts(second) == {"a": "a 1"}
    assert store.store.snapshots([store.store.open(second)])[0].vectors_added.dtype == DTYPES[dtype]
    store.store.rollback()
    third = store.build(activate=False)
    store.store.activate(third)
    assert store.texts(third) == {}


def test_without_the_model_it_is_refused_and_nothing_changes(store: Store) -> None:
    first = store.build()
    second = store.build(activate=False, encoder=OTHER)
    store.update("a")
    with pytest.raises(FingerprintMismatch) as caught:
        store.store.activate(second)
    assert {caught.value.expected, caught.value.actual} == {OTHER.fingerprint, HashEncoder().fingerprint}
    assert (store.store.current(), store.texts(second), store.update("b")) == (first, {}, 2)


def test_without_the_model_deletions_alone_can_be_given(store: Store) -> None:
    store.build()
    second = store.build(activate=False, encoder=OTHER)
    store.update(deletes=["c1"])
    store.store.activate(second)
    assert store.store.snapshots([store.store.open(second)])[0].rows(["c1"]).tolist() == [-1]


def test_a_vector_that_is_not_finite_is_refused_and_nothing_changes(store: Store) -> None:
    first = store.build()
    second = store.build(activate=False, encoder=OTHER)
    store.update("a")
    with pytest.raises(BuildError, match="not finite"):
        store.store.activate(second, lambda texts: Representations(np.full((len(texts), OTHER.dim), np.inf)))
    assert (store.store.current(), store.texts(second)) == (first, {})


def test_what_comes_between_preparing_and_switching_is_given_too(store: Store) -> None:
    first = store.build()
    second = store.build(activate=False, encoder=OTHER)
    store.update("a")
    asked: list[list[str]] = []

    def encode(texts: list[str]) -> Any:
        asked.append(texts)
        if len(asked) == 1:
            store.update("b")  # nobody is kept waiting by what is encoded first
        return encode_texts(OTHER, texts)

    store.store.activate(second, encode)
    assert asked == [["a 1"], ["b 2"]], "each once"
    assert store.texts(second) == {"a": "a 1", "b": "b 2"}
    assert store.texts(first) == {"a": "a 1", "b": "b 2"}


def test_a_damaged_log_of_the_one_before_gives_what_comes_before_the_damage(store: Store, caplog) -> None:
    first = store.build()
    second = store.build(activate=False)
    store.update("a")
    store.update("b")
    damage(store.log(first))
    with pytest.raises(GenerationCorrupt, match="update log"):
        store.store.verify(first)
    store.store.activate(second)
    assert store.texts(second) == {"a": "a 1"}
    assert f"updates are lost: generation {first}" in caplog.text
    assert store.update("c") == 2, "2 is lost, and may be given again: nobody has it"


def test_revisions_known_from_a_manifest_are_not_given_again_where_a_log_is_damaged(store: Store) -> None:
    first = store.build()
    store.update("a")
    store.update("b")
    second = store.build(activate=False)
    damage(store.log(first))
    store.store.activate(second)
    assert store.manifest(store.build()).revision == 2
    assert store.update("c") == 3


@pytest.mark.parametrize("harm", [damage, Path.unlink])
def test_one_whose_own_log_is_damaged_or_gone_is_not_activated(store: Store, harm: Callable[[Path], None]) -> None:
    first = store.build()
    store.update("a")
    second = store.build()
    harm(store.log(first))
    for switch in (store.store.rollback, lambda: store.store.activate(first)):
        with pytest.raises(GenerationCorrupt, match="update log"):
            switch()
    assert store.store.current() == second
    [opened], refused = store.store.open_to_serve()
    assert (opened.id, refused) == (second, [])


STEPS = ["_write_current", "_write_history", "write", "raise_floor", "_mark_active"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_step_of_an_activation_loses_nothing(store: Store, monkeypatch, step: str, after: bool) -> None:
    first = store.build()
    second = store.build(activate=False)
    store.update("a")
    store.update("b")
    with monkeypatch.context() as patch:
        _crash(patch, step, after)
        with pytest.raises(KeyboardInterrupt):
            store.store.activate(second)
    current = store.store.current()
    assert current in (first, second)
    assert store.texts(current) == {"a": "a 1", "b": "b 2"}
    assert store.update("c") == 3
    store.store.activate(second)
    assert store.texts(second) == {"a": "a 1", "b": "b 2", "c": "c 3"}
    assert store.update("d") == 4
    assert store.store.rollback() == first
    assert store.texts(first) == {"a": "a 1", "b": "b 2"} | ({"c": "c 3"} if current == first else {})
    assert store.update("e") == 5


@pytest.mark.parametrize("step", ["_write_current", "_write_history", "raise_floor", "_mark_active"])
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_step_of_a_rollback_loses_nothing(store: Store, monkeypatch, step: str, after: bool) -> None:
    first = store.build()
    store.update("a")
    second = store.build()
    store.update("b")
    with monkeypatch.context() as patch:
        _crash(patch, step, after)
        with pytest.raises(KeyboardInterrupt):
            store.store.rollback()
    current = store.store.current()
    assert store.texts(first) == {"a": "a 1"}
    assert store.texts(second) == {"b": "b 2"}
    assert store.update("c") == 3
    if current == second:
        assert store.store.rollback() == first
        assert store.texts(first) == {"a": "a 1"}
    else:
        assert store.texts(first) == {"a": "a 1", "c": "c 3"}
    assert store.update("d") == 4


def _crash(patch: pytest.MonkeyPatch, step: str, after: bool) -> None:
    """Let a step of a switch be the last thing that happens, or the first that does not."""
    owners = {"write": MissedUpdates, "raise_floor": UpdateLog, "_mark_active": Switch}
    owner: type = owners.get(step, Pointer)
    original = getattr(owner, step)

    def crash(*arguments: Any) -> None:
        if after:
            original(*arguments)
        raise KeyboardInterrupt

    patch.setattr(owner, step, crash)


def test_a_disk_that_is_full_activates_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = store.build()
    second = store.build(activate=False)
    store.update("a")
    with monkeypatch.context() as patch:
        fill_disk(patch, store.log(second))
        with pytest.raises(OSError, match="No space left"):
            store.store.activate(second)
    assert (store.store.current(), store.logs()) == (first, [first])
    store.store.activate(second)
    assert store.texts(second) == {"a": "a 1"}


def test_many_updates_are_given_with_one_write_to_the_disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = store.build()
    second = store.build(activate=False)
    vector = np.zeros((1, HashEncoder().dim), np.float16)
    missed = [
        Update(revision, [Candidate(f"n{revision % 7}", "x")], Representations(vector)) for revision in range(1, 1501)
    ]
    store.updates.of(store.manifest(first)).append(*missed)
    store.updates.of(store.manifest(first)).mark_active()
    fdatasync, synced = os.fdatasync, []

    def counted(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).stem)
        fdatasync(descriptor)

    monkeypatch.setattr(os, "fdatasync", counted)
    store.store.activate(second)
    assert synced == [second, second], "what it was given, and that it is active"
    assert store.revision(second) == 1500


def test_one_that_was_active_comes_back_as_it_was_left_though_current_was_lost(store: Store) -> None:
    first = store.build()
    store.update("a")
    second = store.build()
    store.update("b")
    (store.root / "CURRENT").unlink()
    store.store.activate(first)
    assert store.texts(first) == {"a": "a 1"}
    assert store.update("c") == 3
    (store.root / "CURRENT").write_text("nothing\n")
    store.store.activate(second)
    assert store.texts(second) == {"b": "b 2"}


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_before_it_is_noted_as_active_is_made_up_for_when_it_is_left(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: int, after: bool
) -> None:
    store.build()
    second = store.build(activate=False)
    mark_active, calls = UpdateLog.mark_active, []

    def crash(log: UpdateLog) -> None:
        calls.append(log.subject.generation)
        if len(calls) < call or after:
            mark_active(log)
        if len(calls) == call:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(UpdateLog, "mark_active", crash)
        with pytest.raises(KeyboardInterrupt):
            store.store.activate(second)
    if call == 1:
        store.store.activate(second)
    assert store.store.current() == second
    store.update("a")
    store.build()
    store.update("b")
    store.store.activate(second)
    assert store.texts(second) == {"a": "a 1"}


def test_the_active_one_without_its_log_is_refused_and_the_one_before_is_served(store: Store) -> None:
    first = store.build()
    waiting = store.build(activate=False)
    second = store.build()
    store.update("a")
    store.log(second).unlink()
    with pytest.raises(GenerationCorrupt, match=f"its update log {second}.log is gone; build again, or restore it"):
        store.store.verify(second)
    [opened], [(refused, why)] = store.store.open_to_serve()
    assert (opened.id, refused) == (first, second)
    assert "is gone" in why
    with pytest.raises(GenerationCorrupt, match="is gone"):
        store.store.activate(second)
    store.store.verify(waiting)
    assert store.store.rollback() == first
    store.update("b")


def test_a_successor_that_cannot_take_the_place_is_removed_whatever_the_reason(store: Store, monkeypatch) -> None:
    first = store.build()
    store.update("a")
    second = store.build(activate=False)
    forgotten: list[str] = []
    with monkeypatch.context() as patch:
        fill_disk(patch, store.log(second))
        with pytest.raises(OSError, match="No space left"):
            store.store.make_copy_active(first, store.store.manifest(second), forget=forgotten.append)
    assert (store.store.current(), store.store.ids(), forgotten) == (first, [first], [second])
    with pytest.raises(GenerationNotFound):
        store.store.make_copy_active(first, store.store.manifest(second))


@pytest.mark.parametrize(("lock", "stays"), [("log/write.lock", False), ("pointer.lock", True)])
def test_a_successor_that_finds_a_held_lock_is_removed_or_named(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lock: str, stays: bool
) -> None:
    first = store.build()
    second = store.build(activate=False)
    with monkeypatch.context() as patch, locked(store.root / lock):
        patch.setattr(locks, "WAIT_SECONDS", 0.01)
        with pytest.raises(StoreBusy, match=lock):
            store.store.make_copy_active(first, store.store.manifest(second))
    assert (store.store.current(), store.store.ids()) == (first, [first, second] if stays else [first])
    assert (f"generation {second} stays" in caplog.text) is stays
    third = store.build(activate=False)
    store.store.make_copy_active(first, store.store.manifest(third))
    store.store.gc(keep=1)
    assert store.store.ids() == [third]


def test_an_overtaken_successor_is_told_before_anything_is_encoded(store: Store) -> None:
    first, second = store.build(), store.build()
    third = store.build(activate=False, encoder=OTHER)
    store.update("a")  # which would have to be encoded, and cannot
    with pytest.raises(CompactionOvertaken):
        store.store.make_copy_active(first, store.store.manifest(third))
    assert store.store.ids() == [first, second]


def test_a_successor_leaves_no_way_back_to_the_one_whose_place_it_took(store: Store) -> None:
    first, second = store.build(), store.build()
    store.store.activate(first)
    shutil.rmtree(store.store.path(second))
    assert store.store.history() == []
    third = store.build(activate=False)
    store.store.make_copy_active(first, store.store.manifest(third))
    assert (store.store.current(), store.store.history()) == (third, [])


def test_collecting_keeps_the_logs_that_a_waiting_generation_needs(store: Store) -> None:
    first = store.build()
    second = store.build()
    waiting = store.build(activate=False)
    store.update("a")
    store.store.activate(first)
    store.update("b")
    fourth = store.build()
    assert sorted(store.store.gc(keep=1)) == sorted([first, second, waiting])
    assert store.logs() == [fourth], "none is waiting that needs them"
    waiting = store.build(activate=False)
    store.update("c")
    store.build()
    assert fourth in store.store.gc(keep=1)
    assert waiting not in store.store.ids()
    # A waiting one that is newer than the active one is kept, and so is every log.
    fifth = store.store.current()
    store.update("d")
    newer = store.build(activate=False)
    store.update("e")
    store.store.gc(keep=1)
    assert set(store.store.ids()) == {fifth, newer}
    assert fifth in store.logs()
    store.store.activate(newer)
    assert store.texts(newer) == {"e": "e 5"}
    store.store.gc(keep=1)
    assert store.logs() == [newer]
    assert (store.texts(newer), store.update("f")) == ({"e": "e 5"}, 6)


def test_logs_are_kept_while_somebody_builds(store: Store) -> None:
    first = store.build()
    store.update("a")

    def meanwhile(stage: str, _done: int, _total: int | None) -> None:
        if stage == "index" and store.store.current() == first:
            store.update("b")
            store.store.gc(keep=1)

    assert store.texts(store.build(progress=meanwhile)) == {"b": "b 2"}


def test_one_who_writes_waits_only_so_long(store: Store) -> None:
    store.build()
    with UpdateLogs(store.root).writing(), pytest.raises(StoreBusy), store.updates.writing(within_seconds=0.05):
        raise AssertionError("two write")
    with store.updates.writing(within_seconds=0):
        assert is_locked(store.root / "log" / "write.lock")


def test_a_compaction_is_given_what_was_written_to_what_it_compacts_alone(tmp_path: Path) -> None:
    first = build(HashEncoder(), pool(5), tmp_path).generation
    other = build(HashEncoder(), pool(5, "other "), tmp_path, BuildOptions(activate=False)).generation
    store = GenerationStore(tmp_path)

    def write(generation: str, revision: int, deleted: str) -> None:
        log = store.updates.of(store.manifest(generation))
        log.append(Update(revision, [], Representations(np.empty((0, 8))), [deleted]))

    write(first, 1, "c0")

    def meanwhile(stage: str, _done: int, _total: int | None) -> None:
        if stage == "rename":
            store.activate(other)
            write(other, 2, "c1")
            store.rollback()
            write(first, 3, "c2")

    compacted = store.open(compact(tmp_path, progress=meanwhile).generation)
    snapshot = store.snapshots([compacted])[0]
    assert [each.id for each in snapshot.candidates(snapshot.all_rows)] == ["c1", "c3", "c4"]
    assert snapshot.revision == 3
    compacted.close()


@pytest.mark.parametrize("parts", [1, 2])
def test_a_build_of_what_the_live_one_holds_misses_no_update(store: Store, parts: int) -> None:
    """As the loop builds: from the live generation, in another model, while updates come."""
    build(HashEncoder(), pool(12), store.root, BuildOptions(), parts=parts)
    store.update("a", "c3", deletes=["c1"])
    with pytest.raises(SwitchOvertaken), updated_pool(store.store, "another"):
        pass
    with updated_pool(store.store, store.store.active().id) as (revision, candidates):
        store.update("b", deletes=["c2"])
        options = BuildOptions(activate=False, revision=revision)
        new = build(OTHER, candidates, store.root, options, parts=parts).generation
    store.store.activate(new, partial(encode_texts, OTHER))
    opened = store.store.open_parts(new)
    snapshots = store.store.snapshots(opened)
    held = {each.id: each.text for part in snapshots for each in part.candidates(part.all_rows)}
    kept = {f"c{number}": f"text {number}" for number in range(12) if number not in (1, 2)}
    assert held == {**kept, "c3": "c3 1", "a": "a 1", "b": "b 2"}
    for each in opened:
        each.close()


# A generation on trial receives updates, too.


def receive(store: Store, generation: str, missed: MissedUpdates | None = None, seconds: float = math.inf) -> None:
    """As a server does while the generation is on trial."""
    manifest = store.manifest(generation)
    encode = partial(encode_texts, store.encoders[manifest.model.fingerprint])
    store.store.receive(generation, missed or store.store.missed(manifest, encode), seconds)


def missed_by(store: Store, generation: str) -> MissedUpdates:
    manifest = store.manifest(generation)
    return store.store.missed(manifest, partial(encode_texts, store.encoders[manifest.model.fingerprint]))


def test_what_is_not_on_trial_is_given_nothing_and_one_server_gives_at_a_time(store: Store) -> None:
    store.build()
    second = store.build(activate=False)
    store.update("a")
    receive(store, second)
    assert store.revision(second) == 0
    store.store.begin_trial(second)
    with store.updates.receiving() as alone:
        assert alone
        receive(store, second)
    assert (store.revision(second), store.logs()) == (0, [store.store.current()])


@pytest.mark.parametrize("way", ["activate", "go_back", "rollback"])
def test_one_on_trial_comes_back_with_what_it_has_not_received_yet(store: Store, way: str) -> None:
    """A server gives it updates about a second late; a switch or a rollback in this second loses none."""
    first = store.build(OTHER)
    store.update("before")
    second = store.build()
    store.store.begin_trial(first)
    store.update("received")
    receive(store, first)
    store.update("late")
    encode = partial(encode_texts, OTHER)
    if way == "activate":
        store.store.activate(first, encode)
    elif way == "go_back":
        assert store.store.go_back(store.manifest(first), encode)
    else:
        assert store.store.rollback(lambda _: encode) == first
    assert store.texts(first) == {"before": "before 1", "received": "received 2", "late": "late 3"}
    assert store.texts(second) == {"received": "received 2", "late": "late 3"}


def test_a_compaction_of_the_live_one_loses_nothing_of_the_trial(store: Store) -> None:
    first = store.build()
    store.update("a")
    old, trial = store.build(), store.build(OTHER, activate=False, revision=0)
    store.update("b")
    for on_trial in (trial, first):
        store.store.begin_trial(on_trial)
        missed = missed_by(store, on_trial)
        receive(store, on_trial, missed)
        store.update("c")
        before = store.store.current()
        compact(store.root)
        assert before in store.store.gc(keep=2)
        store.update("d")
        receive(store, on_trial, missed)
        live = store.texts(store.store.current() or "")
        expected = {name: text for name, text in live.items() if on_trial == trial or name != "a"} | {"a": "a 1"}
        assert store.texts(on_trial) == expected, on_trial
    assert old not in store.store.ids()


def test_encoding_stops_after_its_time_and_what_is_encoded_is_written(store: Store) -> None:
    store.build()
    trial = store.build(OTHER, activate=False)
    for name in "abc":
        store.update(name)
    store.store.begin_trial(trial)
    for revision in (1, 2, 3):  # one each time, however short the time is
        receive(store, trial, seconds=0)
        assert store.revision(trial) == revision
    assert store.texts(trial) == {"a": "a 1", "b": "b 2", "c": "c 3"}


def test_what_stands_in_two_logs_is_not_encoded_again(store: Store) -> None:
    store.build()
    trial = store.build(OTHER, activate=False)
    store.update("a")
    store.store.begin_trial(trial)
    receive(store, trial)
    later = store.build(activate=False, revision=0)
    store.store.activate(later)  # without a model that could encode
    assert store.texts(later) == {"a": "a 1"}


def test_a_damaged_log_is_told_of_once_and_what_comes_before_counts(store: Store, caplog) -> None:
    first = store.build()
    store.update("a")
    store.update("lost")
    store.build()
    trial = store.build(activate=False, revision=0)
    store.update("b")
    damage(store.log(first))
    store.store.begin_trial(trial)
    missed = missed_by(store, trial)
    for name in ("c", "d"):
        receive(store, trial, missed)
        store.update(name)
    receive(store, trial, missed)
    assert store.texts(trial) == {"a": "a 1", "b": "b 3", "c": "c 4", "d": "d 5"}
    assert len([record for record in caplog.records if "updates are lost" in record.message]) == 1


def test_equal_texts_tie_in_all_parts_however_often_updates_bring_them(store: Store) -> None:
    """Encoded in other company, a text's vector may differ in its last bits."""
    store.build()
    trial = store.build(OTHER, activate=False)
    store.store.begin_trial(trial)
    manifest, calls = store.manifest(trial), [0]

    def encode(texts: Sequence[str]) -> Representations:
        calls[0] += 1
        return Representations(np.full((len(texts), OTHER.dim), calls[0], np.float32))

    def find(texts: Sequence[str]) -> KnownTexts:
        return KnownTexts(np.empty(0, np.int64), Representations.none(OTHER.dim, None))

    def again() -> MissedUpdates:
        return MissedUpdates(store.updates, manifest, encode, find=find, on_trial=True)

    missed = again()
    log = store.updates.of(store.manifest(store.store.current() or ""))
    for revision in (1, 2, 3):
        vector = Representations(np.zeros((1, HashEncoder().dim), np.float16))
        log.append(Update(revision, [Candidate(f"n{revision}", "same")], vector))
        store.store.receive(trial, missed if revision < 3 else again(), math.inf)
    given = [update.vectors.first[0, 0] for update in store.updates.of(manifest).read()]
    assert (given, calls) == ([1, 1, 1], [3])


@pytest.mark.parametrize("torn", [1, 40, 200])
def test_a_kill_amid_what_a_trial_is_given_is_gone_on_with(store: Store, torn: int) -> None:
    store.build()
    trial = store.build(OTHER, activate=False)
    store.store.begin_trial(trial)
    for name in "abc":
        store.update(name)
    receive(store, trial)
    log = store.log(trial)
    log.write_bytes(log.read_bytes()[:-torn])  # not all of it had been written
    store.update("d")
    receive(store, trial)
    assert store.texts(trial) == {"a": "a 1", "b": "b 2", "c": "c 3", "d": "d 4"}
    store.store.activate(trial)
    assert store.texts(trial) == {"a": "a 1", "b": "b 2", "c": "c 3", "d": "d 4"}
