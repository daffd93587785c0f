"""Writing that survives a crash: which bytes are on the disk before which name points at them.

Owns fsync and rename. Knows nothing of what the files mean.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

_TOKEN_BYTES = 8
_ANY_TOKEN = "[0-9a-f]" * 2 * _TOKEN_BYTES


def sync_file(path: Path) -> None:
    """Put the file's bytes on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# A directory is opened and synced like a file; its own name says what the caller means.
sync_directory = sync_file


def sync_tree(directory: Path) -> None:
    """Put every file, then every directory from the leaves up, on the disk."""
    for folder, _, files in os.walk(directory, topdown=False):
        for name in sorted(files):
            sync_file(Path(folder) / name)
        sync_directory(Path(folder))


def make_directory(path: Path) -> None:
    """Create the directory with its parents, each entered durably in its parent."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_directory(folder.parent)


def rename_durably(source: Path, target: Path) -> None:
    """Rename within one directory, and put the rename itself on the disk."""
    os.replace(source, target)
    sync_directory(target.parent)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary file to write to, which replaces `path` when the block ends.

    A reader or a crash sees all of the old file or all of the new one. A block that ends in an exception leaves what
    was there before and nothing else. Of two processes that write the same file the later one wins; their bytes never
    mix. What a killed process left is removed by the next one that writes the same file.

    Raises:
        OSError: the directory is missing, full or may not be written.
    """
    _remove_leftovers(path)
    temporary, held = _new_beside(path)
    try:
        with held:
            yield temporary
            sync_file(temporary)
            rename_durably(temporary, path)
    except BaseException:  # Ctrl-C too
        temporary.unlink(missing_ok=True)  # a full disk must not be left fuller
        raise


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file's content: a reader or a crash sees all of the old or all of the new."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def _temporary_name(name: str, token: str) -> str:
    return f".{name}.{token}.tmp"


def _new_beside(path: Path) -> tuple[Path, BinaryIO]:
    """Make a temporary file that is this writer's alone; its lock tells the others that the writer lives.

    The name is drawn, as containers that share a file system may all be process 1.
    """
    while True:
        temporary = path.with_name(_temporary_name(path.name, token_hex(_TOKEN_BYTES)))
        held = temporary.open("wb")
        _lock(held.fileno(), fcntl.LOCK_SH)
        if temporary.exists():
            return temporary, held
        held.close()  # before it was locked another writer took it for a leftover


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary files of the same target that nobody holds."""
    for each in path.parent.glob(_temporary_name(escape(path.name), _ANY_TOKEN)):
        with suppress(OSError), each.open("rb") as file:
            if _lock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB):
                each.unlink()


def _lock(descriptor: int, operation: int) -> bool:
    """Whether the lock was taken: not while another holds it, nor on a file system that has no locks."""
    try:
        fcntl.flock(descriptor, operation)
    except OSError:
        return False
    return True
