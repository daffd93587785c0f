"""Writing that survives a crash: which bytes are on the disk before which name points at them.

Owns fsync and rename. Knows nothing of what the files mean.
"""

import os
from pathlib import Path


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


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file's content: a reader or a crash sees all of the old or all of the new."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    sync_file(temporary)
    rename_durably(temporary, path)
