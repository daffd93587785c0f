"""The directory of a store of whole generations: open, publish and collect them; pool_store.py does the rest.

STORE/generations/               what may lie in it: layout.py
STORE/generations/<id>/          complete and checksummed: generation.py, manifest.py
STORE/generations/.tmp-<id>/     being built, or being removed: leftovers.py
STORE/generations/.journal-<id>  the finished chunks of a build: leftovers.py
STORE/copies/                    which generations have a copy in Redis: copies.py
STORE/ID, FENCE                  who may build where hosts share no locks: locks.py
"""

import logging
import shutil
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from polyrank.index_builder.errors import (
    BuildBusy,
    GenerationCorrupt,
    GenerationError,
    GenerationNotFound,
    StoreInParts,
)
from polyrank.index_builder.generation.generation import MODEL_DIRECTORY, Generation, read_manifest
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.layout import (
    GENERATIONS,
    TEMPORARY_PREFIX,
    entries,
    is_in_parts,
    stamp,
)
from polyrank.index_builder.store.copies import Copies
from polyrank.index_builder.store.leftovers import (
    Forget,
    Leftover,
    discard,
    discard_all,
    forget_nothing,
    journal_of,
    resumable,
)
from polyrank.index_builder.store.locks import Lease, build_lock, fenced, leased
from polyrank.index_builder.store.pool_store import PoolStore
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.model.durable import make_directory, rename_durably, sync_tree

_STRAYS_NAMED = 10

log = logging.getLogger(__name__)


class GenerationStore(PoolStore[Manifest]):
    """A store of whole generations.

    Args:
        root: the directory.
        needs_matrix: refuse generations whose matrix is missing.

    Raises:
        StoreInParts: the directory is a store that is cut into parts.
    """

    def __init__(self, root: Path, *, needs_matrix: bool = True) -> None:
        if is_in_parts(root):
            raise StoreInParts(root)
        super().__init__(root, root / GENERATIONS)
        self._needs_matrix = needs_matrix

    # What there is.

    def read(self, generation: str) -> Manifest:
        """Read a generation's manifest, without looking at its other files; errors as `path` and `read_manifest`."""
        return read_manifest(self.path(generation))

    def manifest(self, generation: str) -> Manifest:
        """See `read`."""
        return self.read(generation)

    def model_directory(self, generation: str) -> Path:
        """The directory of a generation's model; errors as `path`."""
        return self.path(generation) / MODEL_DIRECTORY

    def parts(self, generation: str) -> list[dict[str, Any]]:
        """Return none: it is whole."""
        return []

    def updated(self, generation: str) -> tuple[int, int]:
        """Open a generation, without checking its every byte, and count; errors as `open`."""
        with closing(self.open(generation, verify=False)) as opened:
            served = self.snapshot(opened)
            return served.count, served.revision

    def active_manifest(self) -> Manifest | None:
        """Read the active generation's manifest; None where there is none that can be read."""
        with suppress(GenerationError):
            if (current := self.current()) is not None:
                return self.manifest(current)
        return None

    # Opening.

    def open(self, generation: str, *, verify: bool = True) -> Generation:
        """Open a generation; if asked to `verify`, check every byte of it and of its update log.

        Raises:
            GenerationNotFound, GenerationCorrupt, Shortage: see `Generation.open` and `UpdateLog.read`.
        """
        opened = Generation.open(self.path(generation), verify=verify, needs_matrix=self._needs_matrix)
        if verify:
            self._switch.check_updates(opened.manifest)
        return opened

    def verify(self, generation: str) -> Manifest:
        """Check every byte of a generation and of its update log; errors as `open`."""
        opened = self.open(generation)
        opened.close()
        return opened.manifest

    def snapshot(self, opened: Generation) -> Snapshot:
        """An open generation with its updates. Raises GenerationCorrupt if its update log is damaged."""
        return Snapshot.of(opened).updated(list(self.updates.of(opened.manifest).read()))

    def open_to_serve(self) -> tuple[Generation, list[tuple[str, str]]]:
        """Open the first generation of `serving_order` that passes its checks.

        Returns:
            the generation, and those that were refused before it: (id, reason).

        Raises:
            GenerationNotFound: there is none; the message says why each was refused.
        """
        refused: list[tuple[str, str]] = []
        try:
            self.current()
        except GenerationCorrupt as error:
            refused.append(("CURRENT", error.reason))
        for generation in self.serving_order():
            try:
                return self.open(generation), refused
            except GenerationError as error:
                refused.append((generation, str(error)))
        if refused:
            reasons = "; ".join(reason for _, reason in refused)
        elif self.ids():
            reasons = "none is active; run: polyrank store activate"
        else:
            reasons = "it is empty; run: polyrank build"
        raise GenerationNotFound(f"no good generation in {self.root}: {reasons}")

    # Building.

    @contextmanager
    def building(self, redis_url: str | None = None) -> Iterator[Lease | None]:
        """Be the only builder of this store for the block.

        The Redis, if one is given, holds the lease, for hosts that share no locks. `publish` and what activates the
        generation must be given the lease.

        Raises:
            BuildBusy: another builder is at work.
            LeaseLost, StoreUnavailable: see `locks.leased`.
        """
        make_directory(self._generations)
        with build_lock(self.root), leased(self.root, redis_url) as lease:
            yield lease

    def begin(self, generation: str) -> Path:
        """Create the temporary directory to build a generation in; the caller is the builder."""
        temporary = self._generations / f"{TEMPORARY_PREFIX}{generation}"
        temporary.mkdir()
        return temporary

    def publish(self, temporary: Path, lease: Lease | None = None) -> None:
        """Put a finished temporary directory on the disk, then rename it to its id.

        If the process dies before the rename, the build can be resumed. If it dies after, the journal is left: the next
        builder removes it.

        Raises:
            LeaseLost: another builder has taken over; nothing is published.
            StoreBusy: another process holds pointer.lock for too long; the next build can take over the chunks.
        """
        sync_tree(temporary)
        with self._switch.changing(), fenced(lease):
            rename_durably(temporary, self.path(temporary.name.removeprefix(TEMPORARY_PREFIX)))
        journal_of(temporary).unlink(missing_ok=True)

    def remove(self, generations: Collection[str]) -> None:
        """Remove generations with their logs, for whoever decides in place of `gc`; the caller is the builder.

        Raises:
            StoreBusy: another process holds a lock for too long; the next call continues.
        """
        with self._switch.changing(), self.updates.writing():
            for generation in generations:
                shutil.rmtree(self._unlist(generation))
            kept = [*self.ids(), *(stray.path.name for stray in self.strays())]
            self.updates.keep_only(kept)

    def discard_leftovers(self, forget: Forget = forget_nothing) -> Leftover | None:
        """Remove what killed builds have left but the newest that can be resumed; the caller is the builder."""
        self._name_strays()
        spare = resumable(self._generations, forget)
        discard_all(self._generations, forget, spare)
        return spare

    def discard_killed(self, since: datetime, redis_url: str | None) -> None:
        """Remove what killed builds have left that began after `since`, with their copies.

        Raises:
            BuildBusy, LeaseLost, StoreUnavailable: see `building`; the next build removes it.
        """
        first = f"{TEMPORARY_PREFIX}{stamp(since)}"
        with self.building(redis_url):
            for temporary in entries(self._generations).temporary:
                if temporary.name >= first:
                    discard(temporary, Copies(self.root, redis_url).forget)

    # Collecting.

    def gc(self, keep: int = 2, redis_url: str | None = None) -> list[str]:
        """Remove old generations with their copies, logs of bad rows older than all kept ones, and leftovers.

        The active generation stays, and so do one on trial and newer ones, which may be waiting for their activation.
        Of the older ones, as many stay as make `keep`, at least 1, with the active one: first those that rollbacks
        would reach, then the newest. A killed build that can be resumed stays for `leftovers.RESUMABLE_FOR`. Leftovers
        stay while somebody builds. Without a Redis, copies stay for the next collection that is given it. Returns the
        ids removed.

        Raises:
            GenerationCorrupt: CURRENT is damaged; nothing is removed.
            StoreUnavailable: Redis failed; the next collection continues.
            StoreBusy: another process holds a lock for too long; likewise.
        """
        if not self._generations.is_dir():
            return []  # and no store is made of the directory
        copies = Copies(self.root, redis_url)
        self._name_strays()
        with self._switch.changing():
            removed = self._pointer.expired(self.ids(), keep)
            for generation in removed:
                copies.forget(generation)
                shutil.rmtree(self._unlist(generation))
            self._remove_rejected()
        with suppress(BuildBusy), self.building(redis_url):
            spare = resumable(self._generations, copies.forget)
            discard_all(self._generations, copies.forget, spare if spare and spare.is_recent else None)
            self._switch.remove_updates([stray.path.name for stray in self.strays()])
            copies.forget_orphans()
        return removed

    def _name_strays(self) -> None:
        for stray in self.strays()[:_STRAYS_NAMED]:
            log.warning("left aside, because it is not of the store: %s", stray)
