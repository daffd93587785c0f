"""The update logs of a store, and the lock under which they are written.

    STORE/log/<generation>.log   the updates of a generation since it was built; it only grows
    STORE/log/write.lock         held while an update is written, and while CURRENT changes
    STORE/log/trial.lock         held while the generation on trial is given what it lacks

A generation of several parts has one log for all of them. Only the active generation is updated; what another one
receives when it becomes active says switch.py. Revisions grow over all generations: none is used twice.

A record of a log is

    length u32 | checksum u32 | crc32 of these 8 bytes u32 | length bytes

The bytes are the length of a JSON object (u32), the object, and vectors in the store's dtype. Behind these come the
rows of a second stage, if the model has one; the object says how many each candidate has. The first record holds the
subject: whose log it is. The checksum is a crc32 over the bytes that continues from the record before. So a record
does not fit if it was flipped, left out, moved or taken from another log.

What if the process dies here?

* While the file is created: there is none. It appears at once with its first record.
* While a record is appended: it is cut short, at the end of the file. It was acknowledged to nobody, so readers stop
  before it, and the next writer removes it. The crc32 of the first 8 bytes tells a record that is cut short from one
  whose length was damaged.
* After a record is written and before it is synced: it is there or not. If readers see it, it counts.

Everything else that does not fit is damage, and refused.
"""

import logging
import os
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import orjson

from polyrank.index_builder.errors import GenerationCorrupt
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.pool.documents import checked_id
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.locks import locked, try_locked
from polyrank.index_builder.vectors.local import DTYPES
from polyrank.model.durable import make_directory, write_atomically
from polyrank.model.inputs import open_input
from polyrank.model.representations import LateRows, Representations

_FORMAT = 1
_LENGTH = struct.Struct("<I")
_HEAD = struct.Struct("<III")
_READ_BYTES = 1 << 20
_SUFFIX = ".log"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose log it is: a generation, and what its vectors and the rows of its second stage are."""

    generation: str
    fingerprint: str
    dim: int
    dtype: str
    late: LateRows | None = None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "Subject":
        """Read the fields of a first record. Raises TypeError if they are others."""
        late = content.get("late")
        return cls(**{**content, "late": None if late is None else LateRows(**late)})

    def described(self) -> dict[str, Any]:
        """The fields of a first record: as they were before there was a second stage, where there is none."""
        return {name: value for name, value in asdict(self).items() if name != "late" or value is not None}


@dataclass(frozen=True, slots=True)
class Update:
    """One acknowledged change; deletions come before upserts."""

    revision: int  # grows from update to update, over all generations of a store
    upserts: Sequence[Candidate]  # candidates to add, or to put in the place of those with the same ids
    vectors: Representations  # what the model made of the upserts, in the store's dtype
    deletes: Sequence[str] = ()


class UpdateLogs:
    """The update logs under a store's root."""

    def __init__(self, root: Path) -> None:
        self._directory = root / "log"

    @contextmanager
    def writing(self, within_seconds: float | None = None) -> Iterator[None]:
        """Be the only one who writes updates or changes CURRENT, for the block; StoreBusy if others take longer."""
        make_directory(self._directory)
        with locked(self._directory / "write.lock", within_seconds=within_seconds):
            yield

    def of(self, manifest: Manifest) -> "UpdateLog":
        """The log of a generation, from its beginning; the file may not exist yet."""
        subject = Subject(manifest.id, manifest.model.fingerprint, manifest.dim, manifest.dtype, manifest.late)
        return UpdateLog(self.path(manifest.id), subject)

    def path(self, generation: str) -> Path:
        return self._directory / f"{generation}{_SUFFIX}"

    def exists(self, generation: str) -> bool:
        """Whether a generation has a log; every generation has one that is active, or was."""
        return self.path(generation).exists()

    def highest(self) -> int:
        """The highest revision ever used, as far as the logs that are left tell."""
        highest = 0
        for each in self.all():
            try:
                each.catch_up()
            except GenerationCorrupt as error:  # what comes before the damage was read
                warn_of_loss(error)
            highest = max(highest, each.revision, each.floor)
        return highest

    def was_active(self, manifest: Manifest) -> bool:
        """Whether the generation is the active one, or was. Raises GenerationCorrupt if its log is damaged."""
        own = self.of(manifest)
        own.catch_up()
        return own.was_active

    def receiving(self) -> AbstractContextManager[bool]:
        """Be the only one who gives a generation on trial what it lacks; yields whether nobody else does."""
        make_directory(self._directory)
        return try_locked(self._directory / "trial.lock")

    def keep_only(self, generations: Collection[str]) -> None:
        """Remove the logs of all other generations."""
        for path in self._directory.glob(f"*{_SUFFIX}"):
            if path.stem not in generations:
                path.unlink()

    def all(self, known_ids: Collection[str] = ()) -> "Iterator[UpdateLog]":
        """Every log whose first record is whole, but those of the generations `known_ids`."""
        for path in sorted(self._directory.glob(f"*{_SUFFIX}")):
            if path.stem in known_ids:
                continue
            try:
                yield UpdateLog.of_file(path)
            except FileNotFoundError:
                continue  # removed a moment ago
            except GenerationCorrupt as error:
                warn_of_loss(error)


def warn_of_loss(error: GenerationCorrupt) -> None:
    """Log what is damaged: the updates behind the damage are lost."""
    log.warning("updates are lost: %s", error)  # whole, because a builder's process shows no fields


class UpdateLog:
    """The log of one generation, read from its beginning, a piece at a time.

    One thread at a time may read on. One process at a time may append: the caller holds `UpdateLogs.writing`.

    Attributes:
        revision: of the last update read; 0 before the first.
        checksum: of the log up to the end of that update; 0 before the first. A revision may be used again after the
            log was restored from a backup, but hardly ever with the same checksum.
        floor: later updates have revisions above it.
        was_active: the generation is the active one, or was.
    """

    def __init__(self, path: Path, subject: Subject) -> None:
        self._path = path
        self.subject = subject
        self.revision = self.floor = self.checksum = 0
        self.was_active = False
        self._end = self._sum = 0  # where the last record read ends, and its checksum
        self._began = self._end, self._sum  # the same before the last `read`
        self._unsynced: int | None = None  # from here on, what was written may not be on the disk

    @property
    def size(self) -> int:
        """How many bytes of the file have been read."""
        return self._end

    @classmethod
    def of_file(cls, path: Path) -> "UpdateLog":
        """The log in a file, with the subject of its first record; GenerationCorrupt if that is damaged or misnamed."""
        log = cls(path, Subject(path.stem, "", 0, "float16"))
        with open_input(path) as file:
            content, _ = log._next(file) or ({}, b"")
        try:
            content.pop("format", None)
            subject = Subject.of(content)
        except TypeError:
            subject = None
        if subject is None or subject.generation != path.stem:
            raise log._damaged("does not say whose it is")
        return cls(path, subject)

    def read(self) -> Iterator[Update]:
        """Yield the updates that were appended since the last call; if reading ends early, the next call repeats them.

        Raises:
            GenerationCorrupt: the log is damaged here, or it is another generation's; what comes before is yielded.
        """
        self._began = self._end, self._sum
        try:
            yield from self._appended()
        except BaseException:
            self.unread()
            raise

    def unread(self) -> None:
        """Let the next `read` yield again what the last one yielded."""
        self._end, self._sum = self._began

    def catch_up(self) -> None:
        """Read to the end, for the attributes; errors as `read`."""
        for _ in self.read():
            pass

    def _appended(self) -> Iterator[Update]:
        try:
            file = open_input(self._path)
        except FileNotFoundError:
            if self._end:
                raise self._damaged("is gone") from None
            return
        with file:
            if file.seek(0, os.SEEK_END) < self._end:
                raise self._damaged("has lost its end")
            file.seek(self._end)
            while (body := self._next(file)) is not None:
                if (update := self._understood(*body)) is not None:
                    yield update

    def _next(self, file: Any) -> tuple[dict[str, Any], memoryview] | None:
        """The next record's JSON and the bytes behind it; None at the end, or before a record that is cut short."""
        at, head = self._end, file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return None
        length, expected, head_sum = _HEAD.unpack(head)
        if crc32(head[:8]) != head_sum:
            raise self._damaged(f"is damaged at byte {at}")
        body = _read(file, length)
        if len(body) < length:
            return None
        checksum = crc32(body, self._sum)
        if checksum != expected:
            raise self._damaged(f"is damaged at byte {at}, or not of this place")
        try:
            (size,) = _LENGTH.unpack_from(body)
            content: dict[str, Any] = orjson.loads(body[_LENGTH.size : _LENGTH.size + size])
        except (ValueError, struct.error) as error:
            raise self._foreign() from error
        self._end, self._sum = at + _HEAD.size + length, checksum
        return content, memoryview(body)[_LENGTH.size + size :]

    def _understood(self, content: dict[str, Any], behind: memoryview) -> Update | None:
        """The update in a record; None if the record says something of the log itself."""
        try:
            if "format" in content:
                if content != _described(self.subject):
                    raise self._foreign()
            elif "floor" in content:
                self.floor = max(self.floor, content["floor"])
            elif "active" in content:
                self.was_active = True
            else:
                upserts = [Candidate(checked_id(candidate_id), *row) for candidate_id, *row in content["upserts"]]
                vectors = self._vectors(behind, len(upserts), content.get("rows"))
                self.revision, self.checksum = int(content["revision"]), self._sum
                return Update(self.revision, upserts, vectors, content["deletes"])
        except (KeyError, TypeError, ValueError) as error:  # whole, but not written by this version
            raise self._foreign() from error
        return None

    def _vectors(self, behind: memoryview, count: int, rows: Sequence[int] | None) -> Representations:
        """What the model made of so many candidates with these numbers of rows; ValueError if it does not fit."""
        values, late = np.frombuffer(behind, DTYPES[self.subject.dtype]), self.subject.late
        if late is None:
            return Representations(values.reshape(count, self.subject.dim))
        counts, end = np.array(rows or [], np.int64), count * self.subject.dim
        first = values[:end].reshape(count, self.subject.dim)
        representations = Representations(first, values[end:].reshape(-1, late.dim), counts)
        if not representations.fits(late):
            raise ValueError("the rows do not fit the candidates")
        return representations

    def create(self) -> None:
        """Make the file if there is none: an active generation has a log, even an empty one."""
        if not self._end and not self._path.exists():
            make_directory(self._path.parent)
            write_atomically(self._path, _record(_described(self.subject), b"", 0)[0])

    def append(self, *updates: Update) -> None:
        """Put updates on the disk. The next `read` yields them, as it does for every reader.

        Raises:
            ValueError: an id is none.
            GenerationCorrupt: the log is damaged.
            OSError: nothing was appended; or everything was, and it may not be on the disk yet.
        """
        self._append(*map(self._described_update, updates))

    def _described_update(self, update: Update) -> tuple[dict[str, Any], bytes]:
        rows = [[checked_id(candidate.id), candidate.text, candidate.metadata] for candidate in update.upserts]
        content = {"revision": update.revision, "upserts": rows, "deletes": list(update.deletes)}
        if update.upserts and not update.vectors.fits(self.subject.late):
            raise ValueError("the rows of the second stage are not those that the generation's model makes")
        first, late, counts = update.vectors
        behind = np.ascontiguousarray(first, DTYPES[self.subject.dtype]).tobytes()
        if late is None or counts is None:
            return content, behind
        behind += np.ascontiguousarray(late, DTYPES[self.subject.dtype]).tobytes()
        return {**content, "rows": counts.tolist()}, behind

    def raise_floor(self, floor: int) -> None:
        """Make all later updates have revisions above `floor`; errors as `append`."""
        self.catch_up()
        if floor > max(self.floor, self.revision):
            self._append(({"floor": floor}, b""))

    def mark_active(self) -> None:
        """Note that the generation is the active one, or was; errors as `append`."""
        self.catch_up()
        if not self.was_active:
            self._append(({"active": True}, b""))

    def _append(self, *contents: tuple[Mapping[str, Any], bytes]) -> None:
        self.create()
        ahead = UpdateLog(self._path, self.subject)  # the position of `read` stays
        ahead._end, ahead._sum = self._end, self._sum
        ahead.catch_up()
        end, total, records = ahead._end, ahead._sum, []
        for content, behind in [*([] if end else [(_described(self.subject), b"")]), *contents]:
            record, total = _record(content, behind, total)
            records.append(record)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, end)  # a record that is cut short, if there is one
            try:
                _write(descriptor, b"".join(records), end)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(descriptor, end)
                raise
            self._sync(descriptor, end)
        finally:
            os.close(descriptor)

    def _sync(self, descriptor: int, end: int) -> None:
        """Put what was written from `end` on the disk. If that fails it stays: somebody may have read it already.

        The kernel reports a failed write once, then takes the pages for written. So the next call writes them again.
        """
        start = end if self._unsynced is None else min(self._unsynced, end)
        self._unsynced = start
        if start < end:
            _write(descriptor, os.pread(descriptor, end - start, start), start)
        os.fdatasync(descriptor)
        self._unsynced = None

    def _foreign(self) -> GenerationCorrupt:
        return self._damaged("is of another generation, or of another version of polyrank")

    def _damaged(self, what: str) -> GenerationCorrupt:
        return GenerationCorrupt(self.subject.generation, f"its update log {self._path.name} {what}")


def _described(subject: Subject) -> dict[str, Any]:
    return {"format": _FORMAT, **subject.described()}


def _record(content: Mapping[str, Any], behind: bytes, total: int) -> tuple[bytes, int]:
    """The bytes of a record that follows the one with checksum `total`, and its own checksum."""
    described = orjson.dumps(content)
    body = _LENGTH.pack(len(described)) + described + behind
    total = crc32(body, total)
    lengths = _HEAD.pack(len(body), total, 0)[:8]
    return lengths + _LENGTH.pack(crc32(lengths)) + body, total


def _read(file: Any, length: int) -> bytes:
    """Read so many bytes, or to the end, piece by piece: a damaged length must not take memory ahead."""
    pieces = []
    while length and (piece := file.read(min(length, _READ_BYTES))):
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


def _write(descriptor: int, content: bytes, at: int) -> None:
    rest = memoryview(content)
    while rest:
        written = os.pwrite(descriptor, rest, at)
        at += written
        rest = rest[written:]
