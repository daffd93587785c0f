"""Writes that survive a crash: fsync and rename in the right order.

After a crash a name points at the old bytes or at all of the new ones. This module does not know what the files mean.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from glob import escape
from pathlib import Path
from secrets import token_hex
from tempfile import gettempdir
from typing import BinaryIO

_TOKEN_BYTES = 8
_ANY_TOKEN = "[0-9a-f]" * 2 * _TOKEN_BYTES
_UNFINISHED = ".unfinished-"


def sync_file(path: Path) -> None:
    """Put the file's bytes on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe in its place keeps nobody waiting
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# The same call works for a directory. The second name says what the caller means.
sync_directory = sync_file


def sync_tree(directory: Path) -> None:
    """Put every file, then every directory from the leaves up, on the disk."""
    for folder, _, files in os.walk(directory, topdown=False, onerror=_raised):
        for name in sorted(files):
            sync_file(Path(folder) / name)
        sync_directory(Path(folder))


def _raised(error: OSError) -> None:
    raise error  # by default `os.walk` leaves out a directory that it cannot read


def make_directory(path: Path) -> None:
    """Create the directory and its missing parents, and put each new entry on the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_directory(folder.parent)


def rename_durably(source: Path, target: Path) -> None:
    """Rename within one directory, and put the rename itself on the disk."""
    os.replace(source, target)
    sync_directory(target.parent)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file to write to, which replaces `path` when the block ends.

    A reader, or anyone after a crash, sees all of the old file or all of the new one. If the block raises, the old file
    stays and nothing else is left. If two processes write the same file, the later one wins; their bytes never mix. The
    next writer of the same file removes what a killed process left.

    Raises OSError where the directory is missing, full or not writable.
    """
    remove_leftovers(path.parent, path.name)
    # The name is random, not made from the process id: containers that share a file system may all be process 1.
    temporary = path.with_name(_temporary_name(path.name, token_hex(_TOKEN_BYTES)))
    try:
        with _locked_file(temporary):
            yield temporary
            sync_file(temporary)
            rename_durably(temporary, path)
    except BaseException:  # Ctrl-C too
        temporary.unlink(missing_ok=True)  # a full disk must not be left fuller
        raise


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file's content in one step, as `replacing` does."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def make_once(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Make a file unless it is there; of several processes that make it at once, the first one wins.

    A link makes it appear with all of its content. Raises OSError as `replacing`.
    """
    temporary = path.with_name(_temporary_name(path.name, token_hex(_TOKEN_BYTES)))
    try:
        with _locked_file(temporary):
            temporary.chmod(mode)
            temporary.write_bytes(content)
            sync_file(temporary)
            with suppress(FileExistsError):  # another process was faster
                os.link(temporary, path)
            sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(directory: Path, name: str = "") -> None:
    """Remove what killed writers left in a directory, of the file of that name or of all; living writers lock theirs.

    Raises OSError where the directory cannot be read.
    """
    for leftover in filter(Path.is_file, directory.glob(_temporary_name(escape(name) or "*", _ANY_TOKEN))):
        with suppress(OSError), leftover.open("rb") as file:
            if _lock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB):
                leftover.unlink()


@contextmanager
def filling(directory: Path, last: str = "") -> Iterator[Path]:
    """Yield a temporary directory; what it holds appears in `directory`, a new or empty one, when the block ends.

    `last` is the name of what appears last. If the block raises, nothing is left. Of two processes that fill the same
    directory the later one fails. The next one removes what a killed process left.

    Raises FileExistsError where `directory` holds something at the end, OSError where it cannot be written.
    """
    missing = not directory.exists()
    make_directory(directory)
    inside = directory / f"{_UNFINISHED}{token_hex(_TOKEN_BYTES)}"
    try:
        with ExitStack() as stack:
            with _locked(directory):
                for leftover in directory.glob(f"{_UNFINISHED}*"):
                    with suppress(OSError), _opened(leftover) as descriptor:
                        if _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
                            shutil.rmtree(leftover)
                inside.mkdir()
                stack.enter_context(_locked(inside))  # it shows others that this one lives
            yield inside
            sync_tree(inside)
            with _locked(directory):
                if not is_free(directory):
                    raise FileExistsError(errno.EEXIST, "it was filled by another process meanwhile", str(directory))
                _move(inside, directory, last)
    except BaseException:  # Ctrl-C too
        shutil.rmtree(inside, ignore_errors=True)
        if missing:
            with suppress(OSError):
                directory.rmdir()
        raise


@contextmanager
def making_once(directory: Path) -> Iterator[Path | None]:
    """Yield a temporary directory that becomes `directory` when the block ends, or None where that is there already.

    Others that make it wait meanwhile. If the block raises, nothing is left; the next maker removes what a killed one
    left. Raises OSError where it cannot be written.
    """
    if directory.is_dir():
        yield None
        return
    make_directory(directory.parent)
    unfinished = directory.with_name(f"{_UNFINISHED}{directory.name}")
    with _locked(directory.parent):
        if directory.is_dir():  # another process was faster
            yield None
            return
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            unfinished.mkdir()
            yield unfinished
            sync_tree(unfinished)
            rename_durably(unfinished, directory)
        except BaseException:  # Ctrl-C too
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def usual_cache() -> Path:
    """Return where this user's caches are by default: below $XDG_CACHE_HOME, or ~/.cache."""
    directory = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(directory) if os.path.isabs(directory) else Path.home() / ".cache") / "polyrank"
    except RuntimeError:  # a user without a home
        return Path(gettempdir()) / f"polyrank-{os.geteuid()}"


def is_free(directory: Path) -> bool:
    """Whether a directory holds nothing, but for what `filling` has not finished."""
    return all(path.name.startswith(_UNFINISHED) for path in directory.iterdir())


def _move(inside: Path, directory: Path, last: str) -> None:
    targets: list[Path] = []
    try:
        for path in sorted(inside.iterdir(), key=lambda path: path.name == last):
            targets.append(directory / path.name)
            rename_durably(path, targets[-1])
        inside.rmdir()
    except BaseException:
        for path in targets:
            shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):
                path.unlink()
        raise


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    with _opened(directory) as descriptor:
        _lock(descriptor, fcntl.LOCK_EX)
        yield


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _temporary_name(name: str, token: str) -> str:
    return f".{name}.{token}.tmp"


def _locked_file(temporary: Path) -> BinaryIO:
    """Make the temporary file of a writer, and lock it: the lock shows other writers that this one lives."""
    while True:
        file = temporary.open("wb")
        _lock(file.fileno(), fcntl.LOCK_SH)
        if temporary.exists():
            return file
        file.close()  # another writer removed it as a leftover before it was locked


def _lock(descriptor: int, operation: int) -> bool:
    """Try to lock; False where another holds the lock, or the file system has none."""
    try:
        fcntl.flock(descriptor, operation)
    except OSError:
        return False
    return True
