"""Makes a generation the active one, and gives it the updates that it lacks.

CURRENT and HISTORY say which one is active (pointer.py), and each has its own update log (updates.py).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from polyrank.index_builder.errors import CompactionOvertaken, GenerationCorrupt, GenerationError, GenerationNotFound
from polyrank.index_builder.generation.candidates import FindTexts
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.store.locks import Lease, fenced, locked
from polyrank.index_builder.store.pointer import Pointer
from polyrank.index_builder.store.updates import MissedUpdates, UpdateLogs
from polyrank.index_builder.vectors.encoder import Encode
from polyrank.model.durable import make_directory
from polyrank.model.errors import shortage_in


class Switch:
    """Changes which generation of a store is active.

    Args:
        ids: returns the published generations, oldest first.
        read: reads one; raises GenerationError.
    """

    def __init__(self, root: Path, ids: Callable[[], list[str]], read: Callable[[str], Manifest]) -> None:
        self._root, self._ids, self._read = root, ids, read
        self.pointer, self.updates = Pointer(root), UpdateLogs(root)

    def history(self) -> list[str]:
        """The generations that rollbacks can reach; the next one last."""
        return self.pointer.history(self._ids())

    def check_updates(self, manifest: Manifest) -> None:
        """Read a generation's update log to its end.

        Raises GenerationCorrupt if it is damaged, or gone though the generation is active or was.
        """
        name, reachable = f"its update log {manifest.id}.log", (self.pointer.current_or_none(), *self.history())
        if manifest.id in reachable and not self.updates.exists(manifest.id):
            raise GenerationCorrupt(manifest.id, f"{name} is gone; build again, or restore it")
        try:
            self.updates.of(manifest).catch_up()
        except OSError as error:
            corrupt = GenerationCorrupt(manifest.id, f"{name} cannot be read: {error.strerror}")
            raise shortage_in(error) or corrupt from error

    @contextmanager
    def to(
        self,
        manifest: Manifest,
        encode: Encode | None = None,
        lease: Lease | None = None,
        copy_of: str | None = None,
        find: FindTexts | None = None,
    ) -> Iterator[None]:
        """Prepare a generation, then hold all locks for the block, which makes CURRENT name it.

        If the process dies
        * before the block, the generation is not active. What its log has received is completed the next time, as it is
          of a generation that was on trial;
        * in the block, CURRENT names the old generation or the new one: pointer.py;
        * after the block, the new one's log does not say yet that it was active, and TRIAL may still name it. The next
          switch mends both before it leaves the generation.

        Args:
            manifest: of a generation; the caller has checked its files.
            encode: its model, which encodes updates made under another one; None: there must be none.
            lease: held by the builder that built it.
            copy_of: the active generation that it was made of; then it receives the updates of that one alone.
            find: looks up texts in all of its parts; None: its snapshots do.

        Raises:
            GenerationNotFound: it was removed meanwhile. After this and all other errors, nothing has changed.
            GenerationCorrupt: its update log is damaged or gone.
            FingerprintMismatch: an update has to be encoded, and there is no `encode`.
            CompactionOvertaken: `copy_of` is not active any more.
        """
        self._check_active(copy_of)
        self.check_updates(manifest)
        trial = self.pointer.trial()
        # One on trial has most of what came since it was left: it is given the rest, too.
        on_trial = encode is not None and trial is not None and trial.generation == manifest.id
        missed = MissedUpdates(self.updates, manifest, encode, copy_of, find, on_trial=on_trial)
        if manifest.id != self.pointer.current_or_none():
            missed.encode()
        with self.changing(), self.updates.writing(), fenced(lease):
            if manifest.id not in self._ids():  # collected before the lock was taken
                raise GenerationNotFound(f"generation {manifest.id} has just been removed")
            self._check_active(copy_of)
            if (current := self.pointer.current_or_none()) != manifest.id:
                missed.write()
                self._mark_active(current)
            # The old generation's, too: a process that died after its block has not ended it.
            trial = self.pointer.trial()
            ends_trial = trial is not None and trial.generation in (manifest.id, current)
            yield
            self._mark_active(manifest.id)
            if ends_trial:
                self.pointer.set_trial(None)

    def _check_active(self, generation: str | None) -> None:
        if generation is not None and self.pointer.current() != generation:
            raise CompactionOvertaken(generation)

    def _mark_active(self, generation: str | None) -> None:
        """Note in a generation's log that it is active, or was: it receives no missed updates when it comes back.

        Errors are dropped. A damaged generation cannot come back, and a lost log must not be made anew. If the disk is
        full, the next switch tries again.
        """
        with suppress(GenerationError, OSError):
            if generation is not None and self.updates.exists(generation):
                self.updates.of(self._read(generation)).mark_active()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Be the only one who publishes, switches or collects, for the block; StoreBusy if others take longer."""
        make_directory(self._root)
        with locked(self._root / "pointer.lock"):
            yield

    def remove_updates(self, spared: list[str]) -> None:
        """Remove the update logs of generations that are gone, unless a generation may still have to receive them.

        The caller is the builder, so no generation is being built that may need them. Those of `spared` stay as well.
        """
        with self.updates.writing():
            ids, current, trial = self._ids(), self.pointer.current_or_none(), self.pointer.trial()
            receives = trial and trial.generation
            if all(each == current or (each != receives and self._was_active(each)) for each in ids):
                self.updates.keep_only([*ids, *spared])

    def _was_active(self, generation: str) -> bool:
        try:
            return self.updates.was_active(self._read(generation))
        except GenerationError:
            return True  # it is damaged, and never will be
