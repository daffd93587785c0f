"""The update logs of a store, the lock under which they are written, and what a new generation receives from them.

    STORE/log/<generation>.log   the updates of a generation since it was built: update_log.py
    STORE/log/write.lock         held while an update is written, and while CURRENT changes
    STORE/log/trial.lock         held while the generation on trial is given what it lacks

A generation of several parts has one log for all of them.

Only the active generation is updated. A generation that becomes active for the first time receives the updates made
since its pool was read, from the logs of all other generations. One that was active before comes back as it was left.
A generation on trial receives updates meanwhile: those that it would receive if it became active and, if it was active
before, those made since it was left. Revisions grow over all generations: none is used twice.
"""

import logging
import math
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from polyrank.index_builder.errors import FingerprintMismatch, GenerationCorrupt
from polyrank.index_builder.generation.candidates import FindTexts
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.store.locks import locked, try_locked
from polyrank.index_builder.store.update_log import Subject, Update, UpdateLog
from polyrank.index_builder.vectors.encoder import Encode, rounded_all
from polyrank.model.durable import make_directory
from polyrank.model.representations import Representations

_SUFFIX = ".log"

log = logging.getLogger(__name__)


class UpdateLogs:
    """The update logs under a store's root."""

    def __init__(self, root: Path) -> None:
        self._directory = root / "log"

    @contextmanager
    def writing(self, within_seconds: float | None = None) -> Iterator[None]:
        """Be the only one who writes updates or changes CURRENT, for the block; StoreBusy if others take longer."""
        make_directory(self._directory)
        with locked(self._directory / "write.lock", within_seconds=within_seconds):
            yield

    def of(self, manifest: Manifest) -> UpdateLog:
        """The log of a generation, from its beginning; the file may not exist yet."""
        subject = Subject(manifest.id, manifest.model.fingerprint, manifest.dim, manifest.dtype, manifest.late)
        return UpdateLog(self.path(manifest.id), subject)

    def path(self, generation: str) -> Path:
        return self._directory / f"{generation}{_SUFFIX}"

    def exists(self, generation: str) -> bool:
        """Whether a generation has a log; every generation has one that is active, or was."""
        return self.path(generation).exists()

    def highest(self) -> int:
        """The highest revision ever used, as far as the logs that are left tell."""
        highest = 0
        for found in self.all():
            try:
                found.catch_up()
            except GenerationCorrupt as error:  # what comes before the damage was read
                _warn(error)
            highest = max(highest, found.revision, found.floor)
        return highest

    def was_active(self, manifest: Manifest) -> bool:
        """Whether the generation is the active one, or was. Raises GenerationCorrupt if its log is damaged."""
        own = self.of(manifest)
        own.catch_up()
        return own.was_active

    def receiving(self) -> AbstractContextManager[bool]:
        """Be the only one who gives a generation on trial what it lacks; yields whether nobody else does."""
        make_directory(self._directory)
        return try_locked(self._directory / "trial.lock")

    def keep_only(self, generations: Collection[str]) -> None:
        """Remove the logs of all other generations."""
        for path in self._directory.glob(f"*{_SUFFIX}"):
            if path.stem not in generations:
                path.unlink()

    def all(self, known: Collection[str] = ()) -> Iterator[UpdateLog]:
        """Every log whose first record is whole, but those of the `known` generations."""
        for path in sorted(self._directory.glob(f"*{_SUFFIX}")):
            if path.stem in known:
                continue
            try:
                yield UpdateLog.found(path)
            except FileNotFoundError:
                continue  # removed a moment ago
            except GenerationCorrupt as error:
                _warn(error)


def _warn(error: GenerationCorrupt) -> None:
    log.warning("updates are lost: %s", error)  # whole, because a builder's process shows no fields


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
        self._found: dict[int, tuple[Subject, Update]] = {}
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
        known = [*self._others, *self._damaged, self._manifest.id]
        self._others |= {log.subject.generation: log for log in self._logs.all(known)}
        for generation, log in [*self._others.items()]:
            if not self._logs.exists(generation):
                del self._others[generation]  # collected
            elif self._copy_of in (None, generation):
                self._note(log, has)
        for revision in [each for each in self._found if each <= has]:
            del self._found[revision]
            self._encoded.pop(revision, None)
        return [self._found[revision] for revision in sorted(self._found)]

    def _note(self, log: UpdateLog, has: int) -> None:
        """Read on in a log; of an update that stands in several, one counts whose vectors need not be made again."""
        try:
            for update in log.read():
                known = self._found.get(update.revision)
                if update.revision > has and (known is None or not self._is_own_model(known[0])):
                    self._found[update.revision] = log.subject, update
        except GenerationCorrupt as error:  # those before the damage count
            self._damaged.add(log.subject.generation)
            del self._others[log.subject.generation]
            _warn(error)

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
            made = self._encode([candidate.text for candidate in update.upserts])
            self._encoded[update.revision] = rounded_all(made, manifest.dtype)
        return self._encoded[update.revision]


def _tied(updates: Sequence[Update], find: FindTexts, first: dict[str, Representations]) -> Iterator[Update]:
    """Yield updates of which equal texts have the same vectors: those found, or those of the first update with them.

    `first` has those of earlier updates.
    """
    seen = dict(first)
    for update in updates:
        texts = [candidate.text for candidate in update.upserts]
        known = find(texts)
        of_text = {texts[at]: known.representations.take([n]) for n, at in enumerate(known.positions.tolist())}
        made = [of_text.get(text) or seen.setdefault(text, update.vectors.take([at])) for at, text in enumerate(texts)]
        yield replace(update, vectors=Representations.join(made)) if made else update
