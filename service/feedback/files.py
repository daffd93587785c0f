"""The files of a log of feedback, in STORE/feedback/.

    key                  makes and checks names: identity.py
    <time id>.jsonl      being written by one process, which holds a lock on it
    <time id>.jsonl.zst  closed
    erased               what was erased from the log; what is left of it in files does not count any more
    erasing.lock         held by the one command that erases

A line is a record (records.py). After a kill a file is left open, and its lock is free: any other process closes it.
"""

import errno
import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from io import BufferedReader
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import orjson
import pyarrow as pa

from polyrank.index_builder.layout import is_time_id, new_time_id, stamp
from polyrank.index_builder.store.locks import take_lock
from polyrank.model.durable import remove_leftovers, replacing, sync_directory, write_atomically
from polyrank.model.inputs import Compression, open_input, open_unfolded, read_input
from polyrank.model.text.jsonlines import written_lines
from polyrank.service.feedback.records import LATEST, RANKING

OPEN, CLOSED = ".jsonl", ".jsonl.zst"
MOST_BYTES: Final = 64 << 20  # of a file; with more, readers would take a compressed one for a trap
MOST_SECONDS: Final = 3600  # that a file is open
_KINDS: Final[tuple[tuple[str, Compression | None], ...]] = ((CLOSED, "zstd"), (OPEN, None))

Line = dict[str, Any]


def names(folder: Path, since: float = 0.0) -> list[str]:
    """Return the time ids of the files of a log, oldest first; none where there is no log. Raises OSError.

    Those that nobody has written to since that time, in seconds since the epoch, are left out.
    """
    try:
        found = [name for name in os.listdir(folder) if name.endswith((OPEN, CLOSED))]
    except FileNotFoundError:
        return []
    ids = {name.split(".")[0] for name in found if _written_at(folder / name) >= since}
    return sorted(filter(is_time_id, ids))


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # it was closed meanwhile, or removed
        return time.time()


def lines(folder: Path, name: str) -> Iterator[Line | None]:
    """Yield the lines of one file; None for a damaged one, and where the rest of the file cannot be read.

    A line that is not finished yet is left out. A file that is closed or removed meanwhile is no error.
    """
    try:
        with _opened(folder, name) as stream:
            for _, line in written_lines(stream):
                if line.endswith(b"\n"):
                    yield _parsed(line)
    except FileNotFoundError:
        return
    except OSError:
        yield None


@contextmanager
def _opened(folder: Path, name: str) -> Iterator[BufferedReader]:
    """Open a file of the log for its lines; raises FileNotFoundError, and OSError as `open_unfolded`."""
    with ExitStack() as stack:
        # A closed file appears before the open one goes; so one of the two is there at the second try.
        for ending, compression in 2 * _KINDS:
            path = folder / f"{name}{ending}"
            with suppress(FileNotFoundError):
                stream = stack.enter_context(open_unfolded(path, compression))
                break
        else:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        yield stream


def _parsed(line: bytes) -> Line | None:
    try:
        found = orjson.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


class Growing:
    """A file that this process appends to, from one thread; its lock shows others that the process lives.

    Attributes:
        name: its time id.
        size: how many bytes it has.
        is_whole: whether it ends with a whole line.
    """

    def __init__(self, folder: Path) -> None:
        """Make it; raises OSError."""
        self._folder, self.size, self.is_whole = folder, 0, True
        while True:
            self.name = new_time_id([], token_hex(4))
            path = folder / f"{self.name}{OPEN}"
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                sync_directory(folder)
                if take_lock(self._descriptor, 0.0) and path.exists():
                    return
            except BaseException:
                self.leave()
                raise
            self.leave()  # another process found it without a lock, and closed it

    def append(self, content: bytes) -> None:
        """Append whole lines; raises OSError, and then nothing is appended, if only the file `is_whole`."""
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            self.is_whole = False
            os.ftruncate(self._descriptor, self.size)
            self.is_whole = True
            raise
        self.size += len(content)

    def sync(self) -> None:
        """Put it on the disk; raises OSError, and then it is not known what is there: begin another file."""
        os.fdatasync(self._descriptor)
        if self.is_gone():
            raise OSError(errno.ESTALE, "another host closed it, because the file system shares no locks")

    def is_gone(self) -> bool:
        """Whether somebody removed it; raises OSError."""
        return os.fstat(self._descriptor).st_nlink == 0

    def leave(self) -> None:
        """Append no more, and let any process close the file."""
        os.close(self._descriptor)

    def close(self) -> None:
        """Close it for good; raises OSError, and then another process may."""
        try:
            _close(self._folder, self.name)
        finally:
            os.close(self._descriptor)


def close_left(folder: Path) -> None:
    """Close the files that were left open by processes that are gone; raises OSError."""
    remove_leftovers(folder)
    for name in names(folder):
        closed(folder, name)


def closed(folder: Path, name: str) -> bool:
    """Close a file if it was left open; returns False where a living process appends to it. Raises OSError."""
    path = folder / f"{name}{OPEN}"
    try:
        file = open_input(path)
    except FileNotFoundError:
        return True
    with file:
        if not take_lock(file.fileno(), 0.0):
            return False
        if path.exists():
            _close(folder, name)
    return True


def _close(folder: Path, name: str) -> None:
    """Compress an open file without what was erased, and remove it; the caller holds its lock."""
    path = folder / f"{name}{OPEN}"
    if path.stat().st_size:
        rewrite(folder, name, Erased(folder))
    path.unlink()


def rewrite(folder: Path, name: str, erased: "Erased") -> None:
    """Write a closed file anew, or for the first time, without what was erased; raises OSError."""
    with replacing(folder / f"{name}{CLOSED}") as temporary:
        temporary.chmod(0o600)
        with _opened(folder, name) as stream, pa.CompressedOutputStream(str(temporary), "zstd") as compressed:
            for _, line in written_lines(stream):
                parsed = _parsed(line) if erased else None
                if parsed is None or not erased.holds(parsed):
                    compressed.write(line if line.endswith(b"\n") else line + b"\n")
                elif parsed.get("kind") == RANKING:  # perhaps it was not written yet when its conversation was erased
                    erased.times.setdefault(parsed["id"], 0.0)  # so its events, which follow, go as well


def limit(folder: Path, days: int, most_bytes: int) -> int:
    """Remove closed files that are too old, then the oldest until the log has no more bytes; returns how many it has.

    A file counts as old as the last line that it may hold. Raises OSError.
    """
    too_old = stamp(datetime.now(UTC) - timedelta(days=days, seconds=MOST_SECONDS))
    found = sizes(folder)
    total = sum(found.values())
    for path, size in found.items():
        if path.name.endswith(CLOSED) and (path.name < too_old or total > most_bytes):
            path.unlink(missing_ok=True)
            total -= size
    return total


def sizes(folder: Path) -> dict[Path, int]:
    """Return the files of a log, oldest first, with their bytes; raises OSError."""
    found: dict[Path, int] = {}
    for path in (folder / f"{name}{ending}" for name in names(folder) for ending, _ in _KINDS):
        with suppress(FileNotFoundError):
            found[path] = path.stat().st_size
    return found


class Erased:
    """What was erased: digests of conversations with the times of that, and ids of rankings.

    A conversation may go on after that, so what is newer counts.
    """

    FILE = "erased"

    def __init__(self, folder: Path) -> None:
        """Read it; what is damaged in it is left out. Raises OSError where it cannot be read."""
        self.times: dict[str, float] = {}
        try:
            content = read_input(folder / self.FILE).decode("ascii", "replace")
        except FileNotFoundError:
            return
        for line in content.splitlines():
            at, _, name = line.partition(" ")
            if at.replace(".", "", 1).isdecimal() and float(at) < LATEST and name:
                self.times[name] = float(at)

    def __bool__(self) -> bool:
        return bool(self.times)

    @classmethod
    def stamp(cls, folder: Path) -> tuple[int, int] | None:
        """Return what changes whenever something is erased; None before the first time. Raises OSError."""
        try:
            status = (folder / cls.FILE).stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns

    def add(self, folder: Path, erased: Iterable[str], at: float) -> None:
        """Erase what has these names and is not newer; raises OSError. The caller holds erasing.lock.

        What is older than all files is forgotten.
        """
        self.times |= dict.fromkeys(erased, at)
        oldest = min(names(folder), default="")
        lines = (
            f"{time!r} {name}\n"
            for name, time in self.times.items()
            if time == at or stamp(datetime.fromtimestamp(time, UTC)) >= oldest
        )
        write_atomically(folder / self.FILE, "".join(lines).encode())

    def holds(self, line: Line) -> bool:
        """Whether a line was erased; a damaged one was not."""
        try:
            if line.get("kind") != RANKING:
                return line.get("ranking") in self.times
            return line["id"] in self.times or line["at"] <= self.times.get(line.get("conversation", ""), -math.inf)
        except (LookupError, TypeError):
            return False
