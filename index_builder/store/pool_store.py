"""What every store does, whether its generations are whole or cut into parts: list, switch, roll back, try out.

STORE/CURRENT, HISTORY, TRIAL    which generation is active: pointer.py
STORE/log/                       the updates of each generation: updates.py, update_log.py
STORE/rejected/<id>/             rejected.jsonl: the bad rows of a generation's pool
STORE/jobs/                      index jobs: build/job_records.py
STORE/build.lock, pointer.lock   who may build and switch: locks.py
"""

import logging
import shutil
from abc import ABC, abstractmethod
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from polyrank.index_builder.errors import GenerationCorrupt, GenerationNotFound, StoreBusy
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.generation.texts import FindTexts
from polyrank.index_builder.layout import TEMPORARY_PREFIX, Stray, entries, is_time_id, new_time_id, why_not_plain
from polyrank.index_builder.store.leftovers import Forget, discard, forget_nothing
from polyrank.index_builder.store.locks import Lease
from polyrank.index_builder.store.switch import Switch
from polyrank.index_builder.store.updates import Version
from polyrank.index_builder.vectors.encoder import Encode
from polyrank.model.durable import rename_durably
from polyrank.model.errors import InvalidInput

V = TypeVar("V", bound=Version)

log = logging.getLogger(__name__)


class PoolStore(ABC, Generic[V]):
    """The generations under a directory; several threads and processes may call every method.

    A caller that has checked a generation, or has just built it, switches to it with `make_active` or `go_back`, which
    do not read its files again. `activate` and `rollback` verify first.

    Args:
        root: the directory of the store.
        generations: that of its generations.
    """

    def __init__(self, root: Path, generations: Path) -> None:
        self.root, self._generations = root, generations
        self._switch = Switch(root, self.ids, self.read)
        self._pointer, self.updates = self._switch.pointer, self._switch.updates

    # What there is.

    def ids(self) -> list[str]:
        """The published generations, oldest first."""
        return entries(self._generations).published

    def strays(self) -> list[Stray]:
        """What lies among the generations and is not of the store; it is left alone."""
        return entries(self._generations).strays

    def current(self) -> str | None:
        """The active generation's id; see `Pointer.current`."""
        return self._pointer.current()

    def current_or_none(self) -> str | None:
        """The active generation's id; None also if CURRENT is damaged, gone or unreadable."""
        return self._pointer.current_or_none()

    def stamp(self) -> tuple[int, int] | None:
        """A value that changes with every activation, also of the same generation; None before the first one."""
        return self._pointer.stamp()

    def history(self) -> list[str]:
        """The generations that rollbacks can reach; the next one last."""
        return self._switch.history()

    def trial(self) -> str | None:
        """The generation that servers load beside the active one; None: there is none. Errors as `Pointer.trial`."""
        named = self._pointer.trial()
        if named is None or named == self.current_or_none() or named not in self.ids():
            return None
        return named

    def path(self, generation: str) -> Path:
        """The directory of a generation. Raises GenerationNotFound if the text does not have the form of an id."""
        if not is_time_id(generation):
            raise GenerationNotFound(
                f"{generation[:80]!r} is not the id of a generation; polyrank store list shows them"
            )
        return self._generations / generation

    @abstractmethod
    def read(self, generation: str) -> V:
        """Read what is switched to: what a generation says of itself, without looking at its other files."""

    @abstractmethod
    def manifest(self, generation: str) -> Manifest:
        """Describe a generation; errors as `read`."""

    @abstractmethod
    def model_directory(self, generation: str) -> Path:
        """The directory of a generation's model; errors as `read`."""

    @abstractmethod
    def verify(self, generation: str) -> V:
        """Check every byte of a generation and of its update log.

        Raises:
            GenerationNotFound, GenerationCorrupt, Shortage: it cannot be served.
        """

    @abstractmethod
    def parts(self, generation: str) -> list[dict[str, Any]]:
        """Describe the parts of a generation, as `polyrank store list` shows them; empty: it is whole."""

    @abstractmethod
    def updated(self, generation: str) -> tuple[int, int]:
        """Count a generation's candidates with its updates, and return the revision of the last one.

        Raises:
            GenerationNotFound, GenerationCorrupt, Shortage: they cannot be read.
        """

    @abstractmethod
    def gc(self, keep: int = 2, redis_url: str | None = None) -> list[str]:
        """Remove old generations; returns their ids. Which stay: see `Pointer.expired`."""

    @abstractmethod
    def discard_killed(self, since: datetime, redis_url: str | None) -> None:
        """Remove what killed builds have left that began after `since`.

        Raises:
            BuildBusy, LeaseLost, StoreUnavailable: the next build removes it.
        """

    def check_updates(self, version: V) -> None:
        """Read a generation's update log to its end.

        Raises:
            GenerationCorrupt: it is damaged, or gone though the generation is active or was.
            Shortage: it cannot be read at the moment.
        """
        self._switch.check_updates(version)

    def rejected_log(self, generation: str) -> Path:
        """The path of the list of bad rows in a generation's pool; it exists if there were any."""
        return self.root / "rejected" / generation / "rejected.jsonl"

    def serving_order(self) -> list[str]:
        """The generations that may be served, best first: the active one, then its stand-ins should it be refused.

        The stand-ins are, in this order: those that were active before, the latest first; those older than these, the
        newest first; newer ones, which nobody may have approved. The list is empty if none was ever active.
        """
        try:
            current = self.current()
        except GenerationCorrupt:
            current = None
        else:
            if current is None:
                return []
        trusted = [*([current] if current else []), *reversed(self.history())]
        others = list(reversed(self.ids()))
        older = [generation for generation in others if not trusted or generation < trusted[0]]
        return list(dict.fromkeys([*trusted, *older, *others]))

    # Switching.

    def activate(self, generation: str, encode: Encode | None = None) -> None:
        """Verify a generation, then make it the active one; arguments and errors as `verify` and `make_active`."""
        self.make_active(self.verify(generation), encode)

    def make_active(self, version: V, encode: Encode | None = None, lease: Lease | None = None) -> None:
        """Make a generation the active one. The caller has checked or built it, so its files are not read again.

        A generation that was never active receives the updates made since its pool was read. One that was active before
        comes back as its own last update left it.

        Args:
            version: the generation.
            encode: its model, which encodes updates made under another one; None: there must be none.
            lease: held by the builder that built it.

        Raises:
            GenerationNotFound, GenerationCorrupt, FingerprintMismatch, StoreBusy, LeaseLost: see `Switch.to`; nothing
                has changed then.
        """
        with self._switch.to(version, encode, lease, find=self._finds_texts(version)):
            self._pointer.advance(version.id)

    def _finds_texts(self, version: V) -> FindTexts | None:
        """What looks texts up in all parts of a generation; None: whoever reads its log does that."""
        return None

    def rollback(self) -> str:
        """Verify the generation that was active before the current one, then go back to it; returns its id.

        Raises:
            GenerationNotFound: none was active before, or all have been removed.
            GenerationCorrupt, Shortage: it cannot be served; nothing changes.
        """
        while True:
            history = self.history()
            if not history:
                raise GenerationNotFound(f"no earlier generation to roll back to in {self.root}")
            if self.go_back(self.verify(history[-1])):
                return history[-1]

    def go_back(self, version: V) -> bool:
        """Go back to a generation that the caller has checked, provided that it is still the last of `history`.

        Returns False if another process has switched meanwhile; then the active generation stays. Errors as
        `make_active`.
        """
        with self._switch.to(version):
            if self.history()[-1:] != [version.id]:
                return False
            self._pointer.go_back(version.id)
            return True

    def make_copy_active(
        self,
        old: str,
        copy: V,
        *,
        replaces: bool = True,
        lease: Lease | None = None,
        forget: Forget = forget_nothing,
    ) -> None:
        """Make a copy of the active generation the active one, with the updates of that one alone.

        Args:
            old: the active generation.
            copy: what the caller has just made of it, as a compaction. It is removed if it cannot become active. If
                another process holds pointer.lock for too long, it stays, and a warning says so. A collection removes
                it once a newer one is active.
            replaces: a rollback leads where it would have led before; else it leads to the old generation.
            lease: held by the builder that built it.
            forget: see `leftovers.discard`.

        Raises:
            GenerationNotFound, GenerationCorrupt, StoreBusy, LeaseLost: see `make_active`.
            CompactionOvertaken: another generation is active.
        """
        try:
            with self._switch.to(copy, lease=lease, copy_of=old):
                if replaces:
                    self._pointer.replace(copy.id, self.ids())
                else:
                    self._pointer.advance(copy.id)
        except BaseException:
            self._remove_useless(copy.id, forget)
            raise

    def _remove_useless(self, generation: str, forget: Forget) -> None:
        try:
            with self._switch.changing():
                useless = generation in self.ids() and self.current_or_none() != generation
                temporary = self._unlist(generation) if useless else None
        except StoreBusy as error:
            log.warning("generation %s stays, though it cannot become active: %s", generation, error)
            return
        if temporary:
            discard(temporary, forget)

    # A trial.

    def begin_trial(self, generation: str) -> None:
        """Let servers load a generation beside the active one, in place of another trial; CURRENT stays as it is.

        The trial ends when the generation becomes the active one. Until then no collection removes it.

        Raises:
            InvalidInput: it is the active one, perhaps since a moment ago.
            GenerationNotFound: it was removed meanwhile.
            StoreBusy: another process holds pointer.lock for too long.
        """
        with self._switch.changing():
            if generation == self.current_or_none():
                raise InvalidInput(f"generation: {generation} is active; put another one on trial")
            if generation not in self.ids():
                raise GenerationNotFound(f"no generation {generation} in {self.root}")
            self._pointer.set_trial(generation)

    def end_trial(self) -> None:
        """End the trial, if there is one; raises StoreBusy as `begin_trial`."""
        with self._switch.changing():
            self._pointer.set_trial(None)

    # Building and removing.

    def new_id(self, fingerprint: str) -> str:
        """Make an id that sorts after every other of the store, even if the clock was set back; see `new_time_id`."""
        strays = [stray.path.name for stray in self.strays() if is_time_id(stray.path.name)]  # links, perhaps
        return new_time_id([*self.ids(), *strays], fingerprint[:8])

    def _unlist(self, generation: str) -> Path:
        """Rename a generation to a temporary directory: if the process dies while it is removed, no half is listed."""
        temporary = self._generations / f"{TEMPORARY_PREFIX}{generation}"
        rename_durably(self.path(generation), temporary)
        return temporary

    def _remove_rejected(self) -> None:
        """Remove logs of bad rows that are older than all generations."""
        kept = self.ids()
        for directory in (self.root / "rejected").glob("*"):
            is_old = kept and is_time_id(directory.name) and directory.name < kept[0]
            if is_old and why_not_plain(directory, is_directory=True) is None:
                shutil.rmtree(directory)
