"""The ids that a pool has had so far, as a set of 64-bit hashes that does not grow in memory.

The set is a hash table with open addressing. A small table lies in memory. A larger one lies in a mapped file without a
name: the kernel can write its pages back and drop them, and the file disappears with the process.
"""

import mmap
import os
from pathlib import Path
from tempfile import TemporaryFile

_SLOT_BYTES = 8
_BITS_IN_MEMORY = 17  # 2^17 slots are 1 MiB, for 65,536 hashes


class SeenHashes:
    """A growing set of 64-bit hashes. It is at most half full, so that a hash takes 16 to 32 bytes.

    `scratch` is the directory of the file; None: the system's temporary directory.
    """

    def __init__(self, scratch: Path | None = None) -> None:
        self._scratch = scratch
        self._count = 0
        self._has_zero = False  # 0 marks an empty slot
        self._resize(_BITS_IN_MEMORY)

    def add(self, hashed: int) -> bool:
        """Add a hash; returns whether it is new. Raises OSError if the disk has no room for the set."""
        if hashed == 0:
            is_new, self._has_zero = not self._has_zero, True
            return is_new
        at = self._slot(hashed)
        if self._slots[at]:
            return False
        self._slots[at] = hashed
        self._count += 1
        if 2 * self._count > self._mask:
            self._grow()
        return True

    def _slot(self, hashed: int) -> int:
        """Where the hash is or belongs. Its high bits choose, so that growing reads and writes slots in order."""
        at = hashed >> self._shift
        while self._slots[at] not in (0, hashed):
            at = (at + 1) & self._mask
        return at

    def _grow(self) -> None:
        old = self._slots
        self._resize(self._mask.bit_length() + 1)
        for hashed in old:
            if hashed:
                self._slots[self._slot(hashed)] = hashed

    def _resize(self, bits: int) -> None:
        self._mask, self._shift = (1 << bits) - 1, 64 - bits
        size = _SLOT_BYTES << bits
        space = bytearray(size) if bits <= _BITS_IN_MEMORY else _mapped(size, self._scratch)
        self._slots = memoryview(space).cast("Q")


def _mapped(size: int, directory: Path | None) -> mmap.mmap:
    """A zeroed map of a file without a name; the map keeps the file alive."""
    with TemporaryFile(dir=directory) as file:
        # Reserve the room now: writing to a hole for which the disk has no room would kill the process.
        os.posix_fallocate(file.fileno(), 0, size)
        return mmap.mmap(file.fileno(), size)
