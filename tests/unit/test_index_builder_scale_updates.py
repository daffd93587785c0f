"""Updates of sets: what a switch gives to a set, who is in it, compactions, moves and collections; without torch."""

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fakes import EVIDENCE, HashEncoder, pool

from polyrank.index_builder.building.pipeline import BuildOptions
from polyrank.index_builder.errors import (
    CompactionOvertaken,
    FingerprintMismatch,
    GenerationCorrupt,
    GenerationNotFound,
    NothingToCompact,
    StoreBusy,
)
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.scale.compacting import compact_parts
from polyrank.index_builder.scale.cutting import build_parts
from polyrank.index_builder.scale.membership import Counts, Membership
from polyrank.index_builder.scale.moving import move
from polyrank.index_builder.scale.sets import PartSet, PartsStore, PoolPart
from polyrank.index_builder.scale.slots import slots_of
from polyrank.index_builder.scale.updated_part import UpdatedPart
from polyrank.index_builder.store.pointer import Pointer
from polyrank.index_builder.store.switch import Switch
from polyrank.index_builder.store.update_log import Update, UpdateLog
from polyrank.index_builder.store.updates import MissedUpdates
from polyrank.index_builder.vectors.encoder import encode_texts, rounded_all
from polyrank.model.lexical.words import Statistics
from polyrank.model.representations import LateRows

ENCODER = HashEncoder(late=LateRows(3, None))
OTHER = HashEncoder(dim=12, fingerprint="f" * 64)  # another model, of another dimension
POOL = pool(30)


class Sets:
    """A store in parts, updated as a server does it."""

    def __init__(self, root: Path) -> None:
        self.root, self.store = root, PartsStore(root)

    def build(self, prefix: str = "", encoder: HashEncoder = ENCODER, activate: bool = True) -> PartSet:
        options = BuildOptions(index="exact", activate=activate)
        return build_parts(encoder, pool(30, prefix), self.root, 3, options).made

    def update(self, *ids: str, deletes: Sequence[str] = (), encoder: HashEncoder = ENCODER) -> int:
        """Write an update of the active set; the text of each candidate is its id and the revision."""
        made = self.store.active()
        with self.store.updates.writing():
            log = self.store.updates.of(made)
            log.catch_up()
            revision = 1 + max(log.revision, log.floor, made.revision)
            rows = [Candidate(each, f"{each} {revision}") for each in ids]
            made_ = rounded_all(encode_texts(encoder, [each.text for each in rows]), "float16")
            log.append(Update(revision, rows, made_, deletes))
        return revision

    def held(self, made: PartSet, encoder: HashEncoder = ENCODER) -> dict[str, str]:
        """The texts of a set with its updates, by id, in the order of the pool; the vectors are those of the texts."""
        updates, found = list(self.store.updates.of(made).read()), {}
        for part in made.parts:
            opened = self.store.open(part)
            updated = UpdatedPart.of(made, part, opened).updated(updates)
            rows = updated.snapshot.all_rows
            candidates = updated.snapshot.candidates(rows)
            slots = slots_of([each.id for each in candidates])
            assert ((slots >= part.first_slot) & (slots < part.end_slot)).all()
            expected = encoder.of([each.text for each in candidates])
            for stored, wanted in zip(updated.snapshot.representations(rows), expected, strict=True):
                if wanted is not None:
                    np.testing.assert_array_equal(stored, wanted)
            found |= dict(zip(updated.order(rows).tolist(), candidates, strict=True))
            opened.close()
        count = 0
        for part in made.parts:
            members = self.members(part)
            members.update(updates)
            count += members.counts().count
            assert members.missing(part.slots.of([each.id for each in found.values()])) == []
        assert count == len(found)
        return {found[place].id: found[place].text for place in sorted(found)}

    def members(self, part: PoolPart) -> Membership:
        return Membership(self.store.directory(part), part.slots, part.count)

    def log(self, made: PartSet) -> Path:
        return self.root / "log" / f"{made.id}.log"


@pytest.fixture
def sets(tmp_path: Path) -> Sets:
    return Sets(tmp_path)


BUILT = {each.id: each.text for each in POOL}


def test_updates_are_of_the_whole_set_in_their_order(sets: Sets) -> None:
    made = sets.build()
    gone = POOL[3].id
    assert sets.update("a", "b", "c", "d") == 1
    assert sets.update("b", POOL[5].id, deletes=["d", gone, "none"]) == 2
    kept = {each: text for each, text in BUILT.items() if each not in (gone, POOL[5].id)}
    assert list(sets.held(made).items()) == [
        *kept.items(),
        ("a", "a 1"),
        ("c", "c 1"),
        ("b", "b 2"),
        (POOL[5].id, f"{POOL[5].id} 2"),
    ]


def test_a_set_that_becomes_active_receives_what_it_missed_and_comes_back_as_it_was_left(sets: Sets) -> None:
    first = sets.build()
    sets.update("a")
    second = sets.build("x", activate=False)
    sets.update("b", deletes=["a"])
    sets.store.activate(second.id)
    assert second.revision == 1
    assert list(sets.held(second))[-1:] == ["b"]
    assert "a" not in sets.held(second)
    assert sets.update("c") == 3
    assert sets.store.rollback() == first.id
    assert list(sets.held(first))[-1:] == ["b"]
    assert sets.update("d") == 4, "no revision is used twice"
    sets.store.activate(second.id)
    assert list(sets.held(second))[-2:] == ["b", "c"]


def test_updates_made_under_another_model_are_encoded_anew_or_refused(sets: Sets) -> None:
    first = sets.build()
    second = sets.build("x", encoder=OTHER, activate=False)
    sets.update("a")
    with pytest.raises(FingerprintMismatch):
        sets.store.activate(second.id)
    assert sets.store.current() == first.id
    sets.store.activate(second.id, partial(encode_texts, OTHER))
    assert sets.held(second, OTHER)["a"] == "a 1"
    options = BuildOptions(index="exact", revision=0)
    third = build_parts(ENCODER, pool(30, "y"), sets.root, 3, options).made
    assert sets.store.active() == third
    assert sets.held(third)["a"] == "a 1", "a build has its model"


def test_a_log_that_is_gone_or_damaged_is_refused(sets: Sets) -> None:
    first, second = sets.build(), sets.build("x")
    sets.log(first).unlink()
    with pytest.raises(GenerationCorrupt, match="is gone"):
        sets.store.rollback()
    content = bytearray(sets.log(second).read_bytes())
    content[20] ^= 1
    sets.log(second).write_bytes(content)
    with pytest.raises(GenerationCorrupt, match="damaged"):
        sets.store.verify(second.id)
    with pytest.raises(GenerationCorrupt, match="damaged"):
        sets.store.activate(second.id)


def test_a_collection_removes_the_logs_of_sets_that_are_gone(sets: Sets) -> None:
    first = sets.build()
    sets.update("a")
    second, third = sets.build("x"), sets.build("y", activate=False)
    assert sets.store.gc(keep=1) == [first.id]
    assert sets.log(first).exists(), "the third may still have to receive its updates"
    sets.store.activate(third.id)
    sets.store.gc(keep=2)
    assert not sets.log(first).exists()
    assert sets.log(second).exists()


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_a_move_takes_the_updates_of_its_set_along_and_no_others(sets: Sets, shards: int) -> None:
    first = sets.build()
    sets.update("a", "b")
    sets.build("x")
    sets.update("only in the second")
    sets.store.rollback()
    sets.update("c", deletes=["a", POOL[0].id])
    before = list(sets.held(first).items())
    moved = move(sets.root, shards)
    assert list(sets.held(moved).items()) == before
    sets.update("d")
    assert list(sets.held(moved))[-1] == "d"
    assert sets.store.rollback() == first.id
    assert list(sets.held(first).items()) == before


def test_a_compaction_keeps_the_pool_and_builds_what_was_changed(sets: Sets) -> None:
    earlier = sets.build("x")
    first = sets.build()
    end = first.parts[0].end_slot
    own = [f"new {n}" for n in range(40) if slots_of([f"new {n}"])[0] < end]
    sets.update(*own[:4])
    sets.update(own[0], deletes=[own[1], "none"])
    before = list(sets.held(first).items())
    result = compact_parts(sets.root)
    made = result.made
    assert set(result.built) == {first.parts[0].name}
    assert made.parts[1:] == first.parts[1:]
    assert sets.store.active() == made
    assert (made.count, made.revision) == (len(before), 2)
    assert list(sets.held(made).items()) == before
    assert list(sets.store.updates.of(made).read()) == []
    assert sets.update("later") == 3
    sets.update(own[5])
    assert list(sets.held(made))[-2:] == ["later", own[5]]
    after = list(sets.held(made).items())
    assert list(sets.held(compact_parts(sets.root).made).items()) == after, "places in the pool have gaps by now"
    moved = move(sets.root, 2)
    assert list(sets.held(moved).items()) == after
    sets.store.rollback()
    assert sets.store.rollback() == earlier.id, "it leads where it would have led before the compactions"


def test_words_of_all_parts_are_counted_anew(sets: Sets) -> None:
    encoder = HashEncoder(evidence=EVIDENCE, late=ENCODER.late_rows)
    first = sets.build(encoder=encoder)
    sets.update("only one", encoder=encoder)
    held = sets.held(first, encoder)
    result = compact_parts(sets.root)
    assert set(result.built) == {part.name for part in first.parts}, "they have the statistics of the whole pool"
    assert (result.counted, result.notes[-1][:40]) == (31, "words were counted anew, in 31 candidate")
    assert list(sets.held(result.made, encoder).items()) == list(held.items())
    for part in result.made.parts:
        opened = sets.store.open(part)
        assert opened.words is not None
        for name, array in Statistics.of(held.values()).arrays().items():
            np.testing.assert_array_equal(opened.words.table.statistics.arrays()[name], array)
        opened.close()


def test_updates_made_during_a_compaction_are_not_lost(sets: Sets) -> None:
    sets.build()
    sets.update("a", POOL[1].id)

    def report(stage: str, _done: int, _total: int | None) -> None:
        if stage == "rename":
            sets.update("meanwhile", POOL[2].id, deletes=["a"])

    made = compact_parts(sets.root, progress=report).made
    assert list(sets.held(made))[-3:] == [POOL[1].id, "meanwhile", POOL[2].id]


@pytest.mark.parametrize("copy", [compact_parts, partial(move, shards=2)], ids=["compaction", "move"])
def test_a_copy_that_another_set_overtook_leaves_nothing(sets: Sets, copy: object) -> None:
    sets.build()
    sets.update("a")
    other = sets.build("x", activate=False)
    files = {path for path in sets.root.rglob("*") if "generations" in path.parts}

    def report(stage: str, _done: int, _total: int | None) -> None:
        if stage == "CURRENT":
            sets.store.activate(other.id)

    with pytest.raises(CompactionOvertaken, match="is not the active one any more"):
        copy(sets.root, progress=report)  # type: ignore[operator]
    assert sets.store.active() == other
    assert len(sets.store.ids()) == 2
    assert {path for path in sets.root.rglob("*") if "generations" in path.parts} == files


def test_a_copy_that_cannot_be_removed_stays_and_is_told(
    sets: Sets, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = sets.build()
    sets.update("a")

    def busy(_: Switch) -> None:
        raise StoreBusy(sets.root / "pointer.lock", "another process")

    def report(stage: str, _done: int, _total: int | None) -> None:
        if stage == "CURRENT":
            monkeypatch.setattr(Switch, "changing", busy)

    with pytest.raises(StoreBusy):
        compact_parts(sets.root, progress=report)
    monkeypatch.undo()
    assert sets.store.active() == first
    assert f"generation {sets.store.ids()[-1]} stays, though it cannot become active" in caplog.text
    assert list(sets.held(compact_parts(sets.root).made))[-1] == "a"


@pytest.mark.parametrize(
    "work",
    [Sets.build, lambda sets: compact_parts(sets.root), lambda sets: move(sets.root, 2)],
    ids=["build", "compaction", "move"],
)
def test_damage_in_another_set_fails_no_work_that_is_done(
    sets: Sets, caplog: pytest.LogCaptureFixture, work: Callable[[Sets], object]
) -> None:
    damaged, active = sets.build("x"), sets.build()
    sets.update("a")
    (sets.store.path(damaged.id) / "manifest.json").write_bytes(b"{}")
    work(sets)
    assert sets.store.current() not in (damaged.id, active.id)
    assert f"stay in {sets.root}: generation {damaged.id} is refused" in caplog.text


OWNERS: dict[str, type] = {
    "_write_current": Pointer,
    "_write_history": Pointer,
    "write": MissedUpdates,
    "raise_floor": UpdateLog,
    "_mark_active": Switch,
}


@pytest.mark.slow
@pytest.mark.parametrize("step", OWNERS)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("switch", ["activation", "compaction"])
def test_a_crash_at_any_step_of_a_switch_loses_nothing(
    sets: Sets, monkeypatch: pytest.MonkeyPatch, step: str, after: bool, switch: str
) -> None:
    first = sets.build()
    second = sets.build("x", activate=False)
    sets.update("a", "b")
    sets.update("c", deletes=["a"])
    original = getattr(OWNERS[step], step)

    def crash(*arguments: object) -> None:
        if after:
            original(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(OWNERS[step], step, crash)
        with pytest.raises(KeyboardInterrupt):
            sets.store.activate(second.id) if switch == "activation" else compact_parts(sets.root)
    made = sets.store.active()
    assert list(sets.held(made))[-2:] == ["b", "c"]
    assert sets.update("d") == 3
    assert list(sets.held(made))[-3:] == ["b", "c", "d"]
    if switch == "activation":
        sets.store.activate(second.id)
        assert list(sets.held(second))[-3:] == ["b", "c", "d"]
        assert sets.store.rollback() == first.id
        assert list(sets.held(first))[-2 if made == second else -3 :] == ["b", "c", *(["d"] if made == first else [])]
    else:
        assert list(sets.held(compact_parts(sets.root).made))[-3:] == ["b", "c", "d"]


def test_what_a_killed_compaction_has_left_is_removed(sets: Sets) -> None:
    made = sets.build()
    began = datetime.now(UTC)
    part = sets.store.part(made.parts[0].slots)
    left = part.begin(part.new_id(ENCODER.fingerprint))
    sets.store.discard_killed(began)
    assert not left.exists()
    sets.store.verify(made.id)


def test_there_may_be_nothing_to_compact(sets: Sets) -> None:
    with pytest.raises(GenerationNotFound, match="is active"):
        compact_parts(sets.root)
    made = sets.build()
    with pytest.raises(NothingToCompact, match="was not updated"):
        compact_parts(sets.root)
    slots, part = slots_of(list(BUILT)).tolist(), made.parts[1]
    gone = [each for each, slot in zip(BUILT, slots, strict=True) if part.first_slot <= slot < part.end_slot]
    sets.update(deletes=gone)
    with pytest.raises(NothingToCompact, match=f"part {part.name} has no candidate left"):
        compact_parts(sets.root)
    assert sets.store.active() == made
    move(sets.root, 1)
    assert set(sets.held(compact_parts(sets.root).made)) == set(BUILT) - set(gone), "as the message says"


def test_updates_that_changed_nothing_are_compacted_away(sets: Sets) -> None:
    first = sets.build()
    sets.update("a")
    sets.update(deletes=["a", "none"])
    made = compact_parts(sets.root).made
    assert made.parts == first.parts
    assert sets.held(made) == BUILT
    assert os.path.getsize(sets.log(made)) < os.path.getsize(sets.log(first))


def test_who_is_in_a_part_is_known_by_ids_alone(sets: Sets) -> None:
    made = sets.build()
    part = made.parts[0]
    one, other, third = part.slots.of([each.id for each in POOL])[:3]
    new, newer = part.slots.of([f"new {n}" for n in range(30)])[:2]
    members = sets.members(part)
    assert members.missing([one, new, other]) == [new]
    [elsewhere] = made.parts[1].slots.of([each.id for each in POOL])[:1]
    sets.update(new, one, elsewhere, deletes=[other, "none"])
    sets.update(newer, deletes=[new])
    updates = list(sets.store.updates.of(made).read())
    members.update(updates[:1])
    assert members.missing([new, one, other, newer, third]) == [other, newer]
    members.update(updates)  # the first one again
    assert members.missing([new, one, other, newer, third]) == [new, other]
    assert members.counts() == Counts(part.count, 2, 2)
    (sets.store.directory(part) / "ids.index").write_bytes(b"")
    with pytest.raises(ValueError, match="has 0 bytes"):
        sets.members(part)
