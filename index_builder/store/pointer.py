"""Which generation is active: the files CURRENT and HISTORY.

CURRENT names the active generation; HISTORY lists those that were active before it, the latest last. Each is replaced
atomically. Between the two writes a crash may leave CURRENT's own id at the end of HISTORY: such entries are skipped.
"""

import re
from collections.abc import Collection
from pathlib import Path

from polyrank.index_builder.errors import GenerationCorrupt, GenerationNotFound
from polyrank.model.durable import write_atomically

_ID = re.compile(r"\d{8}T\d{12}-[0-9a-f]{8}")
_HISTORY_LENGTH = 100


def is_generation_id(text: str) -> bool:
    """Whether the text has the form of a generation's id; nothing else may become part of a path."""
    return _ID.fullmatch(text) is not None


class Pointer:
    """The active generation of a store. Changes are for one process at a time: the caller holds a lock."""

    def __init__(self, root: Path) -> None:
        self._current, self._history = root / "CURRENT", root / "HISTORY"

    def current(self) -> str | None:
        """The active generation's id; None before the first activation.

        Raises:
            GenerationCorrupt: CURRENT holds something else than an id, or is gone or cannot be read.
        """
        try:
            text = self._current.read_bytes().decode("ascii", "replace").removesuffix("\n")
        except FileNotFoundError as error:
            if self._entries():  # written when CURRENT is replaced: there was one
                raise GenerationCorrupt("''", "CURRENT is missing") from error
            return None
        except OSError as error:
            raise GenerationCorrupt("''", f"CURRENT cannot be read: {error.strerror}") from error
        if not is_generation_id(text):
            raise GenerationCorrupt(repr(text[:80]), "CURRENT does not name a generation")
        return text

    def current_or_none(self) -> str | None:
        """As `current`; None also where CURRENT is damaged."""
        try:
            return self.current()
        except GenerationCorrupt:
            return None

    def stamp(self) -> tuple[int, int] | None:
        """What changes whenever CURRENT is written, be it with the same id; None where there is none."""
        try:
            status = self._current.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns

    def history(self, published: Collection[str]) -> list[str]:
        """The published generations active before the current one, the latest last."""
        entries, current = [each for each in self._entries() if each in published], self.current_or_none()
        while entries and entries[-1] == current:
            entries.pop()
        return entries

    def advance(self, generation: str) -> None:
        """Make the generation current, and the one that was the first to go back to.

        CURRENT is written even when it names the generation already: whoever follows it looks again, at files that
        may have been repaired.
        """
        current, entries = self.current_or_none(), self._entries()
        if current not in (None, generation) and entries[-1:] != [current]:
            # First, so that no crash forgets the way back.
            self._write_history([*entries, current])
        self._write_current(generation)

    def replace(self, generation: str, published: Collection[str]) -> None:
        """Make the generation current instead of the one that is; `history` stays as it is."""
        # Without the entries that are skipped now: of the current one, which will be another.
        self._write_history(self.history(published))
        self._write_current(generation)

    def go_back(self, generation: str) -> None:
        """Make the generation current that was the last of `history`, and forget those after it.

        Raises:
            GenerationNotFound: it was not active before.
        """
        entries = self._entries()
        while entries and entries[-1] != generation:
            entries.pop()
        if not entries:
            raise GenerationNotFound(f"generation {generation} was not active before")
        # Until CURRENT has changed the history must lead there; from then on, as its last entry, it is skipped.
        self._write_history(entries)
        self._write_current(generation)
        self._write_history(entries[:-1])

    def _entries(self) -> list[str]:
        """HISTORY as it is; a damaged line is left out, and where it cannot be read there is no way back."""
        try:
            lines = self._history.read_bytes().decode("ascii", "replace").splitlines()
        except OSError:
            return []
        return [line for line in lines if is_generation_id(line)]

    def _write_current(self, generation: str) -> None:
        write_atomically(self._current, f"{generation}\n".encode())

    def _write_history(self, history: list[str]) -> None:
        write_atomically(self._history, "".join(f"{each}\n" for each in history[-_HISTORY_LENGTH:]).encode())
