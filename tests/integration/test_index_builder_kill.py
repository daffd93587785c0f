"""SIGKILL a builder at a hundred random moments: what is served is always whole, and the old or the new."""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from statistics import median

import pytest
from fakes import assert_whole, pool
from killed_builder import ENCODER, POOL_SIZE
from nursery import Nursery

from index_builder.build import build
from index_builder.generations import GenerationStore

KILLS = 100
STEPS = ["read", "encode", "append", "index", "manifest", "rename", "CURRENT", "rollback", "activate", "gc"]


class Told:
    """What the builder has said: the step it is at, and what may be served now."""

    def __init__(self, active: str) -> None:
        self.step, self.active = "", active
        self.target = self.salt = ""

    def take(self, line: list[str]) -> None:
        word, value = line
        setattr(self, word, value)


def learn_durations(nursery: Nursery, told: Told) -> dict[str, float]:
    """How long each step takes here, from three rounds; the builder is killed in the end."""
    pid, began = nursery.start(0), time.perf_counter()
    seconds: dict[str, list[float]] = {}
    while len(seconds.get("gc", [])) < 3:
        line = nursery.next()
        if line[0] == "step":
            seconds.setdefault(told.step, []).append(time.perf_counter() - began)
            began = time.perf_counter()
        told.take(line)
    kill(nursery, pid, told)
    return {step: median(each) for step, each in seconds.items()}


def kill(nursery: Nursery, pid: int, told: Told) -> None:
    """End the builder, and take what it had said until then."""
    os.kill(pid, signal.SIGKILL)
    while (line := nursery.next())[0] != "dead":
        told.take(line)
    assert int(line[1]) == signal.SIGKILL


def check(root: Path, told: Told) -> str:
    """Everything listed is whole; served is the old generation, or the new one where the pointer was about to move."""
    store = GenerationStore(root)
    for each in store.ids():
        store.verify(each)
    served, refused = store.open_to_serve()
    assert refused == []
    salt = served.candidates.rows([0])[0].text.removeprefix("text ").removesuffix("0")
    assert_whole(served, ENCODER, pool(POOL_SIZE, salt))
    if served.id != told.active:
        assert told.step in ("CURRENT", "rollback", "activate"), f"{served.id} became active at step {told.step}"
        assert salt == told.salt if told.step == "CURRENT" else served.id == told.target
    served.close()
    return served.id


@pytest.mark.parametrize("seed", [20261121])
def test_a_hundred_kills_leave_the_old_or_the_new_generation(tmp_path: Path, seed: int) -> None:
    chance, root = random.Random(seed), tmp_path / "store"
    for salt in ("first-", "second-"):
        active = build(ENCODER, pool(POOL_SIZE, salt), root).generation
    told, nursery = Told(active), Nursery("killed_builder.py", root)
    durations = learn_durations(nursery, told)
    told.active = check(root, told)
    hits: Counter[str] = Counter()
    switched = 0
    for number in range(1, KILLS + 1):
        before = told.active
        # Each in turn at first; then the step hit least, for on a busy machine the shortest ones are easily missed.
        target = STEPS[number % len(STEPS)] if number <= KILLS // 2 else min(STEPS, key=hits.__getitem__)
        pid = nursery.start(number)
        occurrence = chance.randint(1, 2)
        while occurrence:
            line = nursery.next()
            told.take(line)
            occurrence -= line == ["step", target]
        until = time.perf_counter() + chance.uniform(0, durations[target])
        while time.perf_counter() < until:
            pass
        kill(nursery, pid, told)
        hits[told.step] += 1
        told.active = check(root, told)
        switched += told.active != before
    nursery.close()
    print(f"seed {seed}, kills by step: {dict(hits)}, another generation active after {switched} of {KILLS}")  # noqa: T201
    assert sum(hits.values()) == KILLS
    assert all(hits[step] >= 5 for step in STEPS), hits
    built = build(ENCODER, pool(3), root).generation
    assert GenerationStore(root).current() == built
    assert not list((root / "generations").glob(".*"))
