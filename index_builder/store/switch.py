"""Makes a generation the active one, and gives it the updates that it lacks.

CURRENT and HISTORY say which one is active (pointer.py), and each has its own update log (update_log.py). A generation
that becomes active for the first time receives the updates made since its pool was read, from the logs of all other
generations. One that was active before comes back as it was left. A generation on trial receives updates meanwhile:
those that it would receive if it became active and, if it was active before, those made since it was left.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from polyrank.index_builder.errors import (
    CompactionOvertaken,
    FingerprintMismatch,
    GenerationCorrupt,
    GenerationError,
    GenerationNotFound,
)
from polyrank.index_builder.generation.candidates import FindTexts
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.store.locks import Lease, fenced, locked
from polyrank.index_builder.store.pointer import Pointer
from polyrank.index_builder.store.update_log import Subject, Update, UpdateLog, UpdateLogs, warn_of_loss
from polyrank.index_builder.vectors.encoder import Encode
from polyrank.index_builder.vectors.local import rounded_all
from polyrank.model.durable import make_directory
from polyrank.model.errors import shortage_in
from polyrank.model.representations import Representations


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


class MissedUpdates:
    """The updates that a generation receives when it becomes active for the first time, or while it is on trial.

    They are written to its log in one go, before CURRENT names it. If the process dies amid them, the next activation
    finds in the log which ones it has, and writes the others. What a trial has written is there in the same way.

    Each method reads only what was appended to the logs since the last call. One thread at a time may use it.

    Args:
        encode: its model; None: updates made under another model are refused.
        copy_of: the generation of which it is a compaction, or another copy; None: it is none.
        find: looks up texts whose vectors the updates take over; None: whoever reads the log does that.
        on_trial: if it was active before, it receives what was written since it was left; else nothing.
    """

    def __init__(
        self,
        logs: UpdateLogs,
        manifest: Manifest,
        encode: Encode | None,
        copy_of: str | None = None,
        find: FindTexts | None = None,
        *,
        on_trial: bool = False,
    ) -> None:
        self._logs, self._manifest, self._encode, self._copy_of = logs, manifest, encode, copy_of
        self._find, self._on_trial = find, on_trial
        self._own = logs.of(manifest)
        self._others: dict[str, UpdateLog] = {}  # by generation
        self._damaged: set[str] = set()
        self._by_revision: dict[int, tuple[Subject, Update]] = {}
        self._encoded: dict[int, Representations] = {}
        self._first: dict[str, Representations] = {}  # of each text in the generation's log, where `find` is given

    @property
    def generation(self) -> str:
        return self._manifest.id

    def missed(self) -> list[tuple[Subject, Update]]:
        """The updates that the generation has to receive, in order, with the subjects of their logs.

        There are none if it was active before, unless it is on trial. If it is a copy of another generation, only
        updates of that one count. Raises GenerationCorrupt if its own log is damaged.
        """
        own = self._own
        for update in own.read():
            if self._find is not None:
                for at, candidate in enumerate(update.upserts):
                    self._first.setdefault(candidate.text, update.vectors.take([at]))
        if own.was_active and not self._on_trial:
            return []
        has = max(own.revision, own.floor, self._manifest.revision)
        known_ids = [*self._others, *self._damaged, self._manifest.id]
        self._others |= {log.subject.generation: log for log in self._logs.all(known_ids)}
        for generation, log in [*self._others.items()]:
            if not self._logs.exists(generation):
                del self._others[generation]  # collected
            elif self._copy_of in (None, generation):
                self._note(log, has)
        for revision in [each for each in self._by_revision if each <= has]:
            del self._by_revision[revision]
            self._encoded.pop(revision, None)
        return [self._by_revision[revision] for revision in sorted(self._by_revision)]

    def _note(self, log: UpdateLog, has: int) -> None:
        """Read on in a log; of an update that stands in several, one counts whose vectors need not be made again."""
        try:
            for update in log.read():
                earlier = self._by_revision.get(update.revision)
                if update.revision > has and (earlier is None or not self._is_own_model(earlier[0])):
                    self._by_revision[update.revision] = log.subject, update
        except GenerationCorrupt as error:  # those before the damage count
            self._damaged.add(log.subject.generation)
            del self._others[log.subject.generation]
            warn_of_loss(error)

    def encode(self, within_seconds: float = math.inf) -> None:
        """Encode what was made under another model: one update at least, others as far as the time goes.

        This may take long, so it comes before the locks are taken.
        """
        until = time.monotonic() + within_seconds
        for subject, update in self.missed():
            if not self._is_encoded(subject, update):
                self._vectors(subject, update)
                if time.monotonic() >= until:
                    return

    def receive(self) -> None:
        """Write to the generation's log those updates, in order, that need not be encoded any more.

        The caller holds `UpdateLogs.writing`. Errors as `write`.
        """
        self._append(list(takewhile(lambda each: self._is_encoded(*each), self.missed())))

    def write(self) -> None:
        """Write all of them to the generation's log, and let it be an active one's; the caller holds `writing`.

        Raises FingerprintMismatch if an update was made under another model, and there is no model to encode it with.
        """
        missed = self.missed()
        self._own.create()
        self._append(missed)
        # The generation may know of revisions that are in no log any more.
        self._own.raise_floor(max(self._logs.highest(), self._manifest.revision))

    def _append(self, missed: Sequence[tuple[Subject, Update]]) -> None:
        if missed:
            updates = [replace(update, vectors=self._vectors(subject, update)) for subject, update in missed]
            self._own.append(*(updates if self._find is None else _tied(updates, self._find, self._first)))

    def _is_own_model(self, subject: Subject) -> bool:
        return (subject.fingerprint, subject.dtype) == (self._manifest.model.fingerprint, self._manifest.dtype)

    def _is_encoded(self, subject: Subject, update: Update) -> bool:
        return not update.upserts or self._is_own_model(subject) or update.revision in self._encoded

    def _vectors(self, subject: Subject, update: Update) -> Representations:
        manifest = self._manifest
        if not update.upserts:
            return Representations.none(manifest.dim, manifest.late)
        if self._is_own_model(subject):
            return update.vectors
        if update.revision not in self._encoded:
            if self._encode is None:
                raise FingerprintMismatch(manifest.model.fingerprint, subject.fingerprint)
            representations = self._encode([candidate.text for candidate in update.upserts])
            self._encoded[update.revision] = rounded_all(representations, manifest.dtype)
        return self._encoded[update.revision]


def _tied(updates: Sequence[Update], find: FindTexts, first: dict[str, Representations]) -> Iterator[Update]:
    """Yield updates of which equal texts have the same vectors: those found, or those of the first update with them.

    `first` has those of earlier updates.
    """
    firsts = dict(first)
    for update in updates:
        texts = [candidate.text for candidate in update.upserts]
        hits = find(texts)
        of_text = {texts[at]: hits.representations.take([n]) for n, at in enumerate(hits.positions.tolist())}
        vectors = [
            of_text.get(text) or firsts.setdefault(text, update.vectors.take([at])) for at, text in enumerate(texts)
        ]
        yield replace(update, vectors=Representations.join(vectors)) if vectors else update
