"""The files of a log of feedback, in STORE/feedback/.

    key                  makes and checks names: identity.py
    <time id>.jsonl      being written by one process, which holds a lock on it
    <time id>.jsonl.zst  closed
    erased               what was erased from the log; what is left of it in files does not count any more
    rewriting.lock       held by the one process that takes lines out of closed files

A line is a record (records.py). After a kill a file is left open, and its lock is free: any other process closes it.
The first four of the digits at the end of a time id are the mark of the host that writes the file.

The first line of a closed file says how many bytes it holds of each account. The rankings that one caller has asked for
are an account, and its events are another: where the log is too large, the largest account loses its oldest lines. So
nobody's events drive out rankings, or what others have sent.
"""

import errno
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import orjson
import pyarrow as pa

from polyrank.index_builder.layout import is_time_id, new_time_id, stamp
from polyrank.index_builder.store.locks import take_lock, try_locked
from polyrank.model.durable import remove_leftovers, replacing, sync_directory, write_atomically
from polyrank.model.inputs import Compression, open_input, open_unfolded, read_input
from polyrank.model.text.jsonlines import written_lines
from polyrank.service.feedback.identity import host_mark, origin_of
from polyrank.service.feedback.records import LATEST, RANKING

OPEN, CLOSED = ".jsonl", ".jsonl.zst"
MOST_BYTES: Final = 63 << 20  # of a file; of 64 MiB, readers would take a compressed one for a trap
MOST_SECONDS: Final = 3600  # that a file is open
REWRITING_LOCK: Final = "rewriting.lock"
_KINDS: Final[tuple[tuple[str, Compression | None], ...]] = ((CLOSED, "zstd"), (OPEN, None))
_ACCOUNTS: Final = "accounts"  # the kind of the first line of a closed file
_ACCOUNTS_OF_OPEN: Final = "open"  # all those of a file that is being written
_REMEMBERED_SECONDS = 86_400  # an erasure at least, so that it meets what is written late

Line = dict[str, Any]


def names(folder: Path, since: float = 0.0) -> list[str]:
    """Return the time ids of the files of a log, oldest first; none where there is no log. Raises OSError.

    Those that nobody has written to since that time, in seconds since the epoch, are left out.
    """
    try:
        file_names = [name for name in os.listdir(folder) if name.endswith((OPEN, CLOSED))]
    except FileNotFoundError:
        return []
    ids = {name.split(".")[0] for name in file_names if not since or _written_at(folder / name) >= since}
    return sorted(filter(is_time_id, ids))


def stamped(at: float) -> str:
    """Return how the time ids of files of a time begin, given in seconds since the epoch."""
    return stamp(datetime.fromtimestamp(max(at, 0.0), UTC))


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
        with opened(folder, name) as stream:
            for line, parsed in _lines_of(stream):
                if line.endswith(b"\n"):
                    yield parsed
    except FileNotFoundError:
        return
    except OSError:
        yield None


@contextmanager
def opened(folder: Path, name: str) -> Iterator[BufferedReader]:
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


def _lines_of(stream: BufferedReader) -> Iterator[tuple[bytes, Line | None]]:
    """Yield the lines of a file, each as it stands and read; the accounts of a closed file are none."""
    for number, line in written_lines(stream):
        parsed = parsed_line(line)
        if number > 1 or parsed is None or parsed.get("kind") != _ACCOUNTS:
            yield line, parsed


def parsed_line(line: bytes) -> Line | None:
    """Read a line; None: it is damaged."""
    try:
        parsed = orjson.loads(line)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def account(by: object, kind: object) -> str:
    """Name the account of a line."""
    return f"{by or ''} {'rankings' if kind == RANKING else 'events'}"


def _account_of(line: Line | None) -> str:
    return "damaged" if line is None else account(line.get("by"), line.get("kind"))


class Growing:
    """A file that this process appends to, from one thread; its lock shows others that the process lives.

    `name` is its time id, `size` how many bytes it has, `is_whole` whether it ends with a whole line.
    """

    def __init__(self, folder: Path) -> None:
        """Make it; raises OSError."""
        self._folder, self.size, self.is_whole = folder, 0, True
        self._accounts = Counter[str]()
        while True:
            self.name = new_time_id([], host_mark() + token_hex(2))
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

    def append(self, content: bytes, accounts: Mapping[str, int]) -> None:
        """Append whole lines, so many bytes of each account.

        Raises OSError, and then nothing is appended, if only the file `is_whole`.
        """
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
        self._accounts.update(accounts)

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
            _close(self._folder, self.name, self._accounts)
        finally:
            os.close(self._descriptor)


def close_left(folder: Path) -> None:
    """Close the files that were left open by processes that are gone; raises OSError."""
    remove_leftovers(folder)
    for path in folder.glob(f"*{OPEN}"):
        if is_time_id(path.stem):
            closed(folder, path.stem)


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


def _close(folder: Path, name: str, accounts: Mapping[str, int] | None = None) -> None:
    """Compress an open file without what was erased, and remove it; the caller holds its lock.

    `accounts`: how many bytes it holds of each; None: that is not known.
    """
    path = folder / f"{name}{OPEN}"
    erased = Erased(folder)
    if erased or accounts is None:
        rewrite(folder, name, erased.holds)
    elif path.stat().st_size:
        _write_closed(folder, name, accounts)
    path.unlink()


def rewrite(folder: Path, name: str, drops: Callable[[Line | None], bool]) -> None:
    """Write a closed file anew, or an open one for the first time as a closed one, without some of its lines.

    A file that would hold none is removed, or not written. Raises OSError.
    """
    accounts, is_less = Counter[str](), False
    with opened(folder, name) as stream:
        for line, parsed in _lines_of(stream):
            if drops(parsed):
                is_less = True
            else:
                accounts[_account_of(parsed)] += len(line)
    if not accounts:
        (folder / f"{name}{CLOSED}").unlink(missing_ok=True)
    elif is_less or accounts != accounts_of(folder, name):
        _write_closed(folder, name, accounts, drops)


def _write_closed(
    folder: Path, name: str, accounts: Mapping[str, int], drops: Callable[[Line | None], bool] | None = None
) -> None:
    with replacing(folder / f"{name}{CLOSED}") as temporary:
        temporary.chmod(0o600)
        with opened(folder, name) as stream, pa.CompressedOutputStream(str(temporary), "zstd") as compressed:
            first = {"kind": _ACCOUNTS, "bytes": dict(accounts)}
            compressed.write(orjson.dumps(first, option=orjson.OPT_APPEND_NEWLINE))
            if drops is None:
                remaining = (line for _, line in written_lines(stream))
            else:
                remaining = (line for line, parsed in _lines_of(stream) if not drops(parsed))
            for line in remaining:
                compressed.write(line if line.endswith(b"\n") else line + b"\n")


def accounts_of(folder: Path, name: str) -> Counter[str]:
    """Return how many bytes a file holds of each account, as far as it says so; raises OSError."""
    for path in (folder / f"{name}{OPEN}", folder / f"{name}{CLOSED}"):
        with suppress(FileNotFoundError):
            size = path.stat().st_size
            if path.suffix == OPEN:
                return Counter({_ACCOUNTS_OF_OPEN: size})
            with suppress(OSError, LookupError, TypeError, ValueError, AttributeError), opened(folder, name) as stream:
                first = orjson.loads(stream.readline(MOST_BYTES))
                if first["kind"] == _ACCOUNTS:
                    return Counter({str(each): int(bytes_) for each, bytes_ in first["bytes"].items()})
            return Counter({"unknown": size})  # until it is written anew
    return Counter()


def limit(folder: Path, oldest: float, most_bytes: int) -> int:
    """Remove what is older than a time, then the oldest of the largest account until the log has no more bytes.

    Bytes are those of lines before they are compressed. Returns how many there are. A file counts as old as the last
    line that it may hold. `oldest` is in seconds since the epoch. Raises OSError.
    """
    too_old = stamped(oldest - MOST_SECONDS)
    accounts: dict[str, Counter[str]] = {}
    for name in names(folder):
        if name < too_old and not (folder / f"{name}{OPEN}").exists():
            (folder / f"{name}{CLOSED}").unlink(missing_ok=True)
        else:
            accounts[name] = accounts_of(folder, name)
    total = sum(each.total() for each in accounts.values())
    if total <= most_bytes:
        return total
    with try_locked(folder / REWRITING_LOCK) as is_alone:
        closed_ones = {name: each for name, each in accounts.items() if _ACCOUNTS_OF_OPEN not in each}
        while is_alone and total > most_bytes and closed_ones:
            sums = sum(closed_ones.values(), Counter[str]())
            largest, _ = max(sums.items(), key=lambda each: (each[1], each[0]))
            name = next(each for each, counts in closed_ones.items() if counts[largest])
            erased = Erased(folder)
            total -= closed_ones.pop(name).total()
            try:
                rewrite(folder, name, lambda line: _account_of(line) == largest or erased.holds(line))  # noqa: B023  # it is called before the next round
            except FileNotFoundError:  # another one removed it, because it is too old
                continue
            except OSError:  # it is damaged, or there is no room for a smaller one
                (folder / f"{name}{CLOSED}").unlink(missing_ok=True)
            if (folder / f"{name}{CLOSED}").exists():
                closed_ones = dict(sorted({**closed_ones, name: accounts_of(folder, name)}.items()))
                total += closed_ones[name].total()
    return total


def size_of(folder: Path) -> int:
    """Return how many bytes the lines of a log have, before they are compressed; raises OSError."""
    return sum(accounts_of(folder, name).total() for name in names(folder))


class Erased:
    """What was erased: digests of conversations with the times of that, and ids of rankings.

    A conversation may go on after that, so what is newer counts. A line is erased by the id of its ranking, which tells
    the conversation and the time; so an event is found though its ranking is not written yet, or is written elsewhere.
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
        """Erase what has these names and is not newer; raises OSError. The caller holds the lock for rewriting.

        What is older than all files is forgotten.
        """
        self.times |= dict.fromkeys(erased, at)
        oldest = min(names(folder), default="")
        lines = (
            f"{time!r} {name}\n"
            for name, time in self.times.items()
            if time > at - _REMEMBERED_SECONDS or stamped(time) >= oldest
        )
        write_atomically(folder / self.FILE, "".join(lines).encode())

    def holds(self, line: Line | None) -> bool:
        """Whether a line was erased; a damaged one was not."""
        if line is None or not self.times:
            return False
        return self.holds_ranking(line.get("id" if line.get("kind") == RANKING else "ranking"))

    def holds_ranking(self, ranking: object) -> bool:
        """Whether a ranking was erased, and its events with it."""
        if isinstance(ranking, str) and ranking in self.times:
            return True
        origin = origin_of(ranking)
        return origin is not None and origin.at <= self.times.get(origin.conversation or "", -math.inf)
