"""The update logs of a store, the lock under which they are written, and what a new generation receives from them.

    STORE/log/<generation>.log   the updates of a generation since it was built: update_log.py
    STORE/log/write.lock         held while an update is written, and while CURRENT changes

A generation of several parts has one log for all of them.

Only the active generation is updated. A generation that becomes active for the first time receives the updates made
since its pool was read, from the logs of all other generations. One that was active before comes back as it was left.
Revisions grow over all generations: none is used twice.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from polyrank.index_builder.errors import FingerprintMismatch, GenerationCorrupt
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.generation.texts import FindTexts
from polyrank.index_builder.store.locks import locked
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
        """The file of a generation's log."""
        return self._directory / f"{generation}{_SUFFIX}"

    def exists(self, generation: str) -> bool:
        """Whether a generation has a log; every generation has one that is active, or was."""
        return self.path(generation).exists()

    def highest(self) -> int:
        """The highest revision ever used, as far as the logs that are left tell."""
        highest = 0
        for found in self._logs():
            for _ in _until_damage(found):
                pass
            highest = max(highest, found.revision, found.floor)
        return highest

    def missed_by(self, manifest: Manifest, copy_of: str | None = None) -> list[tuple[Subject, Update]]:
        """The updates that a generation has to receive, in order, with the subjects of their logs.

        There are none if it was active before. If it is a copy of another generation, only updates of `copy_of` count.
        Raises GenerationCorrupt if its own log is damaged.
        """
        own = self.of(manifest)
        known = {update.revision for update in own.read()}
        if own.was_active:
            return []
        missed = {
            update.revision: (found.subject, update)
            for found in self._logs()
            if copy_of in (None, found.subject.generation)
            for update in _until_damage(found)
            if update.revision > manifest.revision and update.revision not in known
        }
        return [missed[revision] for revision in sorted(missed)]

    def was_active(self, manifest: Manifest) -> bool:
        """Whether the generation is the active one, or was. Raises GenerationCorrupt if its log is damaged."""
        own = self.of(manifest)
        own.catch_up()
        return own.was_active

    def keep_only(self, generations: Collection[str]) -> None:
        """Remove the logs of all other generations."""
        for path in self._directory.glob(f"*{_SUFFIX}"):
            if path.stem not in generations:
                path.unlink()

    def _logs(self) -> Iterator[UpdateLog]:
        """Every log whose first record is whole."""
        for path in sorted(self._directory.glob(f"*{_SUFFIX}")):
            try:
                yield UpdateLog.found(path)
            except FileNotFoundError:
                continue  # removed a moment ago
            except GenerationCorrupt as error:
                _warn(error)


def _until_damage(found: UpdateLog) -> Iterator[Update]:
    """The updates in a log; if it is damaged, those before the damage."""
    try:
        yield from found.read()
    except GenerationCorrupt as error:
        _warn(error)


def _warn(error: GenerationCorrupt) -> None:
    log.warning("updates are lost: %s", error)  # whole, because a builder's process shows no fields


class MissedUpdates:
    """The updates that a generation receives when it becomes active for the first time.

    They are written to its log in one go, before CURRENT names it. If the process dies amid them, the next activation
    finds in the log which ones it has, and writes the others.

    Args:
        logs: of the store.
        manifest: of the generation.
        encode: its model; None: updates made under another model are refused.
        copy_of: the generation of which it is a compaction, or another copy; None: it is none.
        find: looks up texts whose vectors the updates take over; None: whoever reads the log does that.
    """

    def __init__(
        self,
        logs: UpdateLogs,
        manifest: Manifest,
        encode: Encode | None,
        copy_of: str | None = None,
        find: FindTexts | None = None,
    ) -> None:
        self._logs, self._manifest, self._encode, self._copy_of = logs, manifest, encode, copy_of
        self._find = find
        self._encoded: dict[int, Representations] = {}

    def encode(self) -> None:
        """Encode what was made under another model. This may take long, so it comes before the locks are taken."""
        for subject, update in self._logs.missed_by(self._manifest, self._copy_of):
            self._vectors(subject, update)

    def write(self) -> None:
        """Write the updates to the generation's log; the caller holds `UpdateLogs.writing`.

        Raises:
            GenerationCorrupt: the log is damaged.
            FingerprintMismatch: an update was made under another model, and there is no model to encode it with.
            BuildError: a vector is not finite.
        """
        own, missed = self._logs.of(self._manifest), self._logs.missed_by(self._manifest, self._copy_of)
        own.create()
        if missed:
            updates = [replace(update, vectors=self._vectors(subject, update)) for subject, update in missed]
            own.append(*(updates if self._find is None else _tied(updates, self._find)))
        # The generation may know of revisions that are in no log any more.
        own.raise_floor(max(self._logs.highest(), self._manifest.revision))

    def _vectors(self, subject: Subject, update: Update) -> Representations:
        manifest = self._manifest
        if not update.upserts:
            return Representations.none(manifest.dim, manifest.late)
        if (subject.fingerprint, subject.dtype) == (manifest.model.fingerprint, manifest.dtype):
            return update.vectors
        if update.revision not in self._encoded:
            if self._encode is None:
                raise FingerprintMismatch(manifest.model.fingerprint, subject.fingerprint)
            made = self._encode([candidate.text for candidate in update.upserts])
            self._encoded[update.revision] = rounded_all(made, manifest.dtype)
        return self._encoded[update.revision]


def _tied(updates: Sequence[Update], find: FindTexts) -> Iterator[Update]:
    """Yield updates of which equal texts have the same vectors: those found, or those of the first update with them."""
    seen: dict[str, Representations] = {}
    for update in updates:
        texts = [candidate.text for candidate in update.upserts]
        known = find(texts)
        of_text = {texts[at]: known.made.take([n]) for n, at in enumerate(known.positions.tolist())}
        made = [of_text.get(text) or seen.setdefault(text, update.vectors.take([at])) for at, text in enumerate(texts)]
        yield replace(update, vectors=Representations.join(made)) if made else update
