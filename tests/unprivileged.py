"""Being refused by a file's permissions, as the root user of a container never is otherwise."""

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VERSION = 0x20080522
_OVERRIDES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_CAPABILITIES = "-dac_override,-dac_read_search"


@contextmanager
def bound_by_permissions() -> Iterator[None]:
    """Let permissions bind this thread, and those that it starts, for the block."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, kept = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, kept) == 0, os.strerror(ctypes.get_errno())
    bound = (ctypes.c_uint32 * 6)(*kept)
    bound[0] &= ~_OVERRIDES  # the effective ones of the lower 32
    assert libc.capset(header, bound) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        assert libc.capset(header, kept) == 0, os.strerror(ctypes.get_errno())


def python_bound_by_permissions() -> str:
    """The beginning of a shell's command line that runs this Python so."""
    setpriv = shutil.which("setpriv")
    return f"{setpriv} --bounding-set={_CAPABILITIES} {sys.executable}" if os.geteuid() == 0 else sys.executable


@contextmanager
def read_only(root: Path) -> Iterator[None]:
    """Take the right to write to a directory and everything below it away for the block."""
    modes = {path: path.stat().st_mode for path in [root, *root.rglob("*")]}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    try:
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
