"""Stores that are cut into parts: built, switched, collected, moved; without torch."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import EVIDENCE, HashEncoder, pool

from polyrank.index_builder.building.pipeline import BuildOptions, build
from polyrank.index_builder.errors import (
    BuildBusy,
    GenerationCorrupt,
    GenerationNotFound,
    StoreInParts,
    StoreOutdated,
    StoreWhole,
    TooManyRejected,
)
from polyrank.index_builder.pool.rows import Candidate, Rejected
from polyrank.index_builder.scale import cutting
from polyrank.index_builder.scale.cutting import SetResult, build_parts
from polyrank.index_builder.scale.moving import move
from polyrank.index_builder.scale.sets import PartSet, PartsStore
from polyrank.index_builder.scale.slots import SLOTS, Slots, ranges, slots_of
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.errors import InvalidInput
from polyrank.model.representations import LateRows, Representations

ENCODER = HashEncoder(late=LateRows(3, None))
POOL = pool(60)
OPTIONS = BuildOptions(index="exact")


def cut(root: Path, shards: int = 3, candidates: Sequence[Candidate] = POOL, **fields: object) -> SetResult:
    return build_parts(ENCODER, candidates, root, shards, replace(OPTIONS, **fields))  # type: ignore[arg-type]


def whole(store: PartsStore, made: PartSet, encoder: HashEncoder = ENCODER) -> list[Candidate]:
    """Every candidate of a set, in the order of the pool; each part is whole and holds what is of its slots."""
    found: dict[int, Candidate] = {}
    for part in made.parts:
        opened = store.open(part)
        candidates = opened.candidates.rows(range(part.count))
        slots = slots_of([each.id for each in candidates])
        assert ((slots >= part.first_slot) & (slots < part.end_slot)).all()
        assert opened.order is not None
        expected, stored = encoder.of([each.text for each in candidates]), opened.embeddings.representations
        for kept, made_ in zip(stored(np.arange(part.count)), expected, strict=True):
            np.testing.assert_array_equal(kept, made_)
        found |= dict(zip(opened.order.tolist(), candidates, strict=True))
        opened.close()
    assert sorted(found) == list(range(len(found)))
    return [found[place] for place in range(len(found))]


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 256])
def test_ranges_have_every_slot_once(parts: int) -> None:
    found = ranges(parts)
    assert [slot for first, end in found for slot in range(first, end)] == list(range(SLOTS))
    assert max(end - first for first, end in found) - min(end - first for first, end in found) <= 1
    hashes = [bound for each in found for bound in each.hashes]
    assert hashes[0] == 0
    assert hashes[-1] == 2**64 - 1
    assert all(after == before + 1 for before, after in zip(hashes[1:-1:2], hashes[2::2], strict=True))


def test_a_set_holds_the_pool_in_its_order(tmp_path: Path) -> None:
    made = cut(tmp_path).made
    store = PartsStore(tmp_path)
    assert store.current() == made.id
    assert store.active() == store.verify(made.id) == made
    assert (made.count, len(made.parts)) == (60, 3)
    assert whole(store, made) == POOL
    assert not (tmp_path / "building").exists()


def test_two_kinds_of_stores_are_not_mixed(tmp_path: Path) -> None:
    cut(tmp_path / "parts")
    with pytest.raises(StoreInParts, match="build --shards"):
        build(ENCODER, POOL, tmp_path / "parts")
    with pytest.raises(StoreInParts, match="serve --cluster"):
        GenerationStore(tmp_path / "parts")
    build(ENCODER, POOL, tmp_path / "whole")
    with pytest.raises(StoreWhole):
        cut(tmp_path / "whole")
    assert not (tmp_path / "whole" / "parts").exists()


@pytest.mark.parametrize("shards", [0, -1, 257])
def test_a_number_of_parts_that_cannot_be_is_refused(tmp_path: Path, shards: int) -> None:
    with pytest.raises(InvalidInput, match="1 to 256 parts"):
        cut(tmp_path, shards)
    assert not any(tmp_path.iterdir())


def test_a_part_without_candidates_is_refused_before_anything_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "build", lambda *_, **__: pytest.fail("was built"))
    with pytest.raises(InvalidInput, match="2 candidates are too few for 4 parts"):
        cut(tmp_path, 4, pool(2))
    assert PartsStore(tmp_path).ids() == []
    assert not (tmp_path / "building").exists()


def test_bad_rows_are_counted_over_the_whole_pool(tmp_path: Path) -> None:
    rows = [*POOL, Rejected("pool.jsonl", 61, "broken")]
    with pytest.raises(TooManyRejected):
        build_parts(ENCODER, rows, tmp_path, 2, OPTIONS)
    built = build_parts(ENCODER, rows, tmp_path, 2, replace(OPTIONS, max_rejected=0.1))
    assert (built.rejected, built.made.count) == (1, 60)
    assert built.rejected_log is not None
    assert "broken" in built.rejected_log.read_text()


def test_switching_and_rolling_back(tmp_path: Path) -> None:
    store = PartsStore(tmp_path)
    with pytest.raises(GenerationNotFound, match="is active"):
        store.active()
    first = cut(tmp_path).made.id
    with pytest.raises(GenerationNotFound, match="no earlier generation"):
        store.rollback()
    second = cut(tmp_path, candidates=pool(60, "new ")).made.id
    third = cut(tmp_path, candidates=pool(60, "newest "), activate=False).made.id
    assert (store.current(), store.history(), store.ids()) == (second, [first], [first, second, third])
    stamp = store.stamp()
    store.activate(third)
    assert store.stamp() != stamp
    assert store.rollback() == second
    assert store.rollback() == first
    assert store.history() == []
    with pytest.raises(GenerationNotFound, match="not the id of a generation"):
        store.activate("../elsewhere")


def test_a_damaged_part_is_refused_by_name(tmp_path: Path) -> None:
    first, second = cut(tmp_path).made, cut(tmp_path, candidates=pool(60, "new ")).made
    store = PartsStore(tmp_path)
    part = first.parts[1]
    file = store.part(part.slots).path(part.generation) / "order.bin"
    file.write_bytes(file.read_bytes()[::-1])
    for attempt in (store.rollback, lambda: store.activate(first.id)):
        with pytest.raises(GenerationCorrupt, match=f"part {part.name}: .*order.bin"):
            attempt()
    assert store.current() == second.id


def test_a_generation_that_took_the_place_of_another_is_refused(tmp_path: Path) -> None:
    made = cut(tmp_path).made
    store, part = PartsStore(tmp_path), made.parts[0]
    directory = store.part(part.slots).path(part.generation)
    other = cut(tmp_path / "other", candidates=pool(60, "other ")).made.parts[0]
    shutil.rmtree(directory)
    shutil.copytree(PartsStore(tmp_path / "other").part(other.slots).path(other.generation), directory)
    with pytest.raises(GenerationCorrupt):
        store.verify(made.id)


@pytest.mark.parametrize(
    "change",
    [
        {"parts": []},
        {"parts": lambda parts: parts[1:]},
        {"parts": lambda parts: [parts[0], replace(parts[1], first_slot=0), parts[2]]},
        {"parts": lambda parts: [replace(parts[0], count=0), *parts[1:]]},
        {"parts": lambda parts: [replace(parts[0], generation="../elsewhere"), *parts[1:]]},
        {"id": "20261121T013000123456-1a2b3c4d"},
        {"revision": -1},
        {"order_end": len(POOL) - 1},
        {"order_end": None},
    ],
)
def test_a_set_that_cannot_be_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    made = cut(tmp_path).made
    changed = {name: value(made.parts) if callable(value) else value for name, value in change.items()}
    with pytest.raises(GenerationCorrupt, match=r"manifest\.json"):
        PartSet.from_json(replace(made, **changed).to_json(), made.id)  # type: ignore[arg-type]
    assert PartSet.from_json(made.to_json(), made.id) == made
    with pytest.raises(GenerationCorrupt, match="checksum"):
        PartSet.from_json(made.to_json().replace(b'"count": 2', b'"count": 3'), made.id)


def test_a_collection_keeps_what_a_rollback_needs(tmp_path: Path) -> None:
    sets = [cut(tmp_path, candidates=pool(60, f"{n} ")).made for n in range(4)]
    store = PartsStore(tmp_path)
    assert store.gc(keep=2) == [sets[0].id, sets[1].id]
    assert store.rollback() == sets[2].id
    for part in sets[3].parts:
        assert store.part(part.slots).ids() == [sets[2].parts[sets[3].parts.index(part)].generation, part.generation]
    for made in sets[2:]:
        store.verify(made.id)


class Killed(BaseException):
    """Stands for a kill: nothing of what a build does at its end is done."""


def test_a_killed_build_is_taken_over_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[str] = []

    class Counting(HashEncoder):
        def represent_candidates(self, candidates: Sequence[list[int]], on_done: object = None) -> Representations:
            encoded.extend(bytes(each).decode() for each in candidates)
            return super().represent_candidates(candidates)

    def dies(stage: str, done: int, _total: int | None) -> None:
        if stage == "encode" and done > 35:  # in the last of the parts
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(cutting._Workplace, "__exit__", lambda *_: None)
        with pytest.raises(Killed):
            build_parts(Counting(), POOL, tmp_path, 3, OPTIONS, progress=dies)
    before = len(encoded)
    assert PartsStore(tmp_path).ids() == []
    built = build_parts(Counting(), POOL, tmp_path, 3, OPTIONS)
    assert built.resumed == before
    assert sorted(encoded) == sorted(each.text for each in POOL), "each was encoded once"
    assert whole(PartsStore(tmp_path), built.made, HashEncoder()) == POOL
    assert all(len(PartsStore(tmp_path).part(part.slots).ids()) == 1 for part in built.made.parts)


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    first = cut(tmp_path).made

    def fails(stage: str, done: int, _total: int | None) -> None:
        if stage == "encode" and done > 35:
            raise InvalidInput("enough")

    with pytest.raises(InvalidInput, match="enough"):
        build_parts(ENCODER, pool(60, "new "), tmp_path, 3, OPTIONS, progress=fails)
    with pytest.raises(InvalidInput, match="enough"):
        build_parts(ENCODER, pool(60, "new "), tmp_path, 5, OPTIONS, progress=fails)
    store = PartsStore(tmp_path)
    assert store.ids() == [first.id]
    assert {path.name for path in (tmp_path / "parts").iterdir()} == {part.name for part in first.parts}
    assert all(store.part(part.slots).ids() == [part.generation] for part in first.parts)
    assert not (tmp_path / "building").exists()


def test_one_builder_at_a_time(tmp_path: Path) -> None:
    cut(tmp_path)
    with PartsStore(tmp_path).building():
        with pytest.raises(BuildBusy):
            cut(tmp_path)
        with pytest.raises(BuildBusy):
            move(tmp_path, 2)


@pytest.fixture(params=[False, True], ids=["vectors", "words"])
def encoder(request: pytest.FixtureRequest) -> HashEncoder:
    return HashEncoder(evidence=EVIDENCE if request.param else None, late=LateRows(3, None))


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2)])
def test_moving_makes_the_parts_that_a_build_would_make(
    tmp_path: Path, encoder: HashEncoder, before: int, after: int
) -> None:
    first = build_parts(encoder, POOL, tmp_path / "moved", before, OPTIONS).made
    moved = move(tmp_path / "moved", after)
    built = build_parts(encoder, POOL, tmp_path / "built", after, OPTIONS).made
    stores = PartsStore(tmp_path / "moved"), PartsStore(tmp_path / "built")
    assert stores[0].current() == moved.id
    assert whole(stores[0], moved, encoder) == POOL
    for one, other in zip(moved.parts, built.parts, strict=True):
        made = [store.part_manifest(part).files for store, part in zip(stores, (one, other), strict=True)]
        assert made[0] == made[1], "every file has the same bytes"
    assert stores[0].rollback() == first.id
    assert whole(stores[0], stores[0].active(), encoder) == POOL


def test_a_part_that_stays_keeps_its_generation(tmp_path: Path) -> None:
    first = cut(tmp_path, 2).made
    store = PartsStore(tmp_path)
    assert move(tmp_path, 4).id == store.current()
    back = move(tmp_path, 2)
    assert back.parts != first.parts, "those of the first set may be collected"
    with pytest.raises(InvalidInput, match="2 parts already"):
        move(tmp_path, 2)
    with pytest.raises(InvalidInput, match="too few candidates"):
        move(tmp_path, 256)
    assert store.current() == back.id


def test_slots_follow_the_hash_of_the_id() -> None:
    assert slots_of(["a", "b", "c0"]).tolist() == slots_of(["a", "b", "c0"]).tolist()
    spread = np.bincount(slots_of([f"id {n}" for n in range(40_960)]), minlength=SLOTS)
    assert 7 < spread.mean() < 11
    assert spread.max() < 40
    assert Slots(0, 512).name == "0000-0512"


def test_a_store_of_an_older_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    with pytest.raises(StoreOutdated, match="is a store of an older format; build again"):
        PartsStore(tmp_path)
