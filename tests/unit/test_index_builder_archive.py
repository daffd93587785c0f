"""A backup is the store at one moment, and a restore gives all of it or nothing."""

import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from fakes import HashEncoder, pool

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.errors import BackupInvalid, GenerationCorrupt, GenerationNotFound
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.archive import Backup, back_up, restore
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.update_log import Update
from polyrank.model.errors import InvalidInput
from polyrank.model.representations import Representations


class Kept(BytesIO):
    """What was written to it stays when it is closed. Before the first bytes, something else may happen."""

    def __init__(self, first: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._first, self.content = [first], b""

    def write(self, content: Any) -> int:
        while self._first:
            self._first.pop()()
        self.content += bytes(content)
        return len(content)


def quiet(*_: object) -> None:
    pass


def backed_up(store: GenerationStore, first: Callable[[], object] = lambda: None) -> tuple[bytes, Backup]:
    to = Kept(first)
    done = back_up(store, to, quiet)
    return to.content, done


def restored(content: bytes, root: Path) -> GenerationStore:
    restore(BytesIO(content), root, quiet)
    return GenerationStore(root)


def update(store: GenerationStore, revision: int) -> None:
    """Add a candidate to the active generation, as a server does."""
    manifest = store.active()
    vectors = Representations(np.zeros((1, manifest.dim), manifest.dtype))
    with store.updates.writing():
        row = Candidate(f"new-{revision}", "hello")
        store.updates.of(manifest).append(Update(revision, [row], vectors))


def files(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


def packed(*entries: tuple[str, bytes] | tarfile.TarInfo) -> bytes:
    to = Kept()
    with pa.CompressedOutputStream(cast(Any, to), "zstd") as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                tar.addfile(entry)
            else:
                info = tarfile.TarInfo(entry[0])
                info.size = len(entry[1])
                tar.addfile(info, BytesIO(entry[1]))
    return to.content


@pytest.fixture
def active(store: GenerationStore) -> GenerationStore:
    """Of four generations the second and the third were activated, and updated; the others are not needed."""
    for number, generation in enumerate(store.ids()[1:3], 1):
        store.activate(generation)
        update(store, number)
    return store


def test_a_restored_store_is_what_is_served_and_what_rollbacks_reach(active: GenerationStore, tmp_path: Path) -> None:
    _, second, third, _ = active.ids()
    content, done = backed_up(active)
    assert done == Backup(third, [second, third], 2)
    found = restored(content, tmp_path / "new")
    assert restore(BytesIO(content), tmp_path / "third", quiet) == done
    assert (found.ids(), found.current(), found.history()) == ([second, third], third, [second])
    before, after = files(active.root), files(tmp_path / "new")
    assert after == {name: before[name] for name in after}
    assert sorted({name.split("/")[0] for name in after}) == ["CURRENT", "HISTORY", "generations", "log"]
    assert found.updated(third) == active.updated(third) == (7, 2)
    assert found.rollback() == second
    for each in found.open_to_serve()[0]:
        each.close()


def test_a_generation_that_came_back_keeps_its_place_in_the_history(active: GenerationStore, tmp_path: Path) -> None:
    _, second, third, _ = active.ids()
    active.activate(second)
    content, done = backed_up(active)
    assert done == Backup(second, [third, second], 1)
    found = restored(content, tmp_path / "new")
    assert (found.current(), found.history()) == (second, active.history()) == (second, [second, third])


def test_of_two_restores_at_once_the_first_one_stays(active: GenerationStore, tmp_path: Path) -> None:
    content, _ = backed_up(active)
    second = [lambda: restored(content, tmp_path / "new")]

    def meanwhile(*_: object) -> None:
        while second:
            second.pop()()

    with pytest.raises(FileExistsError, match="filled by another process"):
        restore(BytesIO(content), tmp_path / "new", meanwhile)
    assert GenerationStore(tmp_path / "new").current() == active.current()
    assert not list((tmp_path / "new").glob(".*"))


def test_what_changes_while_it_is_written_is_not_in_it(active: GenerationStore, tmp_path: Path) -> None:
    before, third = files(active.root), active.current()

    def change() -> None:
        update(active, 3)
        active.activate(active.ids()[3])
        assert active.gc(keep=1), "the generations of the backup are removed"
        update(active, 4)

    content, done = backed_up(active, change)
    assert active.ids() != done.generations
    found = restored(content, tmp_path / "new")
    assert (found.current(), done.revision) == (third, 2)
    after = files(tmp_path / "new")
    assert after == {name: before[name] for name in after}


def test_a_record_that_a_kill_cut_short_does_no_harm(active: GenerationStore, tmp_path: Path) -> None:
    current = active.active().id
    with active.updates.path(current).open("ab") as file:
        file.write(b"\x01\x02\x03")
    found = restored(backed_up(active)[0], tmp_path / "new")
    assert found.updated(current) == (7, 2)
    update(found, 3)
    assert found.updated(current) == (8, 3)


def test_parts_are_kept(tmp_path: Path) -> None:
    built = build(HashEncoder(), pool(20), tmp_path / "store", BuildOptions(), parts=2)
    found = restored(backed_up(GenerationStore(tmp_path / "store"))[0], tmp_path / "new")
    assert len(found.verify(built.generation).parts) == 2


def test_a_damaged_store_is_not_backed_up(active: GenerationStore) -> None:
    current = active.active().id
    path = active.path(current) / "embeddings.bin"
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(GenerationCorrupt, match=r"the sha256 of embeddings\.bin differs"):
        backed_up(active)
    path.unlink()
    with pytest.raises(GenerationCorrupt, match=r"embeddings\.bin is missing"):
        backed_up(active)
    path.write_bytes(content)
    log = active.updates.path(current)
    log.write_bytes(log.read_bytes().replace(b"new-2", b"new-3"))
    with pytest.raises(GenerationCorrupt, match="update log"):
        backed_up(active)


def test_nothing_active_is_nothing_to_back_up(store: GenerationStore) -> None:
    with pytest.raises(GenerationNotFound, match="is active"):
        backed_up(store)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.6, 0.9, 0.999])
@pytest.mark.parametrize("made", [False, True])
def test_an_archive_that_is_cut_off_leaves_nothing(
    active: GenerationStore, tmp_path: Path, share: float, made: bool
) -> None:
    content, _ = backed_up(active)
    if made:
        (tmp_path / "new").mkdir()
    with pytest.raises(BackupInvalid, match="it is cut off"):
        restored(content[: int(share * len(content))], tmp_path / "new")
    assert (tmp_path / "new").exists() == made
    assert not made or list((tmp_path / "new").iterdir()) == []


def test_a_whole_archive_without_its_end_is_cut_off(tmp_path: Path) -> None:
    with pytest.raises(BackupInvalid, match=r"^it is cut off$"):
        restored(packed(("HISTORY", b"")), tmp_path / "new")


def link(name: str, to: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, to
    return info


def sparse(name: str) -> tarfile.TarInfo:
    """A file of which few bytes make a gigabyte."""
    info = tarfile.TarInfo(name)
    info.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": "1000000000"}
    return info


GENERATION = "20261127T060430511988-c1a37cba"


@pytest.mark.parametrize(
    "entry",
    [
        ("../outside", b"x"),
        ("/tmp/outside", b"x"),
        ("generations/../../outside", b"x"),
        (f"generations/{GENERATION}/../../../../outside", b"x"),
        (f"generations/{GENERATION}", b"x"),
        ("generations/name/manifest.json", b"x"),
        ("log/name.log", b"x"),
        (f"log/{GENERATION}.txt", b"x"),
        ("ID", b"x"),
        ("", b"x"),
        link("CURRENT", "/etc/passwd"),
        link(f"generations/{GENERATION}/a", "/"),
        sparse(f"generations/{GENERATION}/sparse"),
    ],
    ids=lambda entry: entry.name if isinstance(entry, tarfile.TarInfo) else entry[0] or "no name",
)
def test_entries_that_lead_elsewhere_are_refused(tmp_path: Path, entry: Any) -> None:
    inner = tmp_path / "a" / "b" / "c"
    inner.mkdir(parents=True)
    with pytest.raises(BackupInvalid, match="which no backup does"):
        restored(packed(entry, ("CURRENT", f"{GENERATION}\n".encode())), inner / "new")
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b", "c"]


def test_an_entry_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackupInvalid, match="'CURRENT', which no backup does"):
        restored(packed(("CURRENT", b"a"), ("CURRENT", b"b")), tmp_path / "new")


@pytest.mark.parametrize("headers", [{"GNU.sparse.size": "x"}, {"GNU.sparse.map": "a"}])
def test_a_header_that_cannot_be_read_is_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    info = tarfile.TarInfo("HISTORY")
    info.pax_headers = headers
    with pytest.raises(BackupInvalid, match="it is cut off, or no archive"):
        restored(packed(info, ("CURRENT", b"x")), tmp_path / "new")


@pytest.mark.parametrize("entries", [[], [("HISTORY", f"{GENERATION}\n".encode())]])
def test_generations_other_than_those_that_are_named_are_refused(tmp_path: Path, entries: Any) -> None:
    with pytest.raises(BackupInvalid, match="that its HISTORY and CURRENT name"):
        restored(packed(*entries, ("CURRENT", f"{GENERATION}\n".encode())), tmp_path / "new")


def test_no_archive_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"hello", b"\x28\xb5\x2f\xfd" + b"x" * 100):
        with pytest.raises(BackupInvalid, match="it is cut off, or no archive"):
            restored(content, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("file", ["embeddings.bin", "manifest.json", "log"])
def test_an_archive_whose_content_does_not_fit_leaves_nothing(
    active: GenerationStore, tmp_path: Path, file: str
) -> None:
    content, done = backed_up(active)
    entries = []
    with (
        pa.CompressedInputStream(cast(Any, BytesIO(content)), "zstd") as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        for member in tar:
            inner = tar.extractfile(member)
            assert inner is not None
            read = inner.read()
            if done.current in member.name and file in member.name:
                read = read[:-1] + bytes([read[-1] ^ 1])
            entries.append((member.name, read))
    with pytest.raises(GenerationCorrupt):
        restored(packed(*entries), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_directory_that_holds_something_is_left_alone(active: GenerationStore, tmp_path: Path) -> None:
    content, _ = backed_up(active)
    before = files(active.root)
    with pytest.raises(InvalidInput, match="is not an empty directory"):
        restored(content, active.root)
    assert files(active.root) == before
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidInput, match="is not an empty directory"):
        restored(content, tmp_path / "file")


def test_what_a_killed_restore_left_is_replaced(active: GenerationStore, tmp_path: Path) -> None:
    left = tmp_path / "new" / ".unfinished-0" / "generations"
    left.mkdir(parents=True)
    (left / "x").write_text("x")
    found = restored(backed_up(active)[0], tmp_path / "new")
    assert found.current() == active.current()
    assert not left.exists()


def test_an_interrupt_leaves_nothing(active: GenerationStore, tmp_path: Path) -> None:
    content, _ = backed_up(active)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore(BytesIO(content), tmp_path / "new", interrupt)
    assert not (tmp_path / "new").exists()
