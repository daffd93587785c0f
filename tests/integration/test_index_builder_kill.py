"""SIGKILL a builder at random moments: what is served is always whole, and the old or the new."""

import random
from pathlib import Path

import pytest
from fakes import assert_whole, pool
from killed_builder import ENCODER, POOL_SIZE
from nursery import Killer, Nursery

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.store.generation_store import GenerationStore

STEPS = ["read", "encode", "append", "index", "manifest", "rename", "CURRENT", "rollback", "activate", "gc"]


class Told:
    """What the builder has said: the step it is at, and what may be served now."""

    def __init__(self, active: str) -> None:
        self.step, self.active = "", active
        self.target = self.salt = ""

    def take(self, line: list[str]) -> None:
        word, value = line
        setattr(self, word, value)


def check(root: Path, told: Told) -> str:
    """Everything listed is whole; served is the old generation, or the new one where the pointer was about to move."""
    store = GenerationStore(root)
    for each in store.ids():
        store.verify(each)
    [served], refused = store.open_to_serve()
    assert refused == []
    salt = served.candidates.rows([0])[0].text.removeprefix("text ").removesuffix("0")
    assert_whole(served, ENCODER, pool(POOL_SIZE, salt))
    if served.id != told.active:
        assert told.step in ("CURRENT", "rollback", "activate"), f"{served.id} became active at step {told.step}"
        assert salt == told.salt if told.step == "CURRENT" else served.id == told.target
    served.close()
    return served.id


@pytest.mark.parametrize(
    "kills", [pytest.param(12, marks=pytest.mark.quick), 40, pytest.param(100, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("seed", [20261121])
def test_kills_leave_the_old_or_the_new_generation(tmp_path: Path, seed: int, kills: int) -> None:
    chance, root = random.Random(seed), tmp_path / "store"
    for salt in ("first-", "second-"):
        active = build(ENCODER, pool(POOL_SIZE, salt), root).generation
    told, nursery = Told(active), Nursery("killed_builder.py", root)
    killer = Killer(nursery, told, STEPS, kills, chance)
    killer.learn(rounds=3)
    told.active = check(root, told)
    switched = 0
    for number in range(1, kills + 1):
        before = told.active
        killer.strike(number, lambda _: 2)
        told.active = check(root, told)
        switched += told.active != before
    nursery.close()
    # pytest shows it where the test fails.
    print(f"seed {seed}, kills by step: {dict(killer.hits)}, another generation active after {switched} of {kills}")  # noqa: T201
    assert sum(killer.hits.values()) == kills
    assert all(killer.hits[step] >= kills // 20 for step in STEPS), killer.hits
    built = build(ENCODER, pool(3), root).generation
    assert GenerationStore(root).current() == built
    assert not list((root / "generations").glob(".*"))
