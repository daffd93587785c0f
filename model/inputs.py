"""Files that users and stores name: opened only if they are regular files, and read within a bound.

All files that are not the program's own are opened here: a pipe would keep its reader waiting, a device has no end, and
a small file may unfold to a large one.
"""

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

MOST_TOKENIZER_BYTES = 64 << 20
MOST_FACTS_BYTES = 16 << 20  # of a file that says something of others: a config, a manifest, a record

Compression = Literal["gzip", "zstd"]

_MOST_BLANK_LINES = 1 << 20  # as many as the rows of a sheet, of which programs write the empty ones, too
_MUCH_BYTES = 64 << 20
_MOST_TIMES_OF_MUCH = 100
_BUFFER_BYTES = 1 << 18


def open_input(path: Path) -> io.BufferedReader:
    """Open a regular file for reading; raises OSError for anything else, such as a pipe or a device."""
    return open(path, "rb", opener=_opened)


def _opened(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # opening a pipe would wait for its writer
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read_input(path: Path, most_bytes: int = MOST_FACTS_BYTES) -> bytes:
    """Read a regular file; raises OSError for anything else, and for a file that is larger."""
    with open_input(path) as file:
        content = file.read(most_bytes + 1)
    if content is None:  # of /proc, where a file may be regular and have nothing to give yet
        raise OSError(errno.EINVAL, "it gives no content", str(path))
    if len(content) > most_bytes:
        raise OSError(errno.EINVAL, f"it is larger than {most_bytes} bytes", str(path))
    return content


@contextmanager
def open_unfolded(path: Path, compression: Compression | None) -> Iterator[io.BufferedReader]:
    """Open a regular file that may be compressed, for its content.

    Raises OSError for anything else, and while reading: for a damaged file, and for one that unfolds to more than 64
    MiB and to more than 100 times its size.
    """
    with open_input(path) as file:
        if compression is None:
            yield file
            return
        import pyarrow as pa  # here, because most that is opened is not compressed

        most = max(_MUCH_BYTES, _MOST_TIMES_OF_MUCH * os.fstat(file.fileno()).st_size)
        raw: Any = _Bounded(pa.CompressedInputStream(file, compression), most)
        with io.BufferedReader(raw, _BUFFER_BYTES) as stream:
            yield stream


class _Bounded(io.RawIOBase):
    """A decompressor that gives up where there is too much."""

    def __init__(self, stream: Any, most_bytes: int) -> None:
        self._stream, self._most, self._left = stream, most_bytes, most_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # RawIOBase gives no other buffer
        count: int = self._stream.readinto(buffer)
        self._left -= count
        if self._left < 0:
            raise OSError(errno.EINVAL, f"it unfolds to more than {self._most} bytes, against its size")
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()


class BlankLines:
    """Counts the blank lines of a file, which readers skip: a small compressed file may hold millions."""

    def __init__(self) -> None:
        self._count = 0

    def skip(self) -> None:
        """Count one; raises OSError where there are too many."""
        self._count += 1
        if self._count > _MOST_BLANK_LINES:
            raise OSError(errno.EINVAL, f"more than {_MOST_BLANK_LINES} of its lines are blank")
