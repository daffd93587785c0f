"""Words count the same, to the bit, in the pool and in updates, as in one table of all; a compaction counts anew."""

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from cases import cases
from fakes import HashEncoder
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from polyrank.index_builder.building.compaction import compact
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.index_builder.store.update_log import Update
from polyrank.model.config import LexicalConfig
from polyrank.model.lexical.features import FEATURES
from polyrank.model.lexical.score import LexicalScore
from polyrank.model.lexical.table import WordTable
from polyrank.model.lexical.words import Statistics
from polyrank.model.representations import Representations
from polyrank.model.text.assembly import Conversation

TEXTS = st.lists(
    st.sampled_from(["a", "lamp", "Lamp!", "boat", "ord-1-x", "v2.3", "?", "the", "über", "77"]), min_size=1, max_size=6
).map(" ".join)
IDS = st.sampled_from([f"c{n}" for n in range(20)])
CHANGES = st.tuples(st.dictionaries(IDS, TEXTS, max_size=5), st.lists(IDS, unique=True, max_size=3))
SAID = st.builds(Conversation.of, st.lists(TEXTS, min_size=1, max_size=4), st.lists(TEXTS, max_size=2))
WEIGHTS = st.lists(st.floats(-10, 10, allow_nan=False, width=32), min_size=len(FEATURES), max_size=len(FEATURES)).map(
    lambda weights: dict(zip(FEATURES, weights, strict=True))
)
OTHERS = {f"o{n}": "the same" for n in range(100)}  # beside them some words are rare


@contextmanager
def opened(store: GenerationStore) -> Iterator[Snapshot]:
    with closing(store.open(str(store.current()), verify=False)) as generation:
        yield store.snapshots([generation])[0]


def values_of_all(snapshot: Snapshot, said: Conversation) -> NDArray[np.float32]:
    """Of the rows that are there, in their order."""
    found = snapshot.word_values(said)
    return np.concatenate([np.delete(found.own, snapshot.removed), found.added[snapshot.added]])


def write(store: GenerationStore, revision: int, upserts: dict[str, str], deletes: list[str]) -> None:
    manifest, encoder = store.manifest(str(store.current())), HashEncoder()
    log = store.updates.of(manifest)
    log.catch_up()
    vectors = np.array([encoder.vector(text) for text in upserts.values()]).reshape(-1, encoder.dim)
    log.append(
        Update(
            revision, [Candidate(each, text, {}) for each, text in upserts.items()], Representations(vectors), deletes
        )
    )


@settings(max_examples=cases(25), deadline=None)
@given(
    weights=WEIGHTS,
    pool=st.dictionaries(IDS, TEXTS, min_size=1),
    changes=st.lists(CHANGES, max_size=8),
    compacted_after=st.integers(0, 8),
    said=SAID,
)
def test_every_text_counts_as_in_one_table_of_all(
    weights: dict[str, float],
    pool: dict[str, str],
    changes: list[tuple[dict[str, str], list[str]]],
    compacted_after: int,
    said: Conversation,
) -> None:
    held = {**OTHERS, **pool}
    config, statistics = LexicalConfig(weights=weights), Statistics.of(held.values())
    with tempfile.TemporaryDirectory() as directory:
        rows = [Candidate(each, text, {}) for each, text in held.items()]
        build(HashEncoder(evidence=config), rows, Path(directory))
        store = GenerationStore(Path(directory))
        for revision, (upserts, deletes) in enumerate(changes, start=1):
            write(store, revision, upserts, deletes)
            for each in (*deletes, *upserts):
                held.pop(each, None)
            held.update(upserts)
            if held and revision == compacted_after and (upserts or deletes):
                compact(Path(directory))
                statistics = Statistics.of(held.values())
            with opened(store) as snapshot:
                expected = LexicalScore(config).values(said, WordTable.of(list(held.values()), statistics))
                assert values_of_all(snapshot, said).tobytes() == expected.tobytes()
