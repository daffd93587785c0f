"""Makes a version of the pool the active one, and gives it the updates that it lacks.

A version is a generation or, in a store that is cut into parts, a set. Both are switched to in the same way: CURRENT
and HISTORY say which one is active (pointer.py), and each has its own update log (updates.py).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from polyrank.index_builder.errors import CompactionOvertaken, GenerationCorrupt, GenerationError, GenerationNotFound
from polyrank.index_builder.generation.texts import FindTexts
from polyrank.index_builder.store.locks import Lease, fenced, locked
from polyrank.index_builder.store.pointer import Pointer
from polyrank.index_builder.store.updates import MissedUpdates, UpdateLogs, Version
from polyrank.index_builder.vectors.encoder import Encode
from polyrank.model.durable import make_directory
from polyrank.model.errors import shortage_in


class Switch:
    """Changes which version of a store is active.

    Args:
        root: the store's directory.
        ids: returns the published versions, oldest first.
        read: reads one; raises GenerationError.

    Attributes:
        pointer: which one is active.
        updates: the update logs of all.
    """

    def __init__(self, root: Path, ids: Callable[[], list[str]], read: Callable[[str], Version]) -> None:
        self._root, self._ids, self._read = root, ids, read
        self.pointer, self.updates = Pointer(root), UpdateLogs(root)

    def history(self) -> list[str]:
        """The versions that rollbacks can reach; the next one last."""
        return self.pointer.history(self._ids())

    def check_updates(self, version: Version) -> None:
        """Read a version's update log to its end.

        Raises:
            GenerationCorrupt: it is damaged, or gone though the version is active or was.
            Shortage: it cannot be read at the moment.
        """
        name, reachable = f"its update log {version.id}.log", (self.pointer.current_or_none(), *self.history())
        if version.id in reachable and not self.updates.exists(version.id):
            raise GenerationCorrupt(version.id, f"{name} is gone; build again, or restore it")
        try:
            self.updates.of(version).catch_up()
        except OSError as error:
            corrupt = GenerationCorrupt(version.id, f"{name} cannot be read: {error.strerror}")
            raise shortage_in(error) or corrupt from error

    @contextmanager
    def to(
        self,
        version: Version,
        encode: Encode | None = None,
        lease: Lease | None = None,
        copy_of: str | None = None,
        find: FindTexts | None = None,
    ) -> Iterator[None]:
        """Prepare a version, then hold all locks for the block, which makes CURRENT name it.

        If the process dies
        * before the block, the version is not active. What its log has received is completed the next time;
        * in the block, CURRENT names the old version or the new one: pointer.py;
        * after the block, the new version's log does not say yet that it was active, and TRIAL may still name it. The
          next switch mends both before it leaves the version.

        Args:
            version: the caller has checked its files.
            encode: its model, which encodes updates made under another one; None: there must be none.
            lease: held by the builder that built it.
            copy_of: the active version that it was made of; then it receives the updates of that one alone.
            find: looks up texts in all of its parts; None: its snapshots do.

        Raises:
            GenerationNotFound: it was removed meanwhile. After this and all other errors, nothing has changed.
            GenerationCorrupt: its update log is damaged or gone.
            FingerprintMismatch: an update has to be encoded, and there is no `encode`.
            StoreBusy: another process holds a lock of the store for too long.
            LeaseLost: another builder has taken over.
            CompactionOvertaken: `copy_of` is not active any more.
        """
        self._check_active(copy_of)
        self.check_updates(version)
        missed = MissedUpdates(self.updates, version, encode, copy_of, find)
        if version.id != self.pointer.current_or_none():
            missed.encode()
        with self.changing(), self.updates.writing(), fenced(lease):
            if version.id not in self._ids():  # collected before the lock was taken
                raise GenerationNotFound(f"generation {version.id} has just been removed")
            self._check_active(copy_of)
            if (current := self.pointer.current_or_none()) != version.id:
                missed.write()
                self._mark_active(current)
            # The old version's, too: a process that died after its block has not ended it.
            ends_trial = self.pointer.trial() in (version.id, current)
            yield
            self._mark_active(version.id)
            if ends_trial:
                self.pointer.set_trial(None)

    def _check_active(self, version: str | None) -> None:
        if version is not None and self.pointer.current() != version:
            raise CompactionOvertaken(f"generation {version}, which was copied, is not the active one any more")

    def _mark_active(self, version: str | None) -> None:
        """Note in a version's log that it is active, or was: it receives no missed updates when it comes back.

        Errors are dropped. A damaged version cannot come back, and a lost log must not be made anew. If the disk is
        full, the next switch tries again.
        """
        with suppress(GenerationError, OSError):
            if version is not None and self.updates.exists(version):
                self.updates.of(self._read(version)).mark_active()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Be the only one who publishes, switches or collects, for the block; StoreBusy if others take longer."""
        make_directory(self._root)
        with locked(self._root / "pointer.lock"):
            yield

    def remove_updates(self, spared: list[str]) -> None:
        """Remove the update logs of versions that are gone, unless a version may still have to receive them.

        The caller is the builder, so no version is being built that may need them. Those of `spared` stay as well.
        """
        with self.updates.writing():
            ids, current = self._ids(), self.pointer.current_or_none()
            if all(version == current or self._was_active(version) for version in ids):
                self.updates.keep_only([*ids, *spared])

    def _was_active(self, version: str) -> bool:
        try:
            return self.updates.was_active(self._read(version))
        except GenerationError:
            return True  # it is damaged, and never will be
