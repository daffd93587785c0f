"""A generation at a revision: rows, order, look-ups, filters, and that old snapshots stay as they were."""

import threading

import numpy as np
import pytest
from fakes import EVIDENCE, HashEncoder, pool

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store import snapshot as snapshot_module
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.index_builder.store.update_log import Update
from polyrank.model.lexical.score import LexicalScore
from polyrank.model.lexical.table import WordQuery, WordTable
from polyrank.model.lexical.words import Statistics
from polyrank.model.representations import Representations
from polyrank.model.text.assembly import Conversation

ENCODER = HashEncoder()


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory) -> Generation:
    """Of c0 to c5."""
    root = tmp_path_factory.mktemp("store")
    return GenerationStore(root).open(build(ENCODER, pool(6), root).generation)


@pytest.fixture
def snapshot(generation: Generation) -> Snapshot:
    return Snapshot.of(generation)


def update(revision: int, upserts: dict[str, str], deletes: tuple[str, ...] = ()) -> Update:
    """Texts by id; their metadata says which revision they are of."""
    candidates = [Candidate(each, text, {"revision": revision}) for each, text in upserts.items()]
    vectors = np.array([ENCODER.vector(text) for text in upserts.values()], np.float16).reshape(-1, ENCODER.dim)
    return Update(revision, candidates, Representations(vectors), deletes)


def ids(snapshot: Snapshot) -> list[str]:
    return [each.id for each in snapshot.candidates(snapshot.matching({}))]


def test_an_error_in_the_middle_leaves_nothing_for_the_next_attempt(snapshot: Snapshot, monkeypatch) -> None:
    before = snapshot.updated([update(1, {"a": "1", "c1": "1"})])
    updates = [update(2, {"a": "2", "b": "2"}), update(3, {}, ("c1",))]

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(np, "union1d", fail)
        with pytest.raises(MemoryError):
            before.updated(updates)
    after = before.updated(updates)
    assert ids(before) == ["c0", "c2", "c3", "c4", "c5", "a", "c1"]
    assert ids(after) == ["c0", "c2", "c3", "c4", "c5", "a", "b"]
    assert after.rows(["a", "b", "c1"]).tolist() == [8, 9, -1]


def test_a_snapshot_is_read_while_the_next_ones_are_made(snapshot: Snapshot) -> None:
    """One writer, a few readers: a reader sees each snapshot whole, whatever the writer does to what they share."""
    latest, done = [snapshot], threading.Event()
    faults: list[str] = []

    def look() -> None:
        while not done.is_set():
            one = latest[0]
            rows = one.rows(["x"])
            if one.revision == 0:
                continue
            [found] = one.candidates(rows)
            vector = one.vectors_added[one.split(rows)[2]][0]
            if found.metadata["revision"] != one.revision or vector.tolist() != ENCODER.vector(found.text).tolist():
                faults.append(f"{found} at {one.revision}")

    readers = [threading.Thread(target=look) for _ in range(3)]
    for reader in readers:
        reader.start()
    for revision in range(1, 400):
        latest[0] = latest[0].updated([update(revision, {"x": f"t{revision}"})])
    done.set()
    for reader in readers:
        reader.join()
    assert faults == []


@pytest.fixture(scope="module")
def with_words(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """Of 80 candidates whose words count; all but "text" are rare."""
    root = tmp_path_factory.mktemp("store")
    built = build(HashEncoder(evidence=EVIDENCE), pool(80), root)
    return Snapshot.of(GenerationStore(root).open(built.generation))


SAID = Conversation.of(["text 2 is old", "what of text 4 and new 7?", "new 3"], persona=["I am text 5"])


def assert_words_of_all(snapshot: Snapshot, added: list[str]) -> None:
    """They are those of one table of all texts."""
    texts = [each.text for each in pool(80)]
    expected = LexicalScore(EVIDENCE).values(SAID, WordTable.of(texts + added, Statistics.of(texts)))
    found = snapshot.word_values(SAID)
    values = found.own.values, found.added.values
    assert np.concatenate(values).tobytes() == expected.tobytes()
    assert [len(each) for each in values] == [80, len(added)]


def test_words_of_many_updates_are_in_few_tables_and_the_past_keeps_its_own(with_words: Snapshot, monkeypatch) -> None:
    texts = [f"new {n % 9} of {n}" for n in range(700)]
    snapshots = [with_words]
    for n, text in enumerate(texts):
        snapshots.append(snapshots[-1].updated([update(n + 1, {f"n{n}": text})]))
    for n in (700, 699, 273, 17, 16, 1):
        assert_words_of_all(snapshots[n], texts[:n])
    at_once = snapshots[-1].updated([update(701, {f"m{n}": text for n, text in enumerate(texts)})])
    assert_words_of_all(at_once, [*texts, *texts])
    read: list[int] = []
    values_in = WordQuery.values_in
    monkeypatch.setattr(WordQuery, "values_in", lambda asked, table: read.append(len(table)) or values_in(asked, table))
    snapshots[-1].word_values(SAID)
    assert len(read) <= 4, "a table of the pool, and at most three of 700 added rows"
    read.clear()
    at_once.word_values(SAID)
    assert read == [80, 1400]


def test_the_words_of_a_long_log_are_read_in_parts(with_words: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_module, "_ROWS_AT_ONCE", 50)
    made: list[int] = []
    table_of = WordTable.of
    with monkeypatch.context() as patched:
        patched.setattr(WordTable, "of", lambda texts, known: made.append(len(texts)) or table_of(texts, known))
        texts = [f"new {n % 9} of {n}" for n in range(1023)]
        after = with_words.updated([update(n + 1, {f"a{n}": text}) for n, text in enumerate(texts)])
    assert made == [50] * 20 + [23]
    assert_words_of_all(after, texts)


def test_an_error_amid_an_update_leaves_the_words_as_they_were(with_words: Snapshot, monkeypatch) -> None:
    once = with_words.updated([update(1, {"a": "new 3"})])
    with monkeypatch.context() as patched:
        patched.setattr(WordTable, "of", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            once.updated([update(2, {"b": "new 7"})])
    assert_words_of_all(once, ["new 3"])
    assert_words_of_all(once.updated([update(2, {"b": "text 5"})]), ["new 3", "text 5"])
