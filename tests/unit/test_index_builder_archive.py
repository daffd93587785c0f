"""A backup is the store at one moment, and a restore gives all of it or nothing."""

import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from fakes import HashEncoder, pool

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.errors import BackupInvalid, GenerationCorrupt, GenerationNotFound
from polyrank.index_builder.generation.manifest import FORMAT_VERSION, sealed, unsealed
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store import archive
from polyrank.index_builder.store.archive import Backup, back_up, restore
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.update_log import Update
from polyrank.model.errors import InvalidInput, Shortage
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


def unpacked(content: bytes) -> list[tuple[str, bytes]]:
    entries = []
    with (
        pa.CompressedInputStream(cast(Any, BytesIO(content)), "zstd") as stream,
        tarfile.open(fileobj=stream, mode="r|") as tar,
    ):
        for member in tar:
            inner = tar.extractfile(member)
            entries.append((member.name, inner.read()))
    return entries


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
    assert (restored(content, tmp_path / "new").current(), done.revision) == (third, 2)
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
def test_an_archive_that_is_cut_off_leaves_nothing(active: GenerationStore, tmp_path, share: float, made: bool) -> None:
    content, _ = backed_up(active)
    if made:
        (tmp_path / "new").mkdir()
    with pytest.raises(BackupInvalid, match="it is cut off"):
        restored(content[: int(share * len(content))], tmp_path / "new")
    assert (tmp_path / "new").exists() == made
    assert not made or list((tmp_path / "new").iterdir()) == []


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
        ("../outside", b"x"), ("/tmp/outside", b"x"), ("generations/../../outside", b"x"),
        (f"generations/{GENERATION}/../../../../outside", b"x"), (f"generations/{GENERATION}", b"x"),
        ("generations/name/manifest.json", b"x"), ("log/name.log", b"x"),
        (f"log/{GENERATION}.txt", b"x"), ("ID", b"x"), ("", b"x"), link("CURRENT", "/etc/passwd"),
        link(f"generations/{GENERATION}/a", "/"), sparse(f"generations/{GENERATION}/sparse"),
    ],
    ids=lambda entry: entry.name if isinstance(entry, tarfile.TarInfo) else entry[0] or "no name",
)  # fmt: skip
def test_entries_that_lead_elsewhere_are_refused(tmp_path: Path, entry: Any) -> None:
    inner = tmp_path / "a" / "b" / "c"
    inner.mkdir(parents=True)
    with pytest.raises(BackupInvalid, match="which no backup does"):
        restored(packed(entry, ("CURRENT", f"{GENERATION}\n".encode())), inner / "new")
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b", "c"]


def headed(**headers: str) -> bytes:
    info = tarfile.TarInfo("HISTORY")
    info.pax_headers = {name.replace("_", "."): value for name, value in headers.items()}
    return packed(info, ("CURRENT", b"x"))


CURRENT = ("CURRENT", f"{GENERATION}\n".encode())
NONE = "it is cut off, or no archive"


@pytest.mark.parametrize(("content", "why"), [
    (b"", NONE), (b"hello", NONE), (b"\x28\xb5\x2f\xfd" + b"x" * 100, NONE),
    (packed(("HISTORY", b"")), "^it is cut off$"),
    (packed(("HISTORY", b""), ("HISTORY", b"")), "'HISTORY', which no backup does"),
    (packed(("HISTORY", b""), (f"log/{GENERATION}.log", b"")), rf"'log/{GENERATION}\.log', which no backup does"),
    (packed(CURRENT), "that its HISTORY and CURRENT name"),
    (packed(("HISTORY", CURRENT[1]), CURRENT), "that its HISTORY and CURRENT name"),
    (headed(GNU_sparse_size="x"), NONE), (headed(GNU_sparse_map="a"), NONE),
], ids=range(10))  # fmt: skip
def test_what_is_no_whole_backup_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    with pytest.raises(BackupInvalid, match=why):
        restored(content, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("file", ["embeddings.bin", "manifest.json", "log"])
def test_an_archive_whose_content_does_not_fit_leaves_nothing(active: GenerationStore, tmp_path, file: str) -> None:
    content, done = backed_up(active)
    entries = []
    for name, read in unpacked(content):
        is_other = done.current in name and file in name
        entries.append((name, read[:-1] + bytes([read[-1] ^ 1]) if is_other else read))
    with pytest.raises(GenerationCorrupt):
        restored(packed(*entries), tmp_path / "new")
    assert not (tmp_path / "new").exists()


Entries = list[tuple[str, bytes]]


def zeros(entries: Entries) -> Entries:
    """A log of few bytes that unfolds to many."""
    at = next(at for at, (name, _) in enumerate(entries) if name.startswith("log/"))
    return [*entries[:at], (entries[at][0], bytes(8 << 20)), *entries[at + 1 :]]


def renamed(deep: bool) -> Callable[[Entries], Entries]:
    """The first manifest names a file that lies deep, or more files than a generation has."""

    def rename(entries: Entries) -> Entries:
        name, content = entries[0]
        body = unsealed(content)
        entry = body["files"]["embeddings.bin"]
        more = ["d/" * 1500 + "file"] if deep else [str(number) for number in range(101)]
        body["files"] |= dict.fromkeys(more, entry)
        sealed_again = sealed({"format_version": FORMAT_VERSION, **body})
        return [(name, sealed_again), *((f"{name.rpartition('/')[0]}/{each}", b"x") for each in more[:2]), *entries[1:]]

    return rename


def replaced(wanted: str, content: Callable[[bytes], bytes]) -> Callable[[Entries], Entries]:
    return lambda entries: [(name, content(read) if name.endswith(wanted) else read) for name, read in entries]


HOSTILE: dict[str, tuple[Callable[[Entries], Entries], str]] = {
    "zeros in a log": (zeros, "unfolds to more than 500 times its size"),
    "zeros that no manifest names": (
        lambda entries: [entries[0], (f"{entries[0][0].rpartition('/')[0]}/zeros", bytes(8 << 20)), *entries[1:]],
        "zeros', which no backup does",
    ),
    "a file 1,500 folders deep": (
        lambda entries: [(f"{entries[0][0].rpartition('/')[0]}/{'d/' * 1500}file", b"x"), *entries],
        "which no backup does",
    ),
    "a manifest with a file 1,500 folders deep": (renamed(deep=True), "'d/d/d/.*', which no backup does"),
    "a manifest with many files": (renamed(deep=False), "100 are the most"),
    "empty files": (
        lambda entries: [*((f"{entries[0][0].rpartition('/')[0]}/{number}", b"") for number in range(500)), *entries],
        "/0', which no backup does",
    ),
    "a larger file": (replaced("embeddings.bin", lambda read: read + b"x"), "embeddings.bin has .* bytes, and its man"),
    "a file that is missing": (lambda entries: [entries[0], *entries[2:]], "which no backup does"),
    "a million lines of HISTORY": (
        replaced("HISTORY", lambda read: read * 1_000_000),
        "'HISTORY', which no backup does",
    ),
    "101 lines of HISTORY": (replaced("HISTORY", lambda read: read * 101), "that its HISTORY and CURRENT name"),
    "other lines in HISTORY": (
        replaced("HISTORY", lambda read: read + b"hello\n"),
        "that its HISTORY and CURRENT name",
    ),
    "a HISTORY without an end": (replaced("HISTORY", lambda read: read[:-1]), "that its HISTORY and CURRENT name"),
    "two lines of CURRENT": (replaced("CURRENT", lambda read: read * 2), "that its HISTORY and CURRENT name"),
    "an entry behind CURRENT": (lambda entries: [*entries, ("HISTORY", b"")], "it goes on behind CURRENT"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_an_archive_of_strangers_is_refused_before_it_is_unfolded(
    active: GenerationStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(archive, "_MOST_UNFOLDED", 1 << 20)
    monkeypatch.setattr(archive, "_MOST_FILES", 100)
    change, why = HOSTILE[case]
    seen: list[int] = []

    def see(_: str, done: int, total: int | None) -> None:
        seen.append(sum(path.stat().st_size for path in (tmp_path / "new").rglob("*") if path.is_file()))

    entries = unpacked(backed_up(active)[0])
    with pytest.raises((BackupInvalid, GenerationCorrupt), match=why) as caught:
        restore(BytesIO(packed(*change(entries))), tmp_path / "new", see)
    assert len(str(caught.value)) < 400
    assert max(seen, default=0) < 4 << 20
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("behind", [
    pytest.param(b"hello", id="bytes"),
    pytest.param(packed(("CURRENT", b"")), id="another archive"),
    pytest.param(b"\0" * 100, id="zeros"),
])  # fmt: skip
def test_what_lies_behind_an_archive_is_refused(active: GenerationStore, tmp_path: Path, behind: bytes) -> None:
    with pytest.raises(BackupInvalid, match=r"it goes on behind CURRENT, its end|it is cut off, or no archive"):
        restored(backed_up(active)[0] + behind, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_archive_for_which_there_is_no_room_is_refused_before_it_is_unfolded(
    active: GenerationStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, _ = backed_up(active)
    monkeypatch.setattr(archive.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(Shortage, match=r"takes \d+ MiB on disk, and 0 MiB are free"):
        restored(content, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def described(count: int, size: int) -> bytes:
    """Headers that describe an entry, one after the other; `tarfile` reads each into memory, and the next within it."""
    info = tarfile.TarInfo("a description")
    info.type, info.size = tarfile.XHDTYPE, size
    content = b"%d comment=" % size
    one = info.tobuf(tarfile.USTAR_FORMAT) + (content + b"x" * size)[: size - 1] + b"\n"
    to = Kept()
    with pa.CompressedOutputStream(cast(Any, to), "zstd") as stream:
        stream.write((one + b"\0" * (-len(one) % 512)) * count + b"\0" * 1024)
    return to.content


@pytest.mark.parametrize(("count", "size"), [(1, 1 << 20), (5000, 100)])
def test_headers_of_headers_take_no_memory(tmp_path: Path, count: int, size: int) -> None:
    with pytest.raises(BackupInvalid, match=r"describes an entry by|it is cut off, or no archive") as caught:
        restored(described(count, size), tmp_path / "new")
    assert len(str(caught.value)) < 400


def sparse_without_end(info: tarfile.TarInfo) -> bytes:
    """A header of an old sparse file, which says that its list goes on in the next block."""
    info.type = tarfile.GNUTYPE_SPARSE
    made = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    made[482] = 1
    made[148:156] = b"%06o\0 " % (sum(made[:148]) + 8 * ord(" ") + sum(made[156:]))
    return bytes(made)


def newer_sparse_without_end(info: tarfile.TarInfo) -> bytes:
    info.size = 1 << 30
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1"}
    return info.tobuf(tarfile.PAX_FORMAT) + b"99999999\n".ljust(512, b"1")


@pytest.mark.parametrize(
    ("begin", "block"),
    [(sparse_without_end, (b"00000000001\0" * 42) + b"\1" * 8), (newer_sparse_without_end, b"1\n" * 256)],
)
@pytest.mark.parametrize(("blocks", "why"), [(600, "describes an entry by more than"), (2, "cut off, or no archive")])
def test_a_header_without_end_is_not_read_on(tmp_path: Path, begin: Any, block: bytes, blocks: int, why: str) -> None:
    to = Kept()
    with pa.CompressedOutputStream(cast(Any, to), "zstd") as stream:
        stream.write(begin(tarfile.TarInfo("a")) + block * blocks)
    with pytest.raises(BackupInvalid, match=why):
        restored(to.content, tmp_path / "new")


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
    assert restored(backed_up(active)[0], tmp_path / "new").current() == active.current()
    assert not left.exists()


def test_an_interrupt_leaves_nothing(active: GenerationStore, tmp_path: Path) -> None:
    content, _ = backed_up(active)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        restore(BytesIO(content), tmp_path / "new", interrupt)
    assert not (tmp_path / "new").exists()
