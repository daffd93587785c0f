"""Bytes in this process's memory; when there are too many, the least recently used go."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from threading import Lock

ENTRY_BYTES = 220  # of an entry besides its name and its value: measured with tracemalloc, CPython 3.11

# What the value belongs to, and its name there.
Key = tuple[str, str]


class Lru:
    """Values by key, up to `max_bytes` of keys, values and what holds them. Safe to use from several threads.

    Attributes:
        bytes: held now.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._entries: OrderedDict[Key, bytes] = OrderedDict()
        self.bytes = 0

    def fits(self, entries: int, name_letters: int, value_bytes: int, share: float) -> bool:
        """Whether so many entries, with names of this length and so many bytes together, take at most a share of it."""
        return entries * (ENTRY_BYTES + name_letters) + value_bytes <= share * self._max_bytes

    def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """Return the values of keys, in the order asked; None where there is none."""
        found = []
        with self._lock:
            for key in keys:
                value = self._entries.get(key)
                if value is not None:
                    self._entries.move_to_end(key)
                found.append(value)
        return found

    def put_many(self, entries: Iterable[tuple[Key, bytes]]) -> None:
        """Add values, or replace them; a value larger than `max_bytes` is not kept."""
        with self._lock:
            for key, value in entries:
                self._drop(key, self._entries.pop(key, None))
                self._entries[key] = value
                self.bytes += _bytes(key, value)
            while self.bytes > self._max_bytes:
                self._drop(*self._entries.popitem(last=False))

    def _drop(self, key: Key, value: bytes | None) -> None:
        if value is not None:
            self.bytes -= _bytes(key, value)


def _bytes(key: Key, value: bytes) -> int:
    return ENTRY_BYTES + len(key[1]) + len(value)
