"""Which ids a pool has had, without holding them in memory.

A set of 64-bit hashes by open addressing. Its slots lie in memory while they are few, then in a file without a name
that is mapped and shared: its pages are the kernel's to write back and drop, and the file is gone with its user.
"""

import mmap
import os
from pathlib import Path
from tempfile import TemporaryFile

_SLOT_BYTES = 8
_BITS_IN_MEMORY = 17  # 2^17 slots: 1 MiB, for 65,536 hashes


class SeenHashes:
    """A growing set of 64-bit hashes, at most half full: 16 to 32 bytes of disk each.

    Args:
        scratch: where the file is made once the set outgrows the memory it may have; None: the system's temporary
            directory.
    """

    def __init__(self, scratch: Path | None = None) -> None:
        self._scratch = scratch
        self._count = 0
        self._has_zero = False  # an empty slot is 0
        self._resize(_BITS_IN_MEMORY)

    def add(self, hashed: int) -> bool:
        """Remember a hash; tells whether it is new.

        Raises:
            OSError: the disk has no room for the set.
        """
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
        """Where the hash is, or belongs. The high bits choose, so that growing reads and writes in order."""
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
    """So many zero bytes of a file without a name; the map keeps it."""
    with TemporaryFile(dir=directory) as file:
        # A hole that the disk has no room for would end the process when it is written to.
        os.posix_fallocate(file.fileno(), 0, size)
        return mmap.mmap(file.fileno(), size)
