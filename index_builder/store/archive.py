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
from polyrank.index_builder.generation.manifest import MANIFEST_FILE, Manifest
from polyrank.index_builder.layout import GENERATIONS, is_time_id
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.pointer import HISTORY_LENGTH
from polyrank.model.checkpoint.files import require_free
from polyrank.model.durable import filling
from polyrank.model.errors import Shortage
from polyrank.model.inputs import open_input

_CURRENT, _HISTORY, _LOGS = "CURRENT", "HISTORY", "log"
_OTHERS = f"its generations are not those that its {_HISTORY} and {_CURRENT} name"

# What an archive may hold that strangers wrote. Vectors shrink by a tenth, texts to a fourth; zeros to a 30,000th.
_MOST_TIMES, _MOST_UNFOLDED = 500, 64 << 20  # times what was read of it, and so many bytes more
_MOST_READ, _MOST_DESCRIBED = 16 << 20, 64 << 10  # bytes of what is read into memory: a manifest, and a header
_MOST_BETWEEN = 4 * _MOST_DESCRIBED  # bytes of all headers of an entry
_MOST_FILES, _MOST_DEEP, _MOST_LETTERS = 20_000, 8, 200  # of a generation
_CHUNK_BYTES = 1 << 20

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
        bytes_read, total = 0, sum(entry.size for entry in entries)
        with pa.CompressedOutputStream(cast(Any, to), "zstd") as packed, tarfile.open(fileobj=packed, mode="w|") as tar:
            for entry in entries:
                reader: Any = _Digested(entry.file)
                tar.addfile(_described(entry.name, entry.size), reader)
                if entry.sha256 not in (None, reader.digest.hexdigest()):
                    why = f"the sha256 of {Path(entry.name).name} differs from the manifest's"
                    raise GenerationCorrupt(entry.generation, why)
                progress("back up", bytes_read := bytes_read + entry.size, total)
            for name, ids in ((_HISTORY, history), (_CURRENT, [current])):
                content = _lines(ids)
                tar.addfile(_described(name, len(content)), BytesIO(content))
    return Backup(current, generations, revisions[-1])


def _generations(history: Sequence[str], current: str) -> list[str]:
    """Return each generation of a history once, the active one last: a history names one twice that came back."""
    return [*dict.fromkeys(each for each in history if each != current), current]


def _entries(store: GenerationStore, generation: str, stack: ExitStack) -> Iterator[_Entry]:
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


def restore(source: BinaryIO, root: Path, progress: Progress) -> Backup:
    """Make a store of an archive in a new or empty directory; it appears there when every byte was checked.

    Nothing is written but what a manifest that came before names, with the size that it says.

    Raises:
        InvalidInput: the directory holds something.
        BackupInvalid: it is no archive of a store, or is cut off; nothing is left of it.
        GenerationCorrupt: a generation in it is damaged; likewise.
    """
    require_free(root)
    with filling(root, last=_CURRENT) as inside:
        folded = _Folded(source)
        try:
            with pa.CompressedInputStream(cast(Any, folded), "zstd") as packed:
                unfolded = _Unfolded(cast(IO[bytes], packed))
                with tarfile.open(fileobj=cast(IO[bytes], unfolded), mode="r|", tarinfo=_Header) as tar:
                    history, current = _unpack(tar, folded, unfolded, inside, progress)
                    behind = cast(IO[bytes], tar.fileobj).read(2 * tarfile.RECORDSIZE)
                if len(behind) >= 2 * tarfile.RECORDSIZE or behind.strip(b"\0"):
                    raise BackupInvalid(f"it goes on behind {_CURRENT}, its end")
        except (tarfile.TarError, ValueError, LookupError, RecursionError) as error:  # a header's numbers are none
            raise BackupInvalid(f"it is cut off, or no archive: {error}") from error
        except OSError as error:
            if error.errno is not None:  # of the system, not of the decompressor
                raise
            raise BackupInvalid(f"it is cut off, or no archive: {error}") from error
        store, generations = GenerationStore(inside), _generations(history, current)
        for each in generations:
            store.verify(each)
        _, revision = store.updated(current)
    return Backup(current, generations, revision)


class _Folded:
    """The compressed archive, and how much of it was read: few bytes may unfold to any number."""

    def __init__(self, source: BinaryIO) -> None:
        self._source, self._read, self._unfolded, self.closed = source, 0, 0, False

    def read(self, size: int) -> bytes:
        content = self._source.read(size)
        self._read += len(content)
        return content

    def close(self) -> None:
        """Leave it open: whoever opened it closes it."""
        self.closed = True

    def unfold(self, size: int) -> None:
        """Count what is about to be written; raises BackupInvalid where that is too much for what was read."""
        self._unfolded += size
        if self._unfolded > _MOST_UNFOLDED + _MOST_TIMES * self._read:
            raise BackupInvalid(f"it unfolds to more than {_MOST_TIMES} times its size")


class _Unfolded:
    """The archive as `tarfile` reads it, which may take no more than is left to read: a header may have no end."""

    def __init__(self, packed: IO[bytes]) -> None:
        self._packed, self.left = packed, _MOST_BETWEEN

    def read(self, size: int) -> bytes:
        content = self._packed.read(size)
        self.left -= len(content)
        if self.left < 0:
            raise BackupInvalid(f"it describes an entry by more than {_MOST_BETWEEN} bytes, which no backup does")
        return content


class _Header(tarfile.TarInfo):
    """A header of the archive; `tarfile` reads the content of those that describe others into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        header = super().frombuf(buf, encoding, errors)
        if not header.isreg() and header.size > _MOST_DESCRIBED:
            raise BackupInvalid(f"{header.name[:80]!r} describes an entry by {header.size} bytes, which no backup does")
        return header


class _Contents:
    """What has come of an archive, and what may come next."""

    def __init__(self, inside: Path) -> None:
        self.current: str | None = None  # the active generation; None: CURRENT has not come
        self._inside, self._generations = inside, set[str]()
        self._history: list[str] | None = None
        self._sizes: dict[str, int] = {}  # files of the last generation that have not come, and their bytes
        self._log: str | None = None  # of that generation

    @property
    def history(self) -> list[str]:
        return self._history or []

    def admit(self, name: str, size: int, content: IO[bytes]) -> IO[bytes]:
        """Return the content of what comes, if it may be written; raises BackupInvalid, GenerationCorrupt, Shortage."""
        if name in self._sizes:
            if size != self._sizes.pop(name):
                raise GenerationCorrupt(name.split("/")[1], f"{name} has {size} bytes, and its manifest says others")
            return content
        if not self._sizes and name == self._log:
            self._log = None
            return content
        if self._sizes or size > _MOST_READ:
            raise _strange(name)
        read = content.read()
        if name == _HISTORY and self._history is None:
            self._history = _ids(read)
        elif name == _CURRENT:
            current = _ids(read)
            if len(current) != 1 or {*self.history, *current} != self._generations:
                raise BackupInvalid(_OTHERS)
            self.current = current[0]
        elif (generation := _generation_of(name)) is not None and generation not in self._generations:
            self._generations.add(generation)
            if len(self._generations) > HISTORY_LENGTH + 1:
                raise BackupInvalid(f"it holds more than {HISTORY_LENGTH + 1} generations")
            self._sizes = _sizes(Manifest.from_json(read, generation), self._inside)
            self._log = f"{_LOGS}/{generation}.log"
        else:
            raise _strange(name)
        return BytesIO(read)


def _unpack(
    tar: tarfile.TarFile, folded: _Folded, unfolded: _Unfolded, inside: Path, progress: Progress
) -> tuple[list[str], str]:
    """Write what an archive holds, up to CURRENT; returns its history and the active generation."""
    bytes_written, contents = 0, _Contents(inside)
    for member in tar:
        is_plain = member.isreg() and not member.issparse()  # a sparse file unfolds to any size
        content = tar.extractfile(member) if is_plain else None
        if content is None:
            raise _strange(member.name)
        unfolded.left = member.size + _MOST_BETWEEN
        admitted, target = contents.admit(member.name, member.size, content), inside / member.name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            while chunk := admitted.read(_CHUNK_BYTES):
                folded.unfold(len(chunk))
                file.write(chunk)
        progress("restore", bytes_written := bytes_written + member.size, None)
        if contents.current is not None:
            return contents.history, contents.current
    raise BackupInvalid("it is cut off")


def _strange(name: str) -> BackupInvalid:
    return BackupInvalid(f"it holds {name[:80]!r}, which no backup does there")


def _generation_of(name: str) -> str | None:
    """Return the generation whose manifest this is; None: it is none."""
    folder, _, rest = name.partition("/")
    generation, _, file = rest.partition("/")
    return generation if folder == GENERATIONS and file == MANIFEST_FILE and is_time_id(generation) else None


def _ids(content: bytes) -> list[str]:
    ids = content.decode("ascii").splitlines()
    if len(ids) > HISTORY_LENGTH or content != _lines(ids):
        raise BackupInvalid(_OTHERS)
    return ids


def _lines(ids: Sequence[str]) -> bytes:
    return "".join(f"{each}\n" for each in ids).encode()


def _sizes(manifest: Manifest, inside: Path) -> dict[str, int]:
    """Return the files that a manifest names, and their bytes; none leads elsewhere, and there is room for them."""
    if len(manifest.files) > _MOST_FILES:
        raise BackupInvalid(f"generation {manifest.id} has {len(manifest.files)} files; {_MOST_FILES} are the most")
    folders: set[str] = set()
    for name in manifest.files:
        parts = name.split("/")
        folders |= {"/".join(parts[:end]) for end in range(1, min(len(parts), _MOST_DEEP))}
        is_long = len(parts) > _MOST_DEEP or any(len(part) > _MOST_LETTERS for part in parts)
        if is_long or not {"", ".", ".."}.isdisjoint(parts) or name == MANIFEST_FILE:
            raise _strange(name)
    if both := folders.intersection(manifest.files):
        raise _strange(min(both))
    needed, free = sum(entry.bytes for entry in manifest.files.values()), shutil.disk_usage(inside).free
    if needed > free:
        raise Shortage(f"generation {manifest.id} takes {needed >> 20} MiB on disk, and {free >> 20} MiB are free")
    return {f"{GENERATIONS}/{manifest.id}/{name}": entry.bytes for name, entry in manifest.files.items()}
