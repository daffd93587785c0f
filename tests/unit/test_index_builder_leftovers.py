import os
from datetime import timedelta
from pathlib import Path

import pytest

from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.leftovers import Chunk, Journal, journal_of

CHUNK = Chunk("", 1, 0, "ab", "cd")


@pytest.fixture
def left(store: GenerationStore) -> Path:
    """What a build has left that was killed just before it would have published."""
    temporary = store.begin(store.new_id("ab" * 32))
    (temporary / "model").mkdir()
    for name in ("embeddings.bin", "candidates.arrow", "manifest.json", "model/x"):
        (temporary / name).write_text(f"old {name}")
    Journal(journal_of(temporary), 1, [CHUNK])
    return temporary


def test_a_build_that_can_be_resumed_is_collected_after_a_day(store: GenerationStore, left: Path) -> None:
    store.gc(keep=4)
    assert left.exists()
    assert journal_of(left).exists()
    age(left)
    store.gc(keep=4)
    assert not left.exists()
    assert not journal_of(left).exists()


def age(left: Path) -> None:
    """Make it a day old."""
    old = journal_of(left).stat().st_mtime - timedelta(hours=25).total_seconds()
    os.utime(journal_of(left), (old, old))


def test_an_old_one_with_more_rows_is_collected_and_a_recent_one_stays(store: GenerationStore, left: Path) -> None:
    older = store.begin(store.new_id("cd" * 32))
    (older / "embeddings.bin").write_text("older")
    Journal(journal_of(older), 1, [CHUNK, CHUNK])
    age(older)
    store.gc(keep=4)
    assert (left.exists(), older.exists()) == (True, False)


def test_of_those_that_have_a_matrix_the_one_with_most_rows_is_resumed(store: GenerationStore, left: Path) -> None:
    newer = store.begin(store.new_id("cd" * 32))
    (newer / "embeddings.bin").write_text("newer")
    assert cleared(store) == left, "the other has no journal"
    assert not newer.exists()
    newer.mkdir()
    Journal(journal_of(newer))
    assert cleared(store) == left, "the other has no matrix"
    for chunks, expected in (([], left), ([CHUNK, CHUNK], newer)):
        newer.mkdir()
        (newer / "embeddings.bin").write_text("newer")
        Journal(journal_of(newer), 1, chunks)
        assert cleared(store) == expected
    assert not left.exists()
    assert not journal_of(left).exists()


def cleared(store: GenerationStore) -> Path | None:
    leftover = store.discard_leftovers()
    return leftover and leftover.temporary


def test_what_is_left_tells_of_its_chunks_and_is_removed_with_its_copies(store: GenerationStore, left: Path) -> None:
    forgotten: list[str] = []
    leftover = store.discard_leftovers(forgotten.append)
    assert leftover.journal() == (1, [CHUNK])
    assert leftover.matrix("").read_text() == "old embeddings.bin"
    assert forgotten == []
    leftover.discard()
    assert forgotten == [left.name.removeprefix(".tmp-")]
    assert list(left.parent.glob(".*")) == []


def test_the_journal_of_a_published_generation_goes(store: GenerationStore) -> None:
    """Killed between the two steps."""
    Journal(journal_of(store.path(store.ids()[0]).parent / f".tmp-{store.ids()[0]}"))
    assert store.discard_leftovers() is None
    assert list(store.path(store.ids()[0]).parent.glob(".*")) == []
