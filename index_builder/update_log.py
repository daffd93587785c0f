"""The updates of one generation since it was built: the file `STORE/log/<generation>.log`, which is only appended to.

A record is

    length u32 | checksum u32 | crc32 of these 8 bytes u32 | length bytes

whose checksum is a crc32 over the bytes that goes on from the record before: a record that was flipped, left out, put
elsewhere or taken from another log does not fit. The bytes are a JSON object after its own length (u32) and, behind it,
vectors in the store's dtype. The first record says whose log it is.

A process that is killed while it appends leaves a record cut short at the end, which nobody was told of: the next
writer removes it. Everything else that does not fit is damage.
"""

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import orjson
from numpy.typing import NDArray

from index_builder.codec import DTYPES
from index_builder.errors import GenerationCorrupt
from index_builder.pool import Candidate
from model.durable import make_directory, write_atomically

_FORMAT = 1
_LENGTH = struct.Struct("<I")
_HEAD = struct.Struct("<III")
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose log it is: a generation, and what its vectors are."""

    generation: str
    fingerprint: str
    dim: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Update:
    """One acknowledged change; deletions come before upserts.

    Attributes:
        revision: grows from update to update, over all generations of a store.
        upserts: candidates to add, or to put in the place of those with the same ids.
        vectors: of the upserts, (N, D) in the store's dtype.
        deletes: ids.
    """

    revision: int
    upserts: Sequence[Candidate]
    vectors: NDArray[Any]
    deletes: Sequence[str] = ()


class UpdateLog:
    """The log of one generation, read from its beginning on, a piece at a time.

    One thread at a time may use it. Appending is for one process at a time: the caller holds the store's lock.

    Attributes:
        subject: whose it is.
        revision: of the last update read; 0 where there is none.
        floor: no update to come may have a revision up to this one.
        was_left: the generation was active, and is not any more or is about to be replaced.
    """

    def __init__(self, path: Path, subject: Subject) -> None:
        self._path = path
        self.subject = subject
        self.revision = self.floor = 0
        self.was_left = False
        self._end = 0  # of what was read
        self._sum = 0

    @classmethod
    def found(cls, path: Path) -> "UpdateLog":
        """The log in a file, whosever it is.

        Raises:
            GenerationCorrupt: its first record is damaged or cut short.
        """
        log = cls(path, Subject(path.stem, "", 0, "float16"))
        with path.open("rb") as file:
            first = log._next(file)
        try:
            subject = (
                Subject(**{name: value for name, value in first[0].items() if name != "format"}) if first else None
            )
        except TypeError:
            subject = None
        if subject is None or subject.generation != path.stem:
            raise log._damaged("does not say whose it is")
        return cls(path, subject)

    def read(self) -> Iterator[Update]:
        """The updates that were appended since the last call.

        Raises:
            GenerationCorrupt: something in the log is damaged, or it is another generation's; after what comes before,
                which the next call gives again: a caller that dropped it has missed nothing.
        """
        began = self._end, self._sum
        try:
            yield from self._appended()
        except GenerationCorrupt:
            self._end, self._sum = began
            raise

    def _appended(self) -> Iterator[Update]:
        try:
            file = self._path.open("rb")
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
        """The next record's JSON and the bytes behind it; None at the end or before a record that is cut short."""
        at, head = self._end, file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return None
        length, expected, head_sum = _HEAD.unpack(head)
        if crc32(head[:8]) != head_sum:
            raise self._damaged(f"is damaged at byte {at}")
        body = _read(file, length)
        if len(body) < length:
            return None
        found = crc32(body, self._sum)
        if found != expected:
            raise self._damaged(f"is damaged at byte {at}, or not of this place")
        (size,) = _LENGTH.unpack_from(body)
        content = orjson.loads(body[_LENGTH.size : _LENGTH.size + size])
        self._end, self._sum = at + _HEAD.size + length, found
        return content, memoryview(body)[_LENGTH.size + size :]

    def _understood(self, content: dict[str, Any], behind: memoryview) -> Update | None:
        if "format" in content:
            if content != _described(self.subject):
                raise self._damaged("is of another generation, or of another version of polyrank")
        elif "floor" in content:
            self.floor = max(self.floor, content["floor"])
        elif "left" in content:
            self.was_left = True
        else:
            upserts = [Candidate(*each) for each in content["upserts"]]
            vectors = np.frombuffer(behind, DTYPES[self.subject.dtype]).reshape(len(upserts), self.subject.dim)
            self.revision = content["revision"]
            return Update(self.revision, upserts, vectors, content["deletes"])
        return None

    def append(self, update: Update) -> None:
        """Put an update on the disk. It is read back by the next `read`, as everybody else reads it.

        Raises:
            GenerationCorrupt: the log is damaged.
            OSError: nothing was appended.
        """
        rows = [[each.id, each.text, each.metadata] for each in update.upserts]
        content = {"revision": update.revision, "upserts": rows, "deletes": list(update.deletes)}
        vectors = np.ascontiguousarray(update.vectors, DTYPES[self.subject.dtype])
        self._append(content, vectors.tobytes())

    def raise_floor(self, floor: int) -> None:
        """Let no update to come have a revision up to `floor`; errors as `append`."""
        if floor > max(self.floor, self.revision):
            self._append({"floor": floor})
            self.floor = floor

    def mark_left(self) -> None:
        """Note that the generation was active; errors as `append`."""
        if not self.was_left:
            self._append({"left": True})
            self.was_left = True

    def _append(self, content: Mapping[str, Any], behind: bytes = b"") -> None:
        if not self._end and not self._path.exists():
            make_directory(self._path.parent)
            write_atomically(self._path, _record(_described(self.subject), b"", 0)[0])
        end, total = self._tail()
        record, _ = _record(content, behind, total)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, end)  # a record cut short, if there is one
            try:
                _write(descriptor, record, end)
                os.fdatasync(descriptor)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(descriptor, end)  # not acknowledged, so nobody may read it
                raise
        finally:
            os.close(descriptor)

    def _tail(self) -> tuple[int, int]:
        """Where the last whole record ends, and its checksum; what this object has read stays as it is."""
        ahead = UpdateLog(self._path, self.subject)
        ahead._end, ahead._sum = self._end, self._sum
        for _ in ahead.read():
            pass
        return ahead._end, ahead._sum

    def _damaged(self, what: str) -> GenerationCorrupt:
        return GenerationCorrupt(self.subject.generation, f"its update log {self._path.name} {what}")


def _described(subject: Subject) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "generation": subject.generation,
        "fingerprint": subject.fingerprint,
        "dim": subject.dim,
        "dtype": subject.dtype,
    }


def _record(content: Mapping[str, Any], behind: bytes, total: int) -> tuple[bytes, int]:
    """The bytes of a record that follows on a checksum, and its own checksum."""
    described = orjson.dumps(content)
    body = _LENGTH.pack(len(described)) + described + behind
    total = crc32(body, total)
    lengths = _HEAD.pack(len(body), total, 0)[:8]
    return lengths + _LENGTH.pack(crc32(lengths)) + body, total


def _read(file: Any, length: int) -> bytes:
    """Read so many bytes, or to the end; memory is taken as they come, for the length may be anything."""
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
