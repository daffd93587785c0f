"""Files that users bring: opened only if they are regular files, and read within a bound."""

import errno
import io
import os
import stat
from pathlib import Path


def open_input(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; raises OSError for anything else, such as a pipe or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe would wait for its writer
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_input(path: Path, most_bytes: int) -> bytes:
    """Read a regular file; raises OSError for anything else, and for a file that is larger."""
    with open_input(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EINVAL, f"it is larger than {most_bytes} bytes", str(path))
    return content
