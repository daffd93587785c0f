"""SIGKILL an updater at random moments, of updates and of compactions: nothing acknowledged is lost."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from fakes import pool
from killed_canary import UPDATES_A_TRIAL
from killed_updater import ENCODER, ENCODERS, POOL_SIZE, UPDATES_A_COMPACTION, write
from nursery import Killer, Nursery

from polyrank.index_builder.building.compaction import compact
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.snapshot import Snapshot

CANARY_STEPS = ["update", "receive", "switch", "build", "gc"]
STEPS = ["update", "read", "encode", "append", "index", "manifest", "rename", "CURRENT", "gc"]


class Told:
    """What the updater has said: the step that it is at, and what the store must hold."""

    def __init__(self) -> None:
        self.step = ""
        self.texts = {each.id: each.text for each in pool(POOL_SIZE)}
        self.doing: tuple[int, str] | None = None
        self.revision = 0
        self.acknowledged = 0
        self.history = {0: list(self.texts.items())}

    def take(self, line: list[str]) -> None:
        match line:
            case ["step", step]:
                self.step = step
            case ["doing", revision, update]:
                self.doing = int(revision), update
            case ["done", revision]:
                assert self.doing[0] == int(revision) > self.revision
                self.apply()
                self.acknowledged += 1

    def apply(self) -> None:
        assert self.doing is not None
        self.revision, update = self.doing
        upserts, deletes = json.loads(update)
        for each in [*deletes, *(candidate_id for candidate_id, _ in upserts)]:
            self.texts.pop(each, None)
        self.texts.update(upserts)
        self.history[self.revision] = list(self.texts.items())
        self.doing = None


def check(root: Path, told: Told) -> None:
    """What would be served holds what was acknowledged, in order; an update that was being written is in it or not."""
    store = GenerationStore(root)
    for each in store.ids():
        store.verify(each)
    [served], refused = store.open_to_serve()
    assert refused == []
    assert served.id == store.current()
    snapshot = store.snapshots([served])[0]
    if told.doing is not None and snapshot.revision == told.doing[0]:
        told.apply()
    told.doing = None
    assert snapshot.revision == told.revision
    holds(snapshot, told.history[told.revision])
    served.close()
    if (trial := store.trial()) is not None:
        [beside] = store.open_parts(trial.generation)
        [snapshot] = store.snapshots([beside])
        holds(snapshot, told.history[snapshot.revision])
        beside.close()


def holds(snapshot: Snapshot, texts: list[tuple[str, str]]) -> None:
    found = snapshot.candidates(snapshot.all_rows)
    assert [(each.id, each.text) for each in found] == texts
    expected = ENCODERS[snapshot.generation.manifest.model.fingerprint].of([each.text for each in found])
    for stored, wanted in zip(snapshot.representations(snapshot.all_rows), expected, strict=True):
        np.testing.assert_array_equal(stored, wanted)


@pytest.mark.parametrize("kills", [40, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.parametrize("seed", [20261121])
def test_kills_lose_no_acknowledged_update(tmp_path: Path, seed: int, kills: int) -> None:
    chance, root = random.Random(seed), tmp_path / "store"
    build(ENCODER, pool(POOL_SIZE), root)
    told, nursery = Told(), Nursery("killed_updater.py", root)
    killer = Killer(nursery, told, STEPS, kills, chance)
    killer.learn(rounds=2)
    check(root, told)
    for number in range(1, kills + 1):
        killer.strike(number, lambda step: UPDATES_A_COMPACTION if step == "update" else 1)
        check(root, told)
    nursery.close()
    # pytest shows it where the test fails.
    print(f"seed {seed}, kills by step: {dict(killer.hits)}, {told.acknowledged} updates acknowledged")  # noqa: T201
    assert all(killer.hits[step] >= kills // 20 for step in STEPS), killer.hits
    # Whatever was left does not stop the next ones.
    store = GenerationStore(root)
    before = store.ids()
    write(store, [("c0", "after")], [])
    compact(root)
    store.gc(keep=1)
    assert len(store.ids()) == 1
    assert not set(store.ids()) & set(before)
    assert not list((root / "generations").glob(".*"))


@pytest.mark.parametrize("kills", [20, pytest.param(100, marks=pytest.mark.soak)])
@pytest.mark.parametrize("seed", [20261127])
def test_kills_lose_no_update_of_a_trial_and_of_the_switch_to_it(tmp_path: Path, seed: int, kills: int) -> None:
    chance, root = random.Random(seed), tmp_path / "store"
    build(ENCODER, pool(POOL_SIZE), root)
    told, nursery = Told(), Nursery("killed_canary.py", root)
    killer = Killer(nursery, told, CANARY_STEPS, kills, chance)
    killer.learn(rounds=2)
    check(root, told)
    for number in range(1, kills + 1):
        killer.strike(number, lambda step: UPDATES_A_TRIAL if step in ("update", "receive") else 1)
        check(root, told)
    nursery.close()
    assert all(killer.hits[step] >= kills // 20 for step in CANARY_STEPS), killer.hits
