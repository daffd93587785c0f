from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import EVIDENCE, HashEncoder, assert_whole, pool

from polyrank.index_builder.building import compaction, pipeline
from polyrank.index_builder.building.compaction import compact
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.errors import GenerationNotFound, NothingToCompact
from polyrank.index_builder.index import choice as index_choice
from polyrank.index_builder.index.choice import IndexSpec, SearchTimes, choose_index
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.update_log import Update
from polyrank.model.lexical.words import Statistics
from polyrank.model.representations import LateRows
from polyrank.model.text.assembly import Conversation

ENCODER = HashEncoder(late=LateRows(3, None))


def update(store: GenerationStore, upserts: list[Candidate], deletes: list[str] = []) -> int:  # noqa: B006  # not changed
    """Write an update of the active generation; returns its revision."""
    manifest = store.manifest(str(store.current()))
    log = store.updates.of(manifest)
    for _ in log.read():
        pass
    revision = 1 + max(log.revision, log.floor, manifest.revision)
    log.append(Update(revision, upserts, ENCODER.of([each.text for each in upserts]), deletes))
    return revision


@pytest.fixture
def store(tmp_path: Path) -> GenerationStore:
    build(ENCODER, pool(20), tmp_path)
    return GenerationStore(tmp_path)


def test_the_updates_become_rows_in_their_order(store: GenerationStore) -> None:
    before = store.current()
    update(store, [Candidate("c3", "new 3", {"n": 3}), Candidate("x", "new x")], ["c5"])
    revision = update(store, [Candidate("x", "newer x")])
    built = compact(store.root)
    assert store.current() == built.generation != before
    assert store.manifest(built.generation).revision == revision
    kept = [each for each in pool(20) if each.id not in ("c3", "c5")]
    opened = store.open(built.generation)
    assert_whole(opened, ENCODER, [*kept, Candidate("c3", "new 3", {"n": 3}), Candidate("x", "newer x")])
    assert (opened.model_directory / "polyrank.json").read_bytes() == (
        store.path(str(before)) / "model" / "polyrank.json"
    ).read_bytes()
    assert opened.manifest.model.name == ENCODER.name
    opened.close()


@pytest.mark.parametrize("index", ["exact", "flat", "hnsw"])
def test_the_kind_of_index_and_the_dtype_stay(tmp_path: Path, index: str) -> None:
    build(ENCODER, pool(20), tmp_path, BuildOptions(index=index, dtype="float32"))
    store = GenerationStore(tmp_path)
    update(store, [Candidate("x", "new")])
    manifest = store.manifest(compact(tmp_path).generation)
    assert (manifest.index.kind, manifest.dtype, manifest.count) == (index, "float32", 21)


@pytest.mark.slow
def test_the_index_is_chosen_anew_by_what_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(ENCODER, pool(300), tmp_path, BuildOptions(index="ivfpq"))
    store = GenerationStore(tmp_path)
    update(store, [], [f"c{n}" for n in range(50)])
    manifest = store.manifest(compact(tmp_path).generation)
    assert (manifest.index.kind, manifest.count) == ("exact", 250), "too few to train what was asked for"
    build(ENCODER, pool(20), tmp_path)
    update(store, [Candidate("x", "new")])
    monkeypatch.setattr(index_choice, "HNSW_BYTES", 0)
    monkeypatch.setattr(index_choice, "MEASURED_FROM", 21)
    assert store.manifest(compact(tmp_path).generation).index.kind == "ivf", "no graph has room"


def built_with(chosen: IndexSpec, count: int, root: Path) -> str:
    """A generation with an index that was chosen elsewhere."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pipeline, "choose_index", lambda *_: chosen)
        patched.setattr(pipeline, "needs_times", lambda *_: False)
        return build(ENCODER, pool(count), root).generation


def timed(root: Path, kind: str, times: SearchTimes | None) -> GenerationStore:
    """A store of 20 candidates, for which "auto" chose this kind by these times, and an update adds one."""
    chosen = replace(choose_index(kind, 20, ENCODER.dim), asked="auto", times=times)
    built_with(chosen, 20, root)
    store = GenerationStore(root)
    update(store, [Candidate("x", "new")])
    return store


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools of 20 are large enough to be measured, and nothing may be measured."""
    monkeypatch.setattr(index_choice, "MEASURED_FROM", 20)

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(pipeline, "time_searches", never)


@pytest.mark.usefixtures("measured")
def test_the_times_of_the_last_build_are_adapted_to_the_count(tmp_path: Path) -> None:
    before = SearchTimes(10.0, 7.05)  # HNSW takes a little too long for 20, and not for 21
    store = timed(tmp_path, "exact", before)
    index = store.manifest(compact(tmp_path).generation).index
    assert (index.kind, index.asked, index.times) == ("hnsw", "auto", before.grown(20, 21))
    update(store, [], ["x", "c0", "c1"])
    index = store.manifest(compact(tmp_path).generation).index
    assert (index.kind, index.asked, index.times) == ("exact", "auto", None), "18 need not be measured"


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("kind", ["exact", "hnsw"])
def test_where_the_last_build_measured_nothing_the_kind_stays(tmp_path: Path, kind: str) -> None:
    store = timed(tmp_path, kind, None)
    index = store.manifest(compact(tmp_path).generation).index
    assert (index.kind, index.asked, index.times) == (kind, "auto", None)


def test_tuned_searches_stay(tmp_path: Path) -> None:
    tuned = replace(choose_index("ivf", 300, ENCODER.dim), params={"nprobe": 3})
    built = built_with(tuned, 300, tmp_path)
    store = GenerationStore(tmp_path)
    assert store.manifest(built).index.params == {"nprobe": 3}
    update(store, [Candidate("x", "new")])
    assert store.manifest(compact(tmp_path).generation).index.params == {"nprobe": 3}


def test_there_must_be_something_to_do(store: GenerationStore, tmp_path: Path) -> None:
    with pytest.raises(GenerationNotFound, match="is active"):
        compact(tmp_path / "empty")
    with pytest.raises(NothingToCompact, match="was not updated"):
        compact(store.root)
    update(store, [], [each.id for each in pool(20)])
    with pytest.raises(NothingToCompact, match="is empty"):
        compact(store.root)
    assert len(store.ids()) == 1


def test_what_comes_meanwhile_is_given_to_the_compaction(store: GenerationStore) -> None:
    update(store, [Candidate("x", "new")])
    seen = set[str]()

    def meanwhile(stage: str, _done: int, _total: int | None) -> None:
        if stage in ("encode", "manifest", "rename", "CURRENT") and stage not in seen:
            seen.add(stage)
            update(store, [Candidate(stage, f"at {stage}")], ["c0"])

    generation = compact(store.root, progress=meanwhile).generation
    opened = store.open(generation)
    snapshot = store.snapshots([opened])[0]
    found = {each.id: each.text for each in snapshot.candidates(snapshot.all_rows)}
    assert "c0" not in found
    assert found["x"] == "new"
    assert [found[stage] for stage in ("encode", "manifest", "rename", "CURRENT")] == [
        f"at {stage}" for stage in ("encode", "manifest", "rename", "CURRENT")
    ]
    assert snapshot.revision == 5
    opened.close()


def test_rows_are_read_a_batch_at_a_time(store: GenerationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "BATCH_ROWS", 3)
    update(store, [Candidate("x", "new")])
    opened = store.open(compact(store.root).generation)
    assert_whole(opened, ENCODER, [*pool(20), Candidate("x", "new")])
    opened.close()


def test_words_count_as_if_the_pool_were_built_as_it_is_now(tmp_path: Path) -> None:
    encoder = HashEncoder(evidence=EVIDENCE, late=ENCODER.late_rows)
    build(encoder, pool(80), tmp_path / "updated")
    store, said = GenerationStore(tmp_path / "updated"), Conversation.of(["text 4 or text 7", "new 3 new"])
    update(store, [Candidate("c3", "new 3", {}), Candidate("x", "text 7 text")], ["c5", "c9"])
    built = compact(store.root)
    assert (built.count, built.counted) == (79, 79)
    assert "words were counted anew, in 79 candidates" in built.notes[-1]
    after = store.snapshots([store.open(built.generation)])[0]
    fresh = GenerationStore(tmp_path / "fresh")
    again = fresh.open(build(encoder, after.candidates(after.all_rows), fresh.root).generation)
    rebuilt = fresh.snapshots([again])[0]
    values = [each.word_values(said) for each in (after, rebuilt)]
    assert values[0].own.values.tobytes() == values[1].own.values.tobytes()
    for snapshot in (after, rebuilt):
        texts = [each.text for each in after.candidates(after.all_rows)]
        for name, array in Statistics.of(texts).arrays().items():
            np.testing.assert_array_equal(snapshot.generation.words.table.statistics.arrays()[name], array)


def test_nothing_is_said_of_words_that_do_not_count(store: GenerationStore) -> None:
    update(store, [Candidate("x", "new")])
    built = compact(store.root)
    assert built.counted is None
    assert not any("words" in note for note in built.notes)
