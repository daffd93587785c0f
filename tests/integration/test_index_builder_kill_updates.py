"""SIGKILL an updater at a hundred random moments, of updates and of compactions: nothing acknowledged is lost."""

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from statistics import median

import pytest
from fakes import pool
from killed_updater import ENCODER, POOL_SIZE, UPDATES_A_COMPACTION, write
from nursery import Nursery

from index_builder.build import build
from index_builder.compaction import compact
from index_builder.generations import GenerationStore

KILLS = 100
STEPS = ["update", "read", "encode", "append", "index", "manifest", "rename", "CURRENT", "gc"]


class Told:
    """What the updater has said: the step that it is at, and what the store must hold."""

    def __init__(self) -> None:
        self.step = ""
        self.texts = {each.id: each.text for each in pool(POOL_SIZE)}
        self.doing: tuple[int, str] | None = None
        self.revision = 0
        self.acknowledged = 0

    def take(self, line: list[str]) -> None:
        match line:
            case ["step", step]:
                self.step = step
            case ["doing", revision, update]:
                self.doing = int(revision), update
            case ["done", revision]:
                assert self.doing is not None
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
        self.doing = None


def kill(nursery: Nursery, pid: int, told: Told) -> None:
    """End the updater, and take what it had said until then."""
    os.kill(pid, signal.SIGKILL)
    while (line := nursery.next())[0] != "dead":
        told.take(line)
    assert int(line[1]) == signal.SIGKILL


def check(root: Path, told: Told) -> None:
    """What would be served holds what was acknowledged, in order; an update that was being written is in it or not."""
    store = GenerationStore(root)
    for each in store.ids():
        store.verify(each)
    served, refused = store.open_to_serve()
    assert refused == []
    assert served.id == store.current()
    snapshot = store.snapshot(served)
    if told.doing is not None and snapshot.revision == told.doing[0]:
        told.apply()
    told.doing = None
    assert snapshot.revision == told.revision
    found = snapshot.candidates(snapshot.all_rows)
    assert [(each.id, each.text) for each in found] == list(told.texts.items())
    vectors = snapshot.vectors(snapshot.all_rows)
    assert all((vector == ENCODER.vector(each.text)).all() for vector, each in zip(vectors, found, strict=True))
    served.close()


def learn_durations(nursery: Nursery, told: Told) -> dict[str, float]:
    """How long each step takes here, from two compactions; the updater is killed in the end."""
    pid, began = nursery.start(0), time.perf_counter()
    seconds: dict[str, list[float]] = {}
    while len(seconds.get("gc", [])) < 2:
        line = nursery.next()
        if line[0] == "step":
            seconds.setdefault(told.step, []).append(time.perf_counter() - began)
            began = time.perf_counter()
        told.take(line)
    kill(nursery, pid, told)
    return {step: median(each) for step, each in seconds.items()}


@pytest.mark.parametrize("seed", [20261121])
def test_a_hundred_kills_lose_no_acknowledged_update(tmp_path: Path, seed: int) -> None:
    chance, root = random.Random(seed), tmp_path / "store"
    build(ENCODER, pool(POOL_SIZE), root)
    told, nursery = Told(), Nursery("killed_updater.py", root)
    durations = learn_durations(nursery, told)
    check(root, told)
    hits: Counter[str] = Counter()
    for number in range(1, KILLS + 1):
        # Each in turn at first; then the step hit least, for on a busy machine the shortest ones are easily missed.
        target = STEPS[number % len(STEPS)] if number <= KILLS // 2 else min(STEPS, key=hits.__getitem__)
        pid = nursery.start(number)
        occurrence = chance.randint(1, UPDATES_A_COMPACTION if target == "update" else 1)
        while occurrence:
            line = nursery.next()
            told.take(line)
            occurrence -= line == ["step", target]
        until = time.perf_counter() + chance.uniform(0, durations[target])
        while time.perf_counter() < until:
            pass
        kill(nursery, pid, told)
        hits[told.step] += 1
        check(root, told)
    nursery.close()
    print(f"seed {seed}, kills by step: {dict(hits)}, {told.acknowledged} updates acknowledged")  # noqa: T201
    assert all(hits[step] >= 5 for step in STEPS), hits
    # Whatever was left does not stop the next ones.
    store = GenerationStore(root)
    before = store.ids()
    write(store, [("c0", "after")], [])
    compact(root)
    store.gc(keep=1)
    assert len(store.ids()) == 1
    assert not set(store.ids()) & set(before)
    assert not list((root / "generations").glob(".*"))
