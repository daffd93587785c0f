"""A cache on disk for what takes long to make: entries of facts and bytes, found by what they were made from.

An entry is one file, named after a hash of its key. It holds a sha256 of all that follows, a line of JSON with key and
facts, and the bytes. It is mapped, not read, so that several processes share its memory.

A cache must never stop the work: what cannot be read or written is a miss, and the log says why, once.
"""

import fcntl
import hashlib
import json
import logging
import mmap
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from polyrank.model.durable import remove_leftovers, replacing, usual_cache
from polyrank.model.errors import InvalidInput
from polyrank.model.inputs import open_input
from polyrank.model.options import Bounds

# Variables of the environment, for processes that have no other settings.
DIRECTORY, SIZE = "POLYRANK_COMPILED_CACHE_DIR", "POLYRANK_COMPILED_CACHE_MB"
DEFAULT_MIB, MEBIBYTES = 4096, Bounds(0, 1_000_000)
_FOLDER = "compiled"
_SUFFIX = ".entry"
_DIGEST_BYTES = 64
PATIENCE = 120.0  # seconds; a model of a hundred million weights is compiled and tried in a quarter of it
_PAUSE = 0.05  # seconds

log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """What was kept: facts as JSON has them, and bytes, mapped from the file, which is never changed in place."""

    facts: Mapping[str, Any]
    data: memoryview


class DiskCache:
    """Keeps entries in a directory, up to a number of bytes; those that were used least recently go first.

    Safe for several threads and processes. Only this user can read or write the files, because a compiled model is
    machine code to be run. A directory that others could write to is not used.
    """

    def __init__(self, directory: Path, most_bytes: int) -> None:
        self._directory, self._most_bytes = directory, most_bytes
        self._warnings = set[tuple[str, Path]]()

    def get(self, key: Mapping[str, Any]) -> Entry | None:
        """Return the entry of a key; None where there is none. A damaged one is removed."""
        path = self._path(key)
        try:
            if not self._is_private():
                return None
            entry = _read(path, key)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except _Damaged as error:
            self._warn("a kept model is damaged and is made anew", path, str(error))
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        except OSError as error:
            self._warn("kept models cannot be read: this start compiles them", path, error.strerror)
            return None
        with suppress(OSError):  # a read-only disk
            os.utime(path)  # used just now
        return entry

    def put(self, key: Mapping[str, Any], facts: Mapping[str, Any], *data: bytes | memoryview) -> None:
        """Keep an entry, and remove old ones where there are too many bytes. An entry above the bound is not kept.

        `data` are the entry's bytes in pieces; they are put together.
        """
        path = self._path(key)
        content = [json.dumps({"key": key, "facts": facts}, sort_keys=True).encode() + b"\n", *data]
        size = sum(len(piece) for piece in content)
        if size > self._most_bytes:
            self._warn("a model is larger than the cache and is not kept", self._directory, f"{size >> 20} MiB")
            return
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._is_private():
                _write(path, content)
                self._evict(path)
        except OSError as error:
            self._warn("compiled models cannot be kept: every start compiles them", self._directory, error.strerror)

    def drop(self, key: Mapping[str, Any]) -> None:
        """Remove the entry of a key, if there is one and it can be removed."""
        with suppress(OSError):
            self._path(key).unlink(missing_ok=True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Make an entry while others that ask for this wait, in this process and in others.

        Nobody waits longer than PATIENCE, or where the directory cannot be locked: then work is done twice.
        """
        with ExitStack() as stack:
            with suppress(OSError):
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(self._directory, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                _wait_for(descriptor)
            yield

    def _path(self, key: Mapping[str, Any]) -> Path:
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        return self._directory / f"{name}{_SUFFIX}"

    def _is_private(self) -> bool:
        """Whether nobody else can have written to the directory. Raises FileNotFoundError where there is none."""
        private = _is_own(self._directory.stat())
        if not private:
            why = "it belongs to another user, or others may write to it; remove it, or name another place"
            self._warn("compiled models are not kept: every start compiles them", self._directory, why)
        return private

    def _evict(self, newest: Path) -> None:
        """Remove entries, the least recently used first, until the others fit; the newest stays."""
        remove_leftovers(self._directory)
        entries = []
        for path in self._directory.glob(f"*{_SUFFIX}"):
            with suppress(FileNotFoundError):  # another process was faster
                status = path.stat()
                entries.append((path == newest, status.st_mtime_ns, status.st_size, path))
        bytes_left = sum(size for _, _, size, _ in entries)
        for _, _, size, path in sorted(entries):
            if bytes_left <= self._most_bytes:
                return
            path.unlink(missing_ok=True)
            bytes_left -= size

    def _warn(self, message: str, where: Path, why: str | None) -> None:
        if (message, where) not in self._warnings:
            self._warnings.add((message, where))
            log.warning(message, extra={"fields": {"where": str(where), "why": why}})


def configured(variables: Mapping[str, str]) -> DiskCache | None:
    """Return the cache that variables of the environment describe; None: it is turned off.

    Raises InvalidInput where the size is no number, or out of bounds.
    """
    size = variables.get(SIZE) or str(DEFAULT_MIB)
    with suppress(ValueError):
        if MEBIBYTES.hold(mebibytes := int(size)):
            return cache_of(variables.get(DIRECTORY), mebibytes)
    raise InvalidInput(f"{SIZE} must be {MEBIBYTES}, of MiB; 0 for no cache")


def cache_of(directory: str | Path | None, mebibytes: int) -> DiskCache | None:
    """Return a cache in a directory, or in this user's usual one; None for a size of 0.

    It has a folder of its own there: the directory may be one that others can write to, such as a mounted volume.
    """
    return DiskCache(Path(directory or usual_cache()) / _FOLDER, mebibytes << 20) if mebibytes else None


def _wait_for(descriptor: int) -> None:
    """Lock a file. Raises TimeoutError after PATIENCE, and another OSError where the file system has no locks."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                log.warning("another process has kept the cache of compiled models locked; this one goes on without")
                raise TimeoutError from None
            time.sleep(_PAUSE)


class _Damaged(Exception):
    """The file is not an entry of the key."""


def _write(path: Path, content: Sequence[bytes | memoryview]) -> None:
    digest = hashlib.sha256()
    for piece in content:
        digest.update(piece)
    with replacing(path) as temporary:
        temporary.chmod(0o600)
        with temporary.open("wb") as file:
            file.writelines([digest.hexdigest().encode(), *content])


def _read(path: Path, key: Mapping[str, Any]) -> Entry:
    with open_input(path) as file:
        status = os.fstat(file.fileno())
        # The directory was looked at before: whoever owns the one above may have put another in its place since then.
        if not _is_own(status):
            raise _Damaged("it belongs to another user, or others may write to it")
        if status.st_size <= _DIGEST_BYTES:
            raise _Damaged("it was cut short")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # OpenVINO takes only memory that it might change
    content = memoryview(mapped)[_DIGEST_BYTES:]
    if hashlib.sha256(content).hexdigest().encode() != mapped[:_DIGEST_BYTES]:
        raise _Damaged("its sha256 is another")
    end = mapped.find(b"\n", _DIGEST_BYTES) + 1
    try:
        header = json.loads(mapped[_DIGEST_BYTES:end])
        of, facts = header["key"], header["facts"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise _Damaged("it has no key and facts") from None
    if of != dict(key):
        raise _Damaged("it is the entry of another key")
    return Entry(facts, memoryview(mapped)[end:])


def _is_own(status: os.stat_result) -> bool:
    """Whether nobody else can have written there."""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022
