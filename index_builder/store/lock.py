"""Locks between processes: flock on a file, which the kernel frees when the holder dies."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOOK_SECONDS = 0.01


@contextmanager
def locked(path: Path, *, within_seconds: float | None = None) -> Iterator[bool]:
    """Hold the lock for the block.

    Args:
        path: the lock's file; created, never removed (removing it would let two holders in).
        within_seconds: how long to wait for the lock; None: as long as it takes.

    Yields:
        whether the lock is held.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        yield _taken(descriptor, within_seconds)
    finally:
        os.close(descriptor)


def _taken(descriptor: int, within_seconds: float | None) -> bool:
    if within_seconds is None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return True
    until = time.monotonic() + within_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_SECONDS)
        else:
            return True


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock now."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
