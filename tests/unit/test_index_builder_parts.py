"""Generations of several parts: built, resumed, checked, updated, compacted and cut anew; without torch."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
from fakes import EVIDENCE, HashEncoder, pool

from polyrank.index_builder.building import pipeline
from polyrank.index_builder.building.compaction import compact, move
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions, BuildResult
from polyrank.index_builder.errors import (
    BuildBusy,
    CompactionOvertaken,
    GenerationCorrupt,
    NothingToCompact,
    TooManyRejected,
)
from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.generation.slots import SLOTS, Slots, ranges, slots_of
from polyrank.index_builder.pool.rows import Candidate, Rejected
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.leftovers import discard
from polyrank.index_builder.store.membership import Counts, Membership
from polyrank.index_builder.store.update_log import Update
from polyrank.index_builder.vectors.encoder import encode_texts
from polyrank.index_builder.vectors.local import rounded_all
from polyrank.model.errors import InvalidInput
from polyrank.model.lexical.words import Statistics
from polyrank.model.representations import LateRows, Representations

ENCODER = HashEncoder(late=LateRows(3, None))
POOL = pool(60)
BUILT = {each.id: each.text for each in POOL}
OPTIONS = BuildOptions(index="exact")


class Store:
    """A store that is updated as a server does it."""

    def __init__(self, root: Path) -> None:
        self.root, self.store = root, GenerationStore(root)

    def build(
        self,
        parts: int = 3,
        candidates: Sequence[Candidate | Rejected] = POOL,
        encoder: HashEncoder = ENCODER,
        **options: object,
    ) -> BuildResult:
        return build(encoder, candidates, self.root, replace(OPTIONS, **options), parts=parts)

    def update(self, *ids: str, deletes: Sequence[str] = (), encoder: HashEncoder = ENCODER) -> int:
        """Write an update of the active generation; the text of each candidate is its id and the revision."""
        made = self.store.active()
        with self.store.updates.writing():
            log = self.store.updates.of(made)
            log.catch_up()
            revision = 1 + max(log.revision, log.floor, made.revision)
            rows = [Candidate(each, f"{each} {revision}") for each in ids]
            made_ = rounded_all(encode_texts(encoder, [each.text for each in rows]), "float16")
            log.append(Update(revision, rows, made_, deletes))
        return revision

    def held(self, made: Manifest, encoder: HashEncoder = ENCODER) -> dict[str, str]:
        """The texts of a generation with its updates, by id, in the order of the pool.

        Each part holds what is of its slots, and the vectors are those of the texts.
        """
        found: dict[int, Candidate] = {}
        opened = self.store.open_parts(made.id)
        for part, snapshot in zip(made.parts, self.store.snapshots(opened), strict=True):
            rows = snapshot.all_rows
            candidates = snapshot.candidates(rows)
            assert part.slots.holds([each.id for each in candidates]).all()
            expected = encoder.of([each.text for each in candidates])
            for stored, wanted in zip(snapshot.representations(rows), expected, strict=True):
                if wanted is not None:
                    np.testing.assert_array_equal(stored, wanted)
            found |= dict(zip(snapshot.order(rows).tolist(), candidates, strict=True))
        for each in opened:
            each.close()
        return {found[place].id: found[place].text for place in sorted(found)}

    def members(self, made: Manifest, part: int) -> Membership:
        own = made.parts[part]
        return Membership(self.store.path(made.id) / made.directory(part), own.slots, own.count)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 256])
def test_ranges_have_every_slot_once(parts: int) -> None:
    found = ranges(parts)
    assert [slot for first, end in found for slot in range(first, end)] == list(range(SLOTS))
    assert max(end - first for first, end in found) - min(end - first for first, end in found) <= 1
    hashes = [bound for each in found for bound in each.hashes]
    assert (hashes[0], hashes[-1]) == (0, 2**64 - 1)
    assert all(after == before + 1 for before, after in zip(hashes[1:-1:2], hashes[2::2], strict=True))


def test_slots_follow_the_hash_of_the_id() -> None:
    spread = np.bincount(slots_of([f"id {n}" for n in range(40_960)]), minlength=SLOTS)
    assert 7 < spread.mean() < 11
    assert spread.max() < 40
    assert Slots(0, 512).name == "0000-0512"


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_parts_hold_the_pool_in_its_order(store: Store, parts: int) -> None:
    made = store.build(parts).manifest
    assert store.store.active() == store.store.verify(made.id) == made
    assert (made.count, len(made.parts), made.order_end) == (60, parts, 60)
    assert list(store.held(made).items()) == list(BUILT.items())
    assert (store.store.path(made.id) / "parts").is_dir() == (parts > 1)


@pytest.mark.parametrize("look", [GenerationStore.verify, GenerationStore.updated])
def test_one_part_at_a_time_is_in_memory_to_check_and_to_count(
    store: Store, monkeypatch: pytest.MonkeyPatch, look: Callable[[GenerationStore, str], object]
) -> None:
    made, opening, held = store.build().manifest, store.store.open, list[ref[Generation]]()

    def only(*asked: Any, **options: Any) -> Generation:
        assert not any(each() for each in held)
        opened = opening(*asked, **options)
        held.append(ref(opened))
        return opened

    monkeypatch.setattr(store.store, "open", only)
    look(store.store, made.id)
    assert len(held) == 3


@pytest.mark.parametrize("parts", [0, -1, 257])
def test_a_number_of_parts_that_cannot_be_is_refused(store: Store, parts: int) -> None:
    with pytest.raises(InvalidInput, match="1 to 256 parts"):
        store.build(parts)
    assert not store.root.exists()


def test_a_part_without_candidates_is_refused_before_anything_is_encoded(store: Store, monkeypatch) -> None:
    monkeypatch.setattr(pipeline, "encode", lambda *_: pytest.fail("was encoded"))
    with pytest.raises(InvalidInput, match="2 candidates are too few for 4 parts"):
        store.build(4, pool(2))
    assert not any((store.root / "generations").iterdir())


def test_bad_rows_are_counted_over_the_whole_pool(store: Store) -> None:
    rows = [*POOL, Rejected("pool.jsonl", 61, "broken")]
    with pytest.raises(TooManyRejected):
        store.build(2, rows)
    built = store.build(2, rows, max_rejected=0.1)
    assert (built.rejected, built.count) == (1, 60)
    assert "broken" in built.rejected_log.read_text()


@pytest.mark.parametrize(
    ("file", "named"), [("parts/1/order.bin", "part 1365-2730: .*order.bin"), ("model/polyrank.json", "polyrank.json")]
)
@pytest.mark.parametrize("change", ["damaged", "gone", "added"])
def test_what_is_wrong_is_refused_by_name(store: Store, file: str, named: str, change: str) -> None:
    first, second = store.build().manifest, store.build(candidates=pool(60, "new ")).manifest
    path = store.store.path(first.id) / file
    if change == "damaged":
        path.write_bytes(path.read_bytes()[::-1])
    elif change == "gone":
        path.unlink()
    else:
        path.with_name(path.name + " 2").write_bytes(b"")
    for attempt in (store.store.rollback, partial(store.store.activate, first.id)):
        with pytest.raises(GenerationCorrupt, match=named):
            attempt()
    assert store.store.current() == second.id
    if file.startswith("parts"):
        store.store.open(first.id, 0).close()


def test_an_older_format_is_to_be_built_again_elsewhere(store: Store) -> None:
    made = store.build().manifest
    (store.store.path(made.id) / "manifest.json").write_text('{"format_version": 3}')
    with pytest.raises(GenerationCorrupt, match=r"format 3 is older .*; build again, into another directory"):
        store.store.open_parts(made.id)


def test_a_part_in_the_place_of_another_is_refused(store: Store) -> None:
    made = store.build().manifest
    path = store.store.path(made.id) / "parts"
    shutil.rmtree(path / "0")
    shutil.copytree(path / "1", path / "0")
    with pytest.raises(GenerationCorrupt, match="part 0000-1365"):
        store.store.verify(made.id)


@pytest.mark.parametrize("change", [
    {"parts": lambda parts: parts[1:]},
    {"parts": lambda parts: [parts[0], replace(parts[1], first_slot=0), parts[2]]},
    {"parts": lambda parts: [replace(parts[0], count=0), *parts[1:]]},
    {"order_end": len(POOL) - 1},
])  # fmt: skip
def test_parts_that_cannot_be_are_refused(store: Store, change: dict[str, object]) -> None:
    made = store.build().manifest
    changed = {name: value(made.parts) if callable(value) else value for name, value in change.items()}
    with pytest.raises(GenerationCorrupt, match=r"manifest\.json"):
        Manifest.from_json(replace(made, **changed).to_json(), made.id)
    assert Manifest.from_json(made.to_json(), made.id) == made


class Killed(BaseException):
    """Stands for a kill: nothing of what a build does at its end is done."""


class Counting(HashEncoder):
    """Notes what it encodes."""

    def __init__(self, encoded: list[str]) -> None:
        super().__init__(late=ENCODER.late_rows)
        self._encoded = encoded

    def represent_candidates(self, candidates: Sequence[list[int]], on_done: object = None) -> Representations:
        self._encoded.extend(bytes(each).decode() for each in candidates)
        return super().represent_candidates(candidates)


class Drifting(HashEncoder):
    """Gives other vectors than another run of the same model, as a batch of other texts may."""

    def __init__(self, run: int) -> None:
        super().__init__()
        self._run = run

    def represent_candidates(self, candidates: Sequence[list[int]], on_done: object = None) -> Representations:
        return Representations(super().represent_candidates(candidates).first + self._run)


def killed(
    monkeypatch: pytest.MonkeyPatch,
    store: Store,
    encoder: HashEncoder,
    after: int,
    candidates: Sequence[Candidate] = POOL,
    parts: int = 3,
) -> None:
    """A build that is killed once so many rows of all parts are encoded."""

    def dies(stage: str, done: int, _total: int | None) -> None:
        if stage == "encode" and done > after:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "discard", lambda *_: None)
        with pytest.raises(Killed):
            build(encoder, candidates, store.root, OPTIONS, parts=parts, progress=dies)


def test_a_killed_build_is_taken_over_part_by_part(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []
    killed(monkeypatch, store, Counting(encoded), 35)  # in the last of the parts
    before = len(encoded)
    assert store.store.ids() == []
    built = build(Counting(encoded), POOL, store.root, OPTIONS, parts=3)
    assert built.resumed == before
    assert built.manifest.build.attempts == 2
    assert sorted(encoded) == sorted(BUILT.values()), "each was encoded once"
    assert list(store.held(built.manifest).items()) == list(BUILT.items())
    assert len(list((store.root / "generations").iterdir())) == 1, "nothing is left"


def test_a_build_killed_while_it_takes_over_another_loses_nothing(store: Store, monkeypatch) -> None:
    encoded: list[str] = []
    killed(monkeypatch, store, Counting(encoded), 35)
    before = len(encoded)

    def dies(stage: str, done: int, _total: int | None) -> None:
        if stage == "resume" and done > 0:  # it has taken over the first part
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "discard", lambda *_: None)
        with pytest.raises(Killed):
            build(Counting(encoded), POOL, store.root, OPTIONS, parts=3, progress=dies)
    assert build(Counting(encoded), POOL, store.root, OPTIONS, parts=3).resumed == before


def test_a_build_into_other_parts_takes_nothing_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(monkeypatch, store, ENCODER, 35)
    built = store.build(2)
    assert built.resumed == 0
    assert list(store.held(built.manifest).items()) == list(BUILT.items())
    assert len(list((store.root / "generations").iterdir())) == 1


def test_what_was_left_for_another_model_does_not_hide_what_was_left_for_this_one(store: Store, monkeypatch) -> None:
    killed(monkeypatch, store, HashEncoder(fingerprint="cd" * 32), 45, parts=6)  # knows more
    encoded: list[str] = []
    killed(monkeypatch, store, Counting(encoded), 15, parts=6)
    assert 0 < store.build(6).resumed == len(encoded)


def test_equal_texts_have_one_vector_also_where_an_earlier_part_is_encoded_anew(store: Store, monkeypatch) -> None:
    rows = [replace(each, text="the same") for each in POOL]
    killed(monkeypatch, store, Drifting(1), 35, rows)
    [changed, *_] = ranges(3)[0].of([each.id for each in rows])
    rows = [replace(each, text="another") if each.id == changed else each for each in rows]
    made = build(Drifting(2), rows, store.root, OPTIONS, parts=3)
    opened = store.store.open_parts(made.generation)
    vectors = np.concatenate([each.embeddings.matrix for each in opened])
    assert len(np.unique(vectors, axis=0)) == 2, "one for each text"
    for each in opened:
        each.close()


def test_a_failed_build_leaves_nothing(store: Store) -> None:
    store.build()

    def fails(stage: str, done: int, _total: int | None) -> None:
        if stage == "encode" and done > 35:
            raise InvalidInput("enough")

    files = set(store.root.rglob("*"))
    with pytest.raises(InvalidInput, match="enough"):
        build(ENCODER, pool(60, "new "), store.root, OPTIONS, parts=5, progress=fails)
    assert set(store.root.rglob("*")) == files


def test_one_builder_at_a_time(store: Store) -> None:
    store.build()
    with store.store.building():
        with pytest.raises(BuildBusy):
            store.build()
        with pytest.raises(BuildBusy):
            move(store.root, 2)


@pytest.mark.parametrize("evidence", [None, EVIDENCE], ids=["vectors", "words"])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (3, 1)])
def test_cutting_anew_makes_the_files_that_a_build_would_make(
    store: Store, tmp_path: Path, evidence: object, before: int, after: int
) -> None:
    encoder = HashEncoder(evidence=evidence, late=LateRows(3, None))
    first = store.build(before, encoder=encoder).manifest
    moved = move(store.root, after).manifest
    built = Store(tmp_path / "built").build(after, encoder=encoder).manifest
    assert store.store.active() == moved
    assert list(store.held(moved, encoder).items()) == list(BUILT.items())
    assert (moved.files, moved.parts) == (built.files, built.parts), "every file has the same bytes"
    assert store.store.rollback() == first.id
    assert list(store.held(first, encoder).items()) == list(BUILT.items())


def test_a_number_of_parts_that_is_there_or_too_large_is_refused(store: Store) -> None:
    first = store.build(2).manifest
    with pytest.raises(InvalidInput, match="2 parts already"):
        move(store.root, 2)
    with pytest.raises(InvalidInput, match="too few candidates"):
        move(store.root, 256)
    assert store.store.active() == first
    assert store.store.ids() == [first.id]


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_cutting_anew_takes_the_updates_along_and_no_others(store: Store, parts: int) -> None:
    first = store.build().manifest
    store.update("a", "b")
    store.build(candidates=pool(60, "x"))
    store.update("only in the second")
    store.store.rollback()
    store.update("c", deletes=["a", POOL[0].id])
    before = list(store.held(first).items())
    moved = move(store.root, parts).manifest
    assert list(store.held(moved).items()) == before
    store.update("d")
    assert list(store.held(moved))[-1] == "d"
    assert store.store.rollback() == first.id
    assert list(store.held(first).items()) == before


def test_a_compaction_keeps_the_pool_and_builds_what_was_changed(store: Store) -> None:
    earlier, first = store.build(candidates=pool(60, "x")).manifest, store.build().manifest
    own = first.parts[0].slots.of([f"new {n}" for n in range(40)])
    store.update(*own[:4])
    store.update(own[0], deletes=[own[1], "none"])
    before = list(store.held(first).items())
    result = compact(store.root)
    made = result.manifest
    assert [part.name for part in result.parts] == [first.parts[0].name]
    assert made.parts[1:] == first.parts[1:]
    files = [store.store.path(each.id) / "parts" / "1" / "order.bin" for each in (first, made)]
    assert os.path.samefile(*files), "it takes no further room"
    assert store.store.active() == made
    assert (made.count, made.revision) == (len(before), 2)
    assert list(store.held(made).items()) == before
    assert list(store.store.updates.of(made).read()) == []
    store.update("later")
    store.update(own[5])
    after = list(store.held(made).items())
    assert [each for each, _ in after[-2:]] == ["later", own[5]]
    assert list(store.held(compact(store.root).manifest).items()) == after, "places in the pool have gaps by now"
    assert list(store.held(move(store.root, 2).manifest).items()) == after
    store.store.rollback()
    assert store.store.rollback() == earlier.id, "it leads where it would have led before the compactions"


def test_where_no_further_name_can_be_given_files_are_copied(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = store.build().manifest
    store.update(first.parts[0].slots.of([f"new {n}" for n in range(40)])[0])

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refused)
    before = list(store.held(first).items())
    assert list(store.held(compact(store.root).manifest).items()) == before


def test_words_of_all_parts_are_counted_anew(store: Store) -> None:
    encoder = HashEncoder(evidence=EVIDENCE, late=ENCODER.late_rows)
    first = store.build(encoder=encoder).manifest
    store.update("only one", encoder=encoder)
    held = store.held(first, encoder)
    result = compact(store.root)
    assert len(result.parts) == 3, "they have the statistics of the whole pool"
    assert (result.counted, result.notes[-1][:40]) == (61, "words were counted anew, in 61 candidate")
    assert list(store.held(result.manifest, encoder).items()) == list(held.items())
    for opened in store.store.open_parts(result.generation):
        for name, array in Statistics.of(held.values()).arrays().items():
            np.testing.assert_array_equal(opened.words.table.statistics.arrays()[name], array)
        opened.close()


@pytest.mark.parametrize("copy", [compact, partial(move, shards=2)], ids=["compaction", "cut"])
def test_a_copy_that_another_generation_overtook_leaves_nothing(store: Store, copy: object) -> None:
    store.build()
    store.update("a")
    other = store.build(candidates=pool(60, "x"), activate=False).manifest
    files = {path for path in store.root.rglob("*") if "generations" in path.parts}

    def report(stage: str, _done: int, _total: int | None) -> None:
        if stage == "CURRENT":
            store.store.activate(other.id)

    with pytest.raises(CompactionOvertaken, match="is not the active one any more"):
        copy(store.root, progress=report)
    assert store.store.active() == other
    assert {path for path in store.root.rglob("*") if "generations" in path.parts} == files


@pytest.mark.parametrize("copy", [compact, partial(move, shards=2)], ids=["compaction", "cut"])
@pytest.mark.parametrize("step", ["open_parts", "building"])
def test_a_copy_of_what_is_collected_meanwhile_was_overtaken(
    store: Store, monkeypatch: pytest.MonkeyPatch, copy: object, step: str
) -> None:
    store.build()
    store.update("a")
    other, going_on = store.build(candidates=pool(60, "x"), activate=False).manifest, getattr(GenerationStore, step)

    def collected(*asked: Any) -> object:
        monkeypatch.setattr(GenerationStore, step, going_on)
        store.store.activate(other.id)
        store.store.gc(keep=1)
        return going_on(*asked)

    monkeypatch.setattr(GenerationStore, step, collected)
    with pytest.raises(CompactionOvertaken, match="is not the active one any more"):
        copy(store.root)
    assert [path.name for path in (store.root / "generations").iterdir()] == [other.id]


def test_a_part_without_candidates_is_not_compacted(store: Store) -> None:
    made = store.build().manifest
    part = made.parts[1]
    gone = part.slots.of(list(BUILT))
    store.update(deletes=gone)
    with pytest.raises(NothingToCompact, match=f"part {part.name} has no candidate left"):
        compact(store.root)
    assert store.store.active() == made
    assert set(store.held(move(store.root, 1).manifest)) == set(BUILT) - set(gone), "as the message says"


def test_updates_that_changed_nothing_are_compacted_away(store: Store) -> None:
    first = store.build().manifest
    store.update("a")
    store.update(deletes=["a", "none"])
    made = compact(store.root).manifest
    assert made.parts == first.parts
    assert store.held(made) == BUILT
    sizes = [os.path.getsize(store.root / "log" / f"{each.id}.log") for each in (made, first)]
    assert sizes[0] < sizes[1]


def test_who_is_in_a_part_is_known_by_ids_alone(store: Store) -> None:
    made = store.build().manifest
    part = made.parts[0]
    one, other, third = part.slots.of(list(BUILT))[:3]
    new, newer = part.slots.of([f"new {n}" for n in range(30)])[:2]
    members = store.members(made, 0)
    assert members.missing([one, new, other]) == [new]
    [elsewhere] = made.parts[1].slots.of(list(BUILT))[:1]
    store.update(new, one, elsewhere, deletes=[other, "none"])
    store.update(newer, deletes=[new])
    updates = list(store.store.updates.of(made).read())
    members.update(updates[:1])
    assert members.missing([new, one, other, newer, third]) == [other, newer]
    members.update(updates)  # the first one again
    assert members.missing([new, one, other, newer, third]) == [new, other]
    assert members.counts() == Counts(part.count, 2, 2)
    (store.store.path(made.id) / "parts" / "0" / "ids.index").write_bytes(b"")
    with pytest.raises(ValueError, match="has 0 bytes"):
        store.members(made, 0)


def test_what_is_discarded_of_a_killed_build_is_all_of_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(monkeypatch, store, ENCODER, 35)
    leftover = store.store.discard_leftovers()
    discard(leftover.temporary, lambda _: None)
    assert not any((store.root / "generations").iterdir())
