"""The updates of a store: a log for each generation, who may write, and what a new generation has still to learn.

STORE/log/<generation>.log   see update_log.py
STORE/log/write.lock         held while an update is written, and while another generation becomes the active one

Only the active generation is updated. One that becomes active for the first time is given the updates that were made
after its pool was read, whichever generation they were made to. One that was active before comes back as it was left.
Revisions grow over all generations: none is given twice.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import FingerprintMismatch, GenerationCorrupt, UpdatesBusy
from polyrank.index_builder.store.lock import locked
from polyrank.index_builder.store.manifest import Manifest
from polyrank.index_builder.store.updates.log import Subject, Update, UpdateLog
from polyrank.index_builder.vectors.codec import rounded
from polyrank.model.durable import make_directory

# Candidate texts to embeddings, (N, D).
Encode = Callable[[list[str]], NDArray[np.float32]]

_SUFFIX = ".log"

log = logging.getLogger(__name__)


class Updates:
    """The update logs under a store's root."""

    def __init__(self, root: Path) -> None:
        self._directory = root / "log"

    @contextmanager
    def writing(self, within_seconds: float | None = None) -> Iterator[None]:
        """Be the only one who writes updates, or changes what is active, for the block.

        Raises:
            UpdatesBusy: others did so for longer than one is willing to wait; None: as long as it takes.
        """
        make_directory(self._directory)
        with locked(self._directory / "write.lock", within_seconds=within_seconds) as held:
            if not held:
                raise UpdatesBusy("another process is writing updates or switching generations; try again")
            yield

    def of(self, manifest: Manifest) -> UpdateLog:
        """The log of a generation, from its beginning; it need not exist."""
        return UpdateLog(self._path(manifest.id), _subject(manifest))

    def exists(self, generation: str) -> bool:
        """Whether a generation has a log; one that is active, or was, has."""
        return self._path(generation).exists()

    def highest(self) -> int:
        """The highest revision that was ever given, in any log that is left."""
        highest = 0
        for each in self._logs():
            for _ in _until_damage(each):
                pass
            highest = max(highest, each.revision, each.floor)
        return highest

    def missed_by(self, manifest: Manifest, compacted: str | None = None) -> list[tuple[Subject, Update]]:
        """What a generation that was never active has to learn, in order, and whose vectors it comes with.

        Args:
            manifest: the generation's.
            compacted: the one of which it is a compaction: only what was written there; None: it is none.

        Raises:
            GenerationCorrupt: its own log is damaged.
        """
        own = self.of(manifest)
        known = {update.revision for update in own.read()}
        if own.was_active:
            return []
        missed = {
            update.revision: (each.subject, update)
            for each in self._logs()
            if compacted in (None, each.subject.generation)
            for update in _until_damage(each)
            if update.revision > manifest.revision and update.revision not in known
        }
        return [missed[revision] for revision in sorted(missed)]

    def was_active(self, manifest: Manifest) -> bool:
        """Whether the generation is the active one, or was.

        Raises:
            GenerationCorrupt: its log is damaged.
        """
        own = self.of(manifest)
        own.catch_up()
        return own.was_active

    def keep_only(self, generations: Collection[str]) -> None:
        """Remove the logs of all others."""
        for path in self._directory.glob(f"*{_SUFFIX}"):
            if path.stem not in generations:
                path.unlink()

    def _path(self, generation: str) -> Path:
        return self._directory / f"{generation}{_SUFFIX}"

    def _logs(self) -> Iterator[UpdateLog]:
        """Every log whose beginning tells whose it is."""
        for path in sorted(self._directory.glob(f"*{_SUFFIX}")):
            try:
                yield UpdateLog.found(path)
            except FileNotFoundError:
                continue  # removed a moment ago
            except GenerationCorrupt as error:
                _warn(error)


def _until_damage(found: UpdateLog) -> Iterator[Update]:
    """What is in a log; of a damaged one what comes before the damage."""
    try:
        yield from found.read()
    except GenerationCorrupt as error:
        _warn(error)


def _warn(error: GenerationCorrupt) -> None:
    log.warning("updates are lost", extra={"fields": {"why": str(error)}})


class Succession:
    """Gives a generation that becomes active for the first time the updates that it missed.

    Args:
        updates: of the store.
        manifest: the generation's.
        encode: its model; None: only updates of the same model can be taken over.
        compacted: the generation of which it is a compaction; None: it is none.
    """

    def __init__(
        self, updates: Updates, manifest: Manifest, encode: Encode | None, compacted: str | None = None
    ) -> None:
        self._updates, self._manifest, self._encode, self._compacted = updates, manifest, encode, compacted
        self._encoded: dict[int, NDArray[Any]] = {}

    def prepare(self) -> None:
        """Encode what it missed, before others are kept waiting."""
        for subject, update in self._updates.missed_by(self._manifest, self._compacted):
            self._vectors(subject, update)

    def complete(self) -> None:
        """Write down what it missed; the caller holds `writing`.

        Raises:
            GenerationCorrupt: its own log is damaged.
            FingerprintMismatch: the updates have another model's vectors, and there is none to encode with.
            BuildError: a vector is not finite.
        """
        own, missed = self._updates.of(self._manifest), self._updates.missed_by(self._manifest, self._compacted)
        own.create()
        if missed:
            own.append(*(replace(update, vectors=self._vectors(subject, update)) for subject, update in missed))
        # What its manifest knows of may be in no log any more.
        own.raise_floor(max(self._updates.highest(), self._manifest.revision))

    def _vectors(self, subject: Subject, update: Update) -> NDArray[Any]:
        manifest = self._manifest
        if not update.upserts or (subject.fingerprint, subject.dtype) == (manifest.model.fingerprint, manifest.dtype):
            return update.vectors.reshape(len(update.upserts), manifest.dim)
        if update.revision not in self._encoded:
            if self._encode is None:
                raise FingerprintMismatch(manifest.model.fingerprint, subject.fingerprint)
            vectors = self._encode([candidate.text for candidate in update.upserts])
            self._encoded[update.revision] = rounded(vectors, manifest.dtype)
        return self._encoded[update.revision]


def _subject(manifest: Manifest) -> Subject:
    return Subject(manifest.id, manifest.model.fingerprint, manifest.dim, manifest.dtype)
