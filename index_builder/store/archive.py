"""A backup of a store: a tar archive, compressed with zstd, which is written and read as a stream.

    generations/<id>/    the active generation, and those that rollbacks reach
    log/<id>.log         their updates, up to the moment of the backup
    HISTORY
    CURRENT              comes last: an archive without it was cut off

A restored store is a store of its own: its locks, its name in Redis, its jobs and its lists of bad rows are new.
"""

import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import pyarrow as pa

from polyrank.index_builder.errors import BackupInvalid, GenerationCorrupt
from polyrank.index_builder.generation.manifest import MANIFEST_FILE
from polyrank.index_builder.layout import GENERATIONS, is_time_id
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.checkpoint.files import require_free
from polyrank.model.durable import filling
from polyrank.model.inputs import open_input

_CURRENT, _HISTORY, _LOGS = "CURRENT", "HISTORY", "log"

Progress = Callable[[str, int, int | None], object]


@dataclass(frozen=True, slots=True)
class Backup:
    """What an archive holds."""

    current: str
    generations: list[str]
    revision: int


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file to back up; `sha256` is what the manifest says of it, None where the content itself can be checked."""

    name: str
    file: IO[bytes]
    size: int
    generation: str
    sha256: str | None = None


def back_up(store: GenerationStore, to: BinaryIO, progress: Progress) -> Backup:
    """Write a store's archive and close the stream; servers, updates, builds and collections go on meanwhile.

    All files are opened at one moment, at which nobody may change the store. Nothing that is removed later is lost
    then: an open file stays. Every byte is checked. Raises GenerationCorrupt if a generation or its log is damaged.
    """
    store.active()  # or there is nothing to lock
    with ExitStack() as stack:
        with store.unchanged():
            current, history = store.active().id, store.history()
            generations = _generations(history, current)
            entries = [entry for each in generations for entry in _entries(store, each, stack)]
        ends = {entry.generation: entry.size for entry in entries if entry.name.startswith(f"{_LOGS}/")}
        revisions = [_revision(store, each, ends.get(each, 0)) for each in generations]
        done, total = 0, sum(entry.size for entry in entries)
        with pa.CompressedOutputStream(cast(Any, to), "zstd") as packed, tarfile.open(fileobj=packed, mode="w|") as tar:
            for entry in entries:
                _add(tar, entry)
                progress("back up", done := done + entry.size, total)
            for name, ids in ((_HISTORY, history), (_CURRENT, [current])):
                content = "".join(f"{each}\n" for each in ids).encode()
                tar.addfile(_described(name, len(content)), BytesIO(content))
    return Backup(current, generations, revisions[-1])


def _generations(history: Sequence[str], current: str) -> list[str]:
    """Return each generation of a history once, the active one last: a history names one twice that came back."""
    return [*dict.fromkeys(each for each in history if each != current), current]


def _entries(store: GenerationStore, generation: str, stack: ExitStack) -> Iterator[_Entry]:
    """Open the files of a generation and its log."""
    path, manifest = store.path(generation), store.manifest(generation)
    expected = {MANIFEST_FILE: None, **{name: entry.sha256 for name, entry in manifest.files.items()}}
    for name, digest in expected.items():
        try:
            file = stack.enter_context(open_input(path / name))
        except FileNotFoundError:
            raise GenerationCorrupt(generation, f"{name} is missing") from None
        size = os.fstat(file.fileno()).st_size
        yield _Entry(f"{GENERATIONS}/{generation}/{name}", file, size, generation, digest)
    if store.updates.exists(generation):
        file = stack.enter_context(open_input(store.updates.path(generation)))
        yield _Entry(f"{_LOGS}/{generation}.log", file, os.fstat(file.fileno()).st_size, generation)


def _revision(store: GenerationStore, generation: str, end: int) -> int:
    """Check the part of an update log that is backed up; returns the revision at its end."""
    manifest = store.manifest(generation)
    log, revision = store.updates.of(manifest), manifest.revision
    for update in log.read():
        if log.size > end:
            break
        revision = max(revision, update.revision)
    return revision


def _described(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info


class _Digested:
    """A file that is read once, and the digest of what was read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest = file, sha256()

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        self.digest.update(content)
        return content


def _add(tar: tarfile.TarFile, entry: _Entry) -> None:
    reader: Any = _Digested(entry.file)
    tar.addfile(_described(entry.name, entry.size), reader)
    if entry.sha256 not in (None, reader.digest.hexdigest()):
        raise GenerationCorrupt(entry.generation, f"the sha256 of {Path(entry.name).name} differs from the manifest's")


def restore(source: BinaryIO, root: Path, progress: Progress) -> Backup:
    """Make a store of an archive in a new or empty directory; it appears there when every byte was checked.

    Raises:
        InvalidInput: the directory holds something.
        BackupInvalid: it is no archive of a store, or is cut off; nothing is left of it.
        GenerationCorrupt: a generation in it is damaged; likewise.
    """
    require_free(root)
    with filling(root, last=_CURRENT) as inside:
        _unpack(source, inside, progress)
        store = GenerationStore(inside)
        current = store.current()
        if current is None or {*store.history(), current} != {*store.ids()}:
            raise BackupInvalid("its generations are not those that its HISTORY and CURRENT name")
        for each in (generations := _generations(store.history(), current)):
            store.verify(each)
        _, revision = store.updated(current)
    return Backup(current, generations, revision)


def _unpack(source: BinaryIO, inside: Path, progress: Progress) -> None:
    done, name = 0, ""
    try:
        with (
            pa.CompressedInputStream(cast(Any, source), "zstd") as packed,
            tarfile.open(fileobj=packed, mode="r|") as tar,
        ):
            for member in tar:
                name = member.name
                is_plain = member.isreg() and not member.issparse()  # a sparse file unfolds to any size
                target, content = inside / name, tar.extractfile(member) if is_plain else None
                if content is None or not _is_known(name) or target.exists():
                    raise BackupInvalid(f"it holds {name[:80]!r}, which no backup does")
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    shutil.copyfileobj(content, file)
                progress("restore", done := done + member.size, None)
    except (tarfile.TarError, ValueError) as error:  # a header's numbers are no numbers
        raise BackupInvalid(f"it is cut off, or no archive: {error}") from error
    except OSError as error:
        if error.errno is not None:  # of the system, not of the decompressor
            raise
        raise BackupInvalid(f"it is cut off, or no archive: {error}") from error
    if name != _CURRENT:
        raise BackupInvalid("it is cut off")


def _is_known(name: str) -> bool:
    """Whether a backup may hold a file of this name; none leads out of the directory."""
    folder, _, rest = name.partition("/")
    if folder == _LOGS:
        return rest.endswith(".log") and is_time_id(rest.removesuffix(".log"))
    generation, _, file = rest.partition("/")
    if folder == GENERATIONS:
        return is_time_id(generation) and not {"", ".", ".."}.intersection(file.split("/"))
    return name in (_HISTORY, _CURRENT)
