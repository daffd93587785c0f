"""Pages of stored candidates: together they are the snapshot, whatever is updated between them."""

from pathlib import Path
from typing import Any

import pytest
from fakes import HashEncoder

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store import pages
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.pages import Page, page
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.index_builder.store.update_log import Update
from polyrank.model.text.reading import finish

ENCODER = HashEncoder()
COUNT = 50


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    build(ENCODER, [Candidate(f"c{n}", f"text {n}", {"n": n % 5}) for n in range(COUNT)], root)
    return root


@pytest.fixture
def snapshot(root: Path) -> Snapshot:
    store = GenerationStore(root)
    return Snapshot.of(store.open(store.current() or ""))


def update(revision: int, upserts: list[str], deletes: list[str]) -> Update:
    candidates = [Candidate(each, f"new {revision}", {"n": revision}) for each in upserts]
    return Update(revision, candidates, ENCODER.of([each.text for each in candidates]), deletes)


def read(snapshot: Snapshot, start: int, limit: int, filter_: dict[str, Any] | None = None) -> Page:
    return finish(page(snapshot, start, limit, filter_))


def walk(snapshot: Snapshot, limit: int, filter_: dict[str, Any] | None = None) -> list[Candidate]:
    found, row = [], 0
    while True:
        part = read(snapshot, row, limit, filter_)
        assert len(part.candidates) <= limit
        found += part.candidates
        if part.next_row is None:
            return found
        assert part.next_row > row
        row = part.next_row


@pytest.mark.parametrize("limit", [1, 3, 7, 50, 1000])
@pytest.mark.parametrize("filter_", [None, {"n": [1, 9]}, {"n": {"gte": 3}}, {"no": 1}])
@pytest.mark.parametrize("part_rows", [4, 2048])
def test_pages_together_are_the_snapshot(
    snapshot: Snapshot, limit: int, filter_: dict[str, Any] | None, part_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PART_ROWS", part_rows)
    monkeypatch.setattr(pages, "MOST_PARTS", 3)
    later = snapshot.updated([update(8, ["a", "c3", "b"], [f"c{n}" for n in range(10, 31)]), update(9, ["a"], ["b"])])
    for each in (snapshot, later):
        assert walk(each, limit, filter_) == each.candidates(each.matching(filter_ or {}))


def test_updates_between_pages_neither_hide_nor_repeat_what_stays(snapshot: Snapshot) -> None:
    first = read(snapshot, 0, 20)
    later = snapshot.updated([update(8, ["c5", "c30", "new"], ["c0", "c40"])])
    assert first.next_row is not None
    rest = [each.id for each in read(later, first.next_row, 1000).candidates]
    assert sorted(rest, key=str) == sorted({f"c{n}" for n in range(20, COUNT)} - {"c40"} | {"c5", "new"})
    assert rest[-3:] == ["c5", "c30", "new"]


def test_a_page_looks_at_so_many_rows_and_no_more(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PART_ROWS", 5)
    monkeypatch.setattr(pages, "MOST_PARTS", 2)
    assert read(snapshot, 0, 10, {"no": 1}) == Page([], 10)
    assert len(list(page(snapshot, 0, 10, {"no": 1}))) == 2, "it pauses after each part"


def test_a_page_is_bounded_in_bytes(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_BYTES", 40)
    found = read(snapshot, 0, 50)
    assert 1 <= len(found.candidates) < 10
    assert found.next_row == len(found.candidates)
    assert walk(snapshot, 50) == snapshot.candidates(snapshot.all_rows)
