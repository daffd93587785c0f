"""Updates, a trial that is given them, and a switch to it, to be killed; as killed_updater.py, whose words it tells.

Generations of two models take turns. Each is built of the first pool, so all it has besides it was given.
"""

import random
import sys
from functools import partial
from itertools import count
from pathlib import Path

from fakes import pool
from killed_updater import ENCODER, ENCODERS, OTHER, POOL_SIZE, drawn, write
from nursery import serve, tell

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.generation import candidates
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.vectors.encoder import encode_texts

UPDATES_A_TRIAL = 8


def run(root: Path, number: int) -> None:
    """Work until killed."""
    store, chance = GenerationStore(root), random.Random(number)
    for turn in count():
        assert "torch" not in sys.modules
        manifest = store.manifest(_waiting(store))
        encode = partial(encode_texts, ENCODERS[manifest.model.fingerprint])
        store.begin_trial(manifest.id, 0.5)
        missed = store.missed(manifest, encode)
        for each in range(UPDATES_A_TRIAL):
            write(store, *drawn(chance, f"{number}.{turn}.{each}"))
            tell("step", "receive")
            store.receive(manifest.id, missed, chance.choice([0.0, 1.0]))
            if not chance.randrange(4):
                missed = store.missed(manifest, encode)  # another server
        write(store, *drawn(chance, f"{number}.{turn}.last"))
        tell("step", "switch")
        store.activate(manifest.id, encode)
        _waiting(store)
        tell("step", "gc")
        store.gc(keep=2)


def _waiting(store: GenerationStore) -> str:
    """A generation that was never active; as long as there is one, no update's log is removed."""
    for generation in store.ids():
        if not store.updates.was_active(store.manifest(generation)) and generation != store.current():
            return generation
    tell("step", "build")
    encoder = OTHER if store.active().model.fingerprint == ENCODER.fingerprint else ENCODER
    return build(encoder, pool(POOL_SIZE), store.root, BuildOptions(activate=False, revision=0)).generation


if __name__ == "__main__":
    candidates.BATCH_ROWS = 16
    serve(run)
