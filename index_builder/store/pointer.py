"""Which generation is active, and which is on trial beside it: the files CURRENT, HISTORY and TRIAL.

CURRENT names the active generation. HISTORY lists those that were active before it, the latest last. Each file is
replaced atomically, but a process may die between two writes. So HISTORY is written first, and readers skip entries at
its end that name the current generation: between the writes they see either the old state or the new one.

TRIAL names a generation that servers load beside the active one, so that both can be compared: a JSON object with the
fields of a `Trial`. It changes nothing of the other two. A server that ends one writes why to loop/withdrawn.json.
"""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import Final, TypeVar

import orjson

from polyrank.index_builder.errors import GenerationCorrupt, GenerationNotFound
from polyrank.index_builder.layout import is_time_id
from polyrank.model.durable import make_directory, write_atomically
from polyrank.model.errors import Shortage, shortage_in
from polyrank.model.inputs import read_input

LEASE_SECONDS: Final = 180.0
LEASE_ENDED: Final = "the lease ended"
HISTORY_LENGTH = 100

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Trial:
    """A generation on trial beside the active one."""

    generation: str
    share: float = 0.0  # of the conversations, those that it answers unless their rankings say otherwise; 0 to 1
    # When its lease was renewed, in seconds since the epoch; None: it has none, and lasts until somebody ends it. A
    # server ends it LEASE_SECONDS after it has first seen this renewal: clocks of hosts may differ.
    renewed: float | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.generation, str) and is_time_id(self.generation)):
            raise ValueError("generation: not the id of a generation")
        if not (_is_number(self.share) and 0 <= self.share <= 1):
            raise ValueError(f"share: not from 0 to 1: {self.share!r}")
        if not (self.renewed is None or _is_number(self.renewed)):
            raise ValueError(f"renewed: no time: {self.renewed!r}")


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A trial that a server has ended; `at`: seconds since the epoch."""

    generation: str
    at: float
    why: str


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


class Pointer:
    """The active generation of a store. One process at a time may change it: the caller holds pointer.lock."""

    def __init__(self, root: Path) -> None:
        self._current, self._history, self._trial = root / "CURRENT", root / "HISTORY", root / "TRIAL"
        self._withdrawn = root / "loop" / "withdrawn.json"

    def current(self) -> str | None:
        """The active id; None before the first activation. Raises GenerationCorrupt if CURRENT is damaged or gone."""
        try:
            text = read_input(self._current).decode("ascii", "replace").removesuffix("\n")
        except FileNotFoundError as error:
            if self._entries():  # HISTORY is written when CURRENT is replaced, so there was one
                raise GenerationCorrupt("''", "CURRENT is missing") from error
            return None
        except OSError as error:
            raise _unread(error) from error
        if not is_time_id(text):
            raise GenerationCorrupt(repr(text[:80]), "CURRENT does not name a generation")
        return text

    def current_or_none(self) -> str | None:
        """The active generation's id; None also where `current` raises GenerationCorrupt."""
        try:
            return self.current()
        except GenerationCorrupt:
            return None

    def stamp(self) -> tuple[int, int] | None:
        """A value that changes whenever CURRENT is written, also with the same id; None if there is no CURRENT.

        Raises GenerationCorrupt if CURRENT cannot be looked at.
        """
        try:
            status = self._current.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unread(error) from error
        return status.st_ino, status.st_mtime_ns

    def trial(self) -> Trial | None:
        """What is on trial; None: there is nothing, or TRIAL is damaged."""
        return _read(Trial, self._trial)

    def set_trial(self, trial: Trial | None) -> None:
        if trial is None:
            self._trial.unlink(missing_ok=True)
        else:
            write_atomically(self._trial, orjson.dumps(asdict(trial)) + b"\n")

    def withdraw(self, trial: Withdrawn) -> None:
        """End the trial, and keep why; that comes first, so that nobody sees a trial ended without a reason."""
        make_directory(self._withdrawn.parent)
        write_atomically(self._withdrawn, orjson.dumps(asdict(trial)) + b"\n")
        self.set_trial(None)

    def withdrawn(self) -> Withdrawn | None:
        """The last trial that a server has ended; None: there was none, or the file is damaged. Errors as `trial`."""
        return _read(Withdrawn, self._withdrawn)

    def history(self, published: Collection[str]) -> list[str]:
        """The published generations that were active before the current one, the latest last.

        Where one that came between two entries of the same generation was collected, they are one.
        """
        entries = [entry for entry, _ in groupby(entry for entry in self._entries() if entry in published)]
        current = self.current_or_none()
        while entries and entries[-1] == current:
            entries.pop()
        return entries

    def was_left(self, generation: str) -> bool:
        """Whether HISTORY names a generation, which may be gone."""
        return generation in self._entries()

    def reasons_to_keep(self, published: Sequence[str], keep: int) -> dict[str, str]:
        """The published generations, given oldest first, that a collection keeps, each with the reason.

        The active one stays, and so do one on trial and newer ones. Of the older ones, as many stay as make `keep`, at
        least 1, with the active one: first those that rollbacks would reach, then the newest. Errors as `current`.
        """
        current, trial = self.current(), self.trial()
        older = [generation for generation in published if current is None or generation < current]
        by_worth = dict.fromkeys([*reversed(self.history(published)), *reversed(older)])
        spared = [generation for generation in by_worth if generation in older][: keep - (current is not None)]
        reasons = dict.fromkeys(spared, f"among the {keep} to keep")
        reasons |= {} if trial is None else {trial.generation: "on trial"}
        if current is not None:
            newer = [generation for generation in published if generation > current]
            waits = "newer than the active one, so it may wait for its activation"
            reasons = dict.fromkeys(newer, waits) | reasons | {current: "active"}
        return {generation: reasons[generation] for generation in published if generation in reasons}

    def advance(self, generation: str) -> None:
        """Make the generation current, and the one that was current the first to go back to.

        CURRENT is written even if it names the generation already. Servers that follow it then load again: somebody may
        have repaired the files. If the process dies between the two writes, HISTORY ends with the generation that is
        still current, and that entry is skipped.
        """
        current, entries = self.current_or_none(), self._entries()
        if current not in (None, generation) and entries[-1:] != [current]:
            self._write_history([*entries, current])
        self._write_current(generation)

    def replace(self, generation: str, published: Collection[str]) -> None:
        """Make the generation current in place of the one that is; `history` stays as it is.

        First HISTORY loses the entries that are skipped now: they name the old generation, and would count once CURRENT
        has changed. If the process dies between the two writes, nothing has changed for a reader.
        """
        self._write_history(self.history(published))
        self._write_current(generation)

    def go_back(self, generation: str) -> None:
        """Make the generation current that was the last of `history`, and forget those after it.

        Until CURRENT has changed, HISTORY must still lead to the generation. If the process dies right after that, the
        generation is the last entry of HISTORY, and skipped. Raises GenerationNotFound if it was not active before.
        """
        entries = self._entries()
        while entries and entries[-1] != generation:
            entries.pop()
        if not entries:
            raise GenerationNotFound(f"generation {generation} was not active before")
        self._write_history(entries)
        self._write_current(generation)
        self._write_history(entries[:-1])

    def _entries(self) -> list[str]:
        """The lines of HISTORY without damaged ones; none if it cannot be read. A shortage hides none: it is raised."""
        try:
            lines = read_input(self._history).decode("ascii", "replace").splitlines()
        except OSError as error:
            if shortage := shortage_in(error):
                raise shortage from error
            return []
        return [line for line in lines if is_time_id(line)]

    def _write_current(self, generation: str) -> None:
        write_atomically(self._current, f"{generation}\n".encode())

    def _write_history(self, history: list[str]) -> None:
        write_atomically(self._history, "".join(f"{entry}\n" for entry in history[-HISTORY_LENGTH:]).encode())


def _read(kind: type[T], path: Path) -> T | None:
    """Read what a file says of a trial; None: nothing, or it is damaged."""
    try:
        return kind(**orjson.loads(read_input(path)))
    except OSError as error:
        if shortage := shortage_in(error):
            raise shortage from error
    except (TypeError, ValueError):
        pass
    return None


def _unread(error: OSError) -> Shortage | GenerationCorrupt:
    return shortage_in(error) or GenerationCorrupt("''", f"CURRENT cannot be read: {error.strerror}")
