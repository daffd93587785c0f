"""A table that lies on the disk, in a file without a name, so that memory does not grow with it."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager


@contextmanager
def table_on_disk() -> Iterator[sqlite3.Connection]:
    """Yield a database of SQLite in the system's temporary directory; it is gone when the block ends."""
    try:
        with closing(sqlite3.connect("")) as table:
            yield table
    except sqlite3.Error as error:
        raise OSError(errno.EIO, f"the rows cannot be kept on the disk of temporary files: {error}") from error
