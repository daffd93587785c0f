"""A builder to be killed: without torch, it builds, activates, rolls back and verifies for ever, telling each step.

Run by a nursery; the number is that of its first round. It tells "step <name>" before a step, "target <id>" before the
pointer moves to a known generation, "salt <salt>" before a build and "active <id>" after the pointer has moved.
"""

import sys
from itertools import count
from pathlib import Path

from fakes import HashEncoder, pool
from nursery import serve, tell

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.generation import candidates
from polyrank.index_builder.store.generation_store import GenerationStore

# Vectors large enough for writing and hashing them to take some time.
ENCODER = HashEncoder(dim=2048)
POOL_SIZE = 48


def run(root: Path, first_round: int) -> None:
    """Work until killed."""
    store = GenerationStore(root)
    for number in count(first_round):
        assert "torch" not in sys.modules
        tell("salt", f"{first_round}.{number}-")
        built = build(
            ENCODER,
            pool(POOL_SIZE, f"{first_round}.{number}-"),
            root,
            BuildOptions(index="flat"),
            progress=lambda stage, _done, _total: tell("step", stage),
        ).generation
        tell("active", built)
        tell("target", store.history()[-1])
        tell("step", "rollback")
        tell("active", store.rollback())
        tell("step", "verify")
        store.verify(built)
        tell("target", built)
        tell("step", "activate")
        store.activate(built)
        tell("active", built)
        tell("step", "gc")
        store.gc(keep=3)


if __name__ == "__main__":
    candidates.BATCH_ROWS = 16
    serve(run)
