"""The generations of a store: build, publish, activate, roll back, collect garbage.

STORE/CURRENT, HISTORY           see pointer.py
STORE/generations/<id>/          complete and checksummed
STORE/generations/.tmp-<id>/     being built, or being removed
STORE/generations/.journal-<id>  of a build: the shards of its matrix that are complete
STORE/rejected/<id>/             rejected.jsonl: the bad rows of its pool
STORE/log/                       their updates since, see updates.py
STORE/ID, FENCE                  see lease.py
STORE/build.lock, pointer.lock   held while building; while changing CURRENT or removing generations
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from polyrank.index_builder.errors import BuildBusy, CompactionOvertaken, GenerationError, GenerationNotFound
from polyrank.index_builder.redis.lease import Lease, fenced, leased
from polyrank.index_builder.store.generation import TEMPORARY_PREFIX
from polyrank.index_builder.store.journal import journal_of
from polyrank.index_builder.store.leftovers import Forget, Leftover, discard, discard_all, forget_nothing, resumable
from polyrank.index_builder.store.lock import locked
from polyrank.index_builder.store.manifest import Manifest
from polyrank.index_builder.store.pointer import is_generation_id
from polyrank.index_builder.store.published import PublishedGenerations
from polyrank.index_builder.store.updates.updates import Encode, Succession
from polyrank.model.durable import make_directory, rename_durably, sync_tree

_STAMP = "%Y%m%dT%H%M%S%f"


class GenerationStore(PublishedGenerations):
    """The generations under a store's root, to be changed; every method may be called from several processes."""

    def activate(self, generation: str, encode: Encode | None = None, lease: Lease | None = None) -> None:
        """Verify a generation and make it the active one.

        If it was never active, it is given the updates that were made since its pool was read; else it is as its own
        last update has left it.

        Args:
            generation: its id.
            encode: its model, for updates made under another one; None: those of its own model alone can be given.
            lease: the builder's, who activates what it has built.

        Raises:
            GenerationNotFound, GenerationCorrupt: it cannot be served; nothing changes.
            FingerprintMismatch: an update would have to be encoded.
            LeaseLost: another builder has overtaken the holder of the lease; nothing changes.
        """
        manifest = self.verify(generation)
        with self._switching(manifest, encode, lease):
            self._pointer.advance(generation)

    def rollback(self) -> str:
        """Make the generation active that was before the current one; again, the one before that.

        Returns:
            its id.

        Raises:
            GenerationNotFound: none was active before, or all have been removed.
            GenerationCorrupt: it fails its checks; nothing changes.
        """
        history = self.history()
        if not history:
            raise GenerationNotFound(f"no earlier generation to roll back to in {self.root}")
        target = history[-1]
        with self._switching(self.verify(target)):
            self._pointer.go_back(target)
        return target

    def succeed(self, old: str, new: str, lease: Lease | None = None, forget: Forget = forget_nothing) -> None:
        """Verify a generation and put it in the place of the active one, of which it is a compaction.

        A rollback afterwards reaches what it would have reached before.

        Args:
            old: the active one.
            new: the compaction; removed where it cannot take the place.
            lease: the builder's.
            forget: see `leftovers.discard`.

        Raises:
            GenerationNotFound, GenerationCorrupt: it cannot be served; nothing changes.
            CompactionOvertaken: another generation is active.
            LeaseLost: another builder has overtaken the holder of the lease; nothing changes.
        """
        try:
            with self._switching(self.verify(new), lease=lease, instead_of=old):
                self._pointer.replace(new, self.ids())
        except BaseException:
            with self._changing():
                useless = new in self.ids() and self.current_or_none() != new
                temporary = self._unlist(new) if useless else None
            if temporary:
                discard(temporary, forget)
            raise

    @contextmanager
    def _switching(
        self,
        manifest: Manifest,
        encode: Encode | None = None,
        lease: Lease | None = None,
        instead_of: str | None = None,
    ) -> Iterator[None]:
        """While nothing else is switched, removed or updated: the generation knows what it has to, and may be named."""
        make_directory(self.root)
        self._check_active(instead_of)
        succession = Succession(self.updates, manifest, encode, instead_of)
        if manifest.id != self.current_or_none():
            succession.prepare()
        # In this order: a collection may hold the first for long, and updates wait for the second.
        with self._changing(), self.updates.writing(), fenced(lease):
            self._present(manifest.id)
            self._check_active(instead_of)
            if (current := self.current_or_none()) != manifest.id:
                succession.complete()
                self._mark_active(current)  # a crash may have come between the two before
            yield
            self._mark_active(manifest.id)

    def _check_active(self, generation: str | None) -> None:
        if generation is not None and self.current() != generation:
            raise CompactionOvertaken(f"generation {generation}, which was compacted, is not the active one any more")

    def _mark_active(self, generation: str | None) -> None:
        """Note in a generation's log that it is active, or was: it comes back as it was left."""
        # One that is damaged or gone cannot come back, and a log that is gone must not seem to be there. Where the disk
        # is full, this is done when the next one comes.
        with suppress(GenerationError, OSError):
            if generation is not None and self.updates.exists(generation):
                self.updates.of(self.manifest(generation)).mark_active()

    def _present(self, generation: str) -> None:
        """Between its verification and the lock, a generation may have been collected."""
        if generation not in self.ids():
            raise GenerationNotFound(f"generation {generation} has just been removed")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        make_directory(self.root)
        with locked(self.root / "pointer.lock"):
            yield

    @contextmanager
    def building(self, redis_url: str | None = None) -> Iterator[Lease | None]:
        """Be the only builder of this store for the block.

        Args:
            redis_url: also hold the lease there that hosts without common locks share; what is published under it has
                to name it.

        Raises:
            BuildBusy: somebody else is.
            LeaseLost, StoreUnavailable: see `lease.leased`.
        """
        make_directory(self._generations)
        with locked(self.root / "build.lock", within_seconds=0) as held:
            if not held:
                raise BuildBusy(f"another build into {self.root} is running; wait for it or cancel it")
            with leased(self.root, redis_url) as lease:
                yield lease

    def new_id(self, fingerprint: str) -> str:
        """An id that sorts after every other of the store, even when the clock was set back."""
        stamp = datetime.now(UTC)
        if ids := self.ids():
            newest = datetime.strptime(ids[-1].split("-")[0], _STAMP).replace(tzinfo=UTC)
            stamp = max(stamp, newest + timedelta(microseconds=1))
        return f"{stamp.strftime(_STAMP)}-{fingerprint[:8]}"

    def begin(self, generation: str) -> Path:
        """Create the temporary directory to build a generation in; the caller is the builder."""
        temporary = self._generations / f"{TEMPORARY_PREFIX}{generation}"
        temporary.mkdir()
        return temporary

    def publish(self, temporary: Path, lease: Lease | None = None) -> None:
        """Put a finished temporary directory on the disk, then list it under its id.

        Raises:
            LeaseLost: another builder has overtaken the holder of the lease; nothing is listed.
        """
        sync_tree(temporary)
        with self._changing(), fenced(lease):
            rename_durably(temporary, self.path(temporary.name.removeprefix(TEMPORARY_PREFIX)))
        journal_of(temporary).unlink(missing_ok=True)

    def clear(self, forget: Forget = forget_nothing) -> Leftover | None:
        """Remove what killed builds have left; the caller is the builder.

        Returns:
            the one that can be resumed, which stays.
        """
        spare = resumable(self._generations, forget)
        discard_all(self._generations, forget, spare)
        return spare

    def discard_begun(self, since: datetime, forget: Forget = forget_nothing) -> None:
        """Remove what builds that began since then have left; the caller is the builder."""
        first = f"{TEMPORARY_PREFIX}{since.strftime(_STAMP)}"
        for each in self._generations.glob(f"{TEMPORARY_PREFIX}*"):
            if each.name >= first:
                discard(each, forget)

    def rejected_log(self, generation: str) -> Path:
        """Where the bad rows of a generation's pool are listed, if there were any."""
        return self.root / "rejected" / generation / "rejected.jsonl"

    def gc(self, keep: int = 2, forget: Forget = forget_nothing, redis_url: str | None = None) -> list[str]:
        """Remove old generations, logs of bad rows older than all kept ones, and what killed builds have left.

        A killed build that can be resumed stays for `leftovers.RESUMABLE_FOR`.

        The active generation stays, and those newer than it, which may be waiting for their activation. Of the others,
        so many stay as make `keep` with the active one: first those that a rollback would reach, then the newest.

        Args:
            keep: at least 1.
            forget: removes what other systems hold of a generation.
            redis_url: see `building`.

        Returns:
            the ids removed.

        Raises:
            StoreUnavailable: of `forget`, or see `building`; generations removed so far stay removed.
        """
        with self._changing():
            ids, current = self.ids(), self.current()
            older = [each for each in ids if current is None or each < current]
            by_worth = dict.fromkeys([*reversed(self.history()), *reversed(older)])
            spared = [each for each in by_worth if each in older][: keep - (current is not None)]
            removed = [each for each in older if each not in spared]
            for each in removed:
                forget(each)
                shutil.rmtree(self._unlist(each))
            self._remove_rejected(self.ids())
        try:
            with self.building(redis_url):
                spare = resumable(self._generations)
                discard_all(self._generations, forget, spare if spare and spare.is_recent else None)
                self._remove_updates()
        except BuildBusy:
            pass  # what is left there belongs to a build that is running, or it goes the next time
        return removed

    def _unlist(self, generation: str) -> Path:
        """Rename a generation to what is no generation, at once: a crash before it is removed leaves no half of it."""
        temporary = self._generations / f"{TEMPORARY_PREFIX}{generation}"
        rename_durably(self.path(generation), temporary)
        return temporary

    def _remove_updates(self) -> None:
        """Remove the update logs of generations that are gone, unless one that was never active may need them.

        While somebody builds, that is the one being built: the caller is the builder.
        """
        with self.updates.writing():
            ids, current = self.ids(), self.current_or_none()
            if all(each == current or self._was_active(each) for each in ids):
                self.updates.keep_only(ids)

    def _was_active(self, generation: str) -> bool:
        try:
            return self.updates.was_active(self.manifest(generation))
        except GenerationError:
            return True  # it never will be

    def _remove_rejected(self, kept: list[str]) -> None:
        for directory in (self.root / "rejected").glob("*"):
            if kept and is_generation_id(directory.name) and directory.name < kept[0]:
                shutil.rmtree(directory)
