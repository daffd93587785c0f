"""Token buckets: how often somebody may call. Serving processes of one server share theirs in memory without a name."""

import fcntl
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from tempfile import TemporaryFile
from typing import Final

Clock = Callable[[], float]  # monotonic seconds; Linux has one such clock for all processes


class TokenBucket:
    """Bounds how often somebody calls: it holds at most `burst` tokens and gains `rate_per_s`; a call takes one."""

    def __init__(self, rate_per_s: float, burst: int, clock: Clock = time.monotonic) -> None:
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock()

    def take(self) -> float:
        """Take a token; returns 0.0, or, where there is none, the seconds until there will be one."""
        now = self._clock()
        self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate_per_s)
        self._at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self.rate_per_s


# A row has four numbers: which bucket it is (0: none yet), when that is full again, its tokens, and when these were
# counted. It stands in one of so many places, from the one that its hash names.
_BUCKET, _FULL_AT, _TOKENS, _AT = range(4)
_NUMBERS: Final = 4
_ROW_BYTES: Final = 8 * _NUMBERS
PLACES: Final = 32
ROWS: Final = 1 << 18  # more than a keys file has room for keys; 8 MiB at most, as rows that nobody uses take none
# Nobody waits longer for a lock: it is held for microseconds, unless its process was stopped just then.
PATIENCE_SECONDS: Final = 0.01
_RETRY_SECONDS: Final = 0.000_05


@contextmanager
def shared_memory() -> Iterator[int]:
    """Keep empty memory for `SharedBuckets` for the block; yields its descriptor, which processes are to inherit."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("polyrank-rates")
    else:  # beyond Linux, a file without a name
        with TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.truncate(descriptor, ROWS * _ROW_BYTES)
        yield descriptor
    finally:
        os.close(descriptor)


class SharedBuckets:
    """The buckets of several processes, in a table that all of them map. Each process uses it in one thread.

    A full bucket is like a new one. So a row is used from a bucket's first call until that is full again, and keys may
    come and go.

    Whoever reads and changes rows holds a lock of the kernel on them, which ends with its process, however that ends.
    If it is not free in time, calls go on without it: then one of two calls at the same moment may not be counted.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        memory = memoryview(mmap.mmap(descriptor, ROWS * _ROW_BYTES))
        self._whole, self._numbers = memory.cast("Q"), memory.cast("d")

    def bucket(self, name: str, rate_per_s: float, burst: int, clock: Clock = time.monotonic) -> "SharedBucket":
        """Return the bucket of this name, rate and burst: the same one in every process."""
        return SharedBucket(self, name, rate_per_s, burst, clock)

    @contextmanager
    def locked(self, place: int) -> Iterator[None]:
        """Hold the rows of a place for the block, if they are free in time."""
        span = (PLACES * _ROW_BYTES, place * _ROW_BYTES)
        until = time.monotonic() + PATIENCE_SECONDS
        while not self._lock(*span) and time.monotonic() < until:
            time.sleep(_RETRY_SECONDS)
        try:
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, *span)

    def _lock(self, length: int, start: int) -> bool:
        with suppress(OSError):  # another process holds it, or the system has no more locks
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
            return True
        return False

    def row_of(self, bucket: int, place: int) -> tuple[int, bool]:
        """Return where the row of a bucket begins, or else a row for it; and whether it was there.

        If all of its rows are in use, it gets that of the bucket which is full first.
        """
        rows = range(place * _NUMBERS, (place + PLACES) * _NUMBERS, _NUMBERS)
        for row in rows:
            if self._whole[row] == bucket:
                return row, True
        return min(rows, key=lambda row: self._numbers[row + _FULL_AT]), False

    def read(self, row: int) -> tuple[float, float]:
        """Return the tokens of a row, and when they were counted."""
        return self._numbers[row + _TOKENS], self._numbers[row + _AT]

    def write(self, row: int, bucket: int, tokens: float, at: float, full_at: float) -> None:
        """Write a row so that a process which is killed meanwhile leaves no tokens that were spent."""
        self._numbers[row + _AT] = at
        self._numbers[row + _TOKENS] = tokens
        self._numbers[row + _FULL_AT] = full_at
        self._whole[row] = bucket


class SharedBucket(TokenBucket):
    """A bucket whose state lies in the table between two calls."""

    def __init__(self, table: SharedBuckets, name: str, rate_per_s: float, burst: int, clock: Clock) -> None:
        super().__init__(rate_per_s, burst, clock)
        self._table = table
        digest = sha256(f"{name} {rate_per_s} {burst}".encode()).digest()
        self._bucket = int.from_bytes(digest[:8], "big") | 1  # never 0
        self._place = int.from_bytes(digest[8:16], "big") % (ROWS - PLACES)

    def take(self) -> float:
        """Take a token, as in one process."""
        with self._table.locked(self._place):
            row, is_there = self._table.row_of(self._bucket, self._place)
            self._tokens, self._at = self._table.read(row) if is_there else (float(self.burst), self._clock())
            seconds = super().take()
            full_at = self._at + (self.burst - self._tokens) / self.rate_per_s
            self._table.write(row, self._bucket, self._tokens, self._at, full_at)
        return seconds
