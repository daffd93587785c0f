"""Links and strays among a store's generations are named, and never followed, removed or in the way."""

import os
from pathlib import Path

import pytest
from fakes import HashEncoder, pool

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.errors import BuildError, GenerationCorrupt
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.leftovers import Journal

ID = "20261121T013000123456-1a2b3c4d"
IMPOSSIBLE = ["20261399T013000123456-1a2b3c4d", "99991231T235959999999-1a2b3c4d"]
NAMES = [".tmp-file", ".tmp-x", ".journal-x", "notes", *IMPOSSIBLE]


def _outside(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    for path in (outside / "precious", outside / "deep" / "precious"):
        path.write_text("precious")
    return outside


def _is_untouched(outside: Path) -> bool:
    return all(path.read_text() == "precious" for path in (outside / "precious", outside / "deep" / "precious"))


@pytest.mark.parametrize("name", [".tmp-x", f".tmp-{ID}", "notes"])
def test_cleaning_follows_no_link(store: GenerationStore, tmp_path: Path, name: str) -> None:
    outside = _outside(tmp_path)
    link = store.root / "generations" / name
    link.symlink_to(outside)
    build(HashEncoder(), pool(5), store.root)
    store.gc(keep=1)
    assert _is_untouched(outside)
    assert link.is_symlink()


def test_a_link_in_a_killed_build_is_removed_and_not_followed(store: GenerationStore, tmp_path: Path) -> None:
    outside = _outside(tmp_path)
    killed = store.begin(store.new_id("ab" * 32))
    (killed / "model").symlink_to(outside)
    (killed / "deeper").mkdir()
    (killed / "deeper" / "link").symlink_to(outside / "deep")
    store.gc(keep=1)
    assert not killed.exists()
    assert _is_untouched(outside)


def test_a_generation_that_is_a_link_is_refused_by_name(store: GenerationStore, tmp_path: Path) -> None:
    a, b, *_, d = store.ids()
    store.activate(a)
    store.activate(d)
    moved = store.path(a).rename(tmp_path / a)
    store.path(a).symlink_to(moved)
    with pytest.raises(GenerationCorrupt, match=rf"{a} is a symbolic link"):
        store.open(a)
    assert b in store.gc(keep=1)
    assert (moved / "manifest.json").exists()
    assert store.updates.exists(a)  # its log is kept for when the link is gone


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [Path.touch, Path.mkdir, os.mkfifo])
def test_strays_are_named_and_stop_nothing(store: GenerationStore, name: str, kind: object, caplog) -> None:
    assert callable(kind)
    stray = store.root / "generations" / name
    kind(stray)
    built = build(HashEncoder(), pool(5), store.root).generation
    assert str(stray) in caplog.text
    caplog.clear()
    removed = store.gc(keep=1)
    assert str(stray) in caplog.text
    assert len(removed) == 4
    assert store.ids() == [built]
    assert [each.path for each in store.strays()] == [stray]
    assert stray.exists()


@pytest.mark.parametrize("kind", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("elsewhere")])
def test_a_stray_in_the_place_of_a_killed_builds_journal_stops_nothing(store: GenerationStore, kind: object) -> None:
    assert callable(kind)
    killed = store.begin(ID)
    stray = killed.with_name(f".journal-{ID}")
    kind(stray)
    build(HashEncoder(), pool(5), store.root)
    assert not killed.exists()
    assert [each.path for each in store.strays()] == [stray]


@pytest.mark.parametrize("name", [ID, f".tmp-{ID}", f".journal-{ID}"])
def test_a_pipe_under_a_good_name_is_a_stray(store: GenerationStore, name: str) -> None:
    os.mkfifo(store.root / "generations" / name)
    build(HashEncoder(), pool(5), store.root)
    store.gc(keep=1)
    assert [each.path.name for each in store.strays()] == [name]


def test_a_killed_build_whose_matrix_is_a_pipe_is_not_resumed(store: GenerationStore) -> None:
    killed = store.begin(store.new_id("ab" * 32))
    os.mkfifo(killed / "embeddings.bin")
    Journal(killed.with_name(f".journal-{killed.name.removeprefix('.tmp-')}"))
    assert build(HashEncoder(), pool(5), store.root).resumed == 0
    assert not killed.exists()


def test_a_link_to_the_log_of_bad_rows_is_not_followed(store: GenerationStore, tmp_path: Path) -> None:
    outside = _outside(tmp_path)
    a, *_, d = store.ids()
    (store.root / "rejected").mkdir()
    (store.root / "rejected" / a).symlink_to(outside)
    store.activate(d)
    store.gc(keep=1)
    assert _is_untouched(outside)


def test_an_id_follows_those_of_a_far_future(store: GenerationStore) -> None:
    future = "99980131T235959999999-1a2b3c4d"
    (store.root / "generations" / future).mkdir()
    assert build(HashEncoder(), pool(5), store.root, BuildOptions(activate=False)).generation > future


def test_an_id_follows_that_of_a_generation_that_is_a_link(store: GenerationStore, tmp_path: Path) -> None:
    future = "99980131T235959999999-1a2b3c4d"
    store.path(future).symlink_to(tmp_path)
    assert build(HashEncoder(), pool(5), store.root, BuildOptions(activate=False)).generation > future


def test_the_last_id_of_all_is_named_where_none_can_follow(store: GenerationStore) -> None:
    last = "99981231T235959999999-1a2b3c4d"
    store.path(last).mkdir()
    with pytest.raises(BuildError, match=f"no id can follow {last}; the clock was wrong when it was made: remove it"):
        build(HashEncoder(), pool(5), store.root)
