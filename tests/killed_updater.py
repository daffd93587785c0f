"""Updates and compactions to be killed: without torch, for ever, telling each step.

Run by a nursery; texts begin with the number. It tells "step <name>" before a step, "doing <revision> <JSON>" before
an update is written and "done <revision>" once it is acknowledged. The JSON is [[[id, text], ...], [id, ...]]: what is
put, and what is deleted.
"""

import json
import random
import sys
from itertools import count
from pathlib import Path

from fakes import HashEncoder
from nursery import serve, tell

from polyrank.index_builder.building.compaction import compact
from polyrank.index_builder.generation import candidates
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.update_log import Update
from polyrank.model.representations import LateRows

# Records large enough for writing them to take some time.
ENCODER = HashEncoder(dim=2048, late=LateRows(8, None))
OTHER = HashEncoder(dim=1024, fingerprint="f" * 64)
ENCODERS = {each.fingerprint: each for each in (ENCODER, OTHER)}
POOL_SIZE = 48
UPDATES_A_COMPACTION = 12
IDS = 60


def write(store: GenerationStore, upserts: list[tuple[str, str]], deletes: list[str]) -> None:
    """One update, as the service writes it."""
    current = store.current()
    assert current is not None
    with store.updates.writing():
        manifest = store.manifest(current)
        log = store.updates.of(manifest)
        for _ in log.read():
            pass
        revision = 1 + max(log.revision, log.floor, manifest.revision)
        made = ENCODERS[manifest.model.fingerprint].of([text for _, text in upserts])
        tell("doing", str(revision), json.dumps([upserts, deletes], separators=(",", ":")))
        tell("step", "update")
        log.append(Update(revision, [Candidate(*each) for each in upserts], made, deletes))
        tell("done", str(revision))


def drawn(chance: random.Random, named: str) -> tuple[list[tuple[str, str]], list[str]]:
    """What an update of this name puts and deletes."""
    ids = chance.sample(range(IDS), chance.randint(1, 6))
    deletes = [f"c{n}" for n in ids[: chance.randint(0, 1)]]
    return [(f"c{n}", f"{named}-{n}") for n in ids if f"c{n}" not in deletes], deletes


def run(root: Path, number: int) -> None:
    """Work until killed."""
    store, chance = GenerationStore(root), random.Random(number)
    for turn in count():
        assert "torch" not in sys.modules
        for each in range(UPDATES_A_COMPACTION):
            write(store, *drawn(chance, f"{number}.{turn}.{each}"))
        compact(root, progress=lambda stage, _done, _total: tell("step", stage))
        tell("step", "gc")
        store.gc(keep=2)


if __name__ == "__main__":
    candidates.BATCH_ROWS = 16
    serve(run)
