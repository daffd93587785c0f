"""The directory of generations: open, publish, switch, roll back, try out and collect them.

STORE/generations/               what may lie in it: layout.py
STORE/generations/<id>/          complete and checksummed: generation.py, manifest.py
STORE/generations/.tmp-<id>/     being built, or being removed: leftovers.py
STORE/generations/.journal-<id>  the finished chunks of a build: leftovers.py
STORE/CURRENT, HISTORY, TRIAL    which generation is active, and which one is on trial: pointer.py
STORE/loop/withdrawn.json        the last trial that a server has ended: pointer.py
STORE/log/                       the updates of each generation: update_log.py
STORE/rejected/<id>/             rejected.jsonl: the rows left out of a generation's pool
STORE/feedback/                  what servers answered, and what became of it: none of the store's own files
STORE/jobs/                      index jobs: building/job_records.py
STORE/copies/                    which generations have a copy in Redis: leftovers.py
STORE/build.lock, pointer.lock   who may build and switch: locks.py
STORE/ID, FENCE                  who may build where hosts share no locks: locks.py
"""

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path

from polyrank.index_builder.errors import (
    BuildBusy,
    GenerationCorrupt,
    GenerationError,
    GenerationNotFound,
    StoreBusy,
    SwitchOvertaken,
)
from polyrank.index_builder.generation.candidates import FindTexts
from polyrank.index_builder.generation.generation import (
    MODEL_DIRECTORY,
    Generation,
    StoredTexts,
    check_beside_parts,
    read_manifest,
)
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.layout import (
    GENERATIONS,
    TEMPORARY_PREFIX,
    Stray,
    entries,
    is_time_id,
    new_time_id,
    stamp,
    why_not_plain,
)
from polyrank.index_builder.store.leftovers import (
    Copies,
    Forget,
    Leftover,
    discard,
    discard_all,
    forget_nothing,
    journal_of,
    resumable,
)
from polyrank.index_builder.store.locks import Lease, build_lock, fenced, leased
from polyrank.index_builder.store.pointer import LEASE_ENDED, Trial, Withdrawn
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.index_builder.store.switch import MissedUpdates, Switch
from polyrank.index_builder.vectors.encoder import Encode
from polyrank.model.durable import make_directory, rename_durably, sync_tree
from polyrank.model.errors import InvalidInput
from polyrank.model.telling import telling

_STRAYS_NAMED = 10

log = logging.getLogger(__name__)


class GenerationStore:
    """The generations under a directory; several threads and processes may call every method.

    A caller that has checked a generation, or has just built it, switches to it with `make_active` or `go_back`, which
    do not read its files again. `activate` and `rollback` verify first. `needs_matrix`: refuse generations whose matrix
    is missing.
    """

    def __init__(self, root: Path, *, needs_matrix: bool = True) -> None:
        self.root, self._generations, self._needs_matrix = root, root / GENERATIONS, needs_matrix
        self._switch = Switch(root, self.ids, self.manifest)
        self._pointer, self.updates = self._switch.pointer, self._switch.updates

    # What there is.

    def ids(self) -> list[str]:
        """The published generations, oldest first."""
        return entries(self._generations).published

    def strays(self) -> list[Stray]:
        """What lies among the generations and is not of the store; it is left alone."""
        return entries(self._generations).strays

    def current(self) -> str | None:
        return self._pointer.current()

    def current_or_none(self) -> str | None:
        """The active generation's id; None also if CURRENT is damaged, gone or unreadable."""
        return self._pointer.current_or_none()

    def stamp(self) -> tuple[int, int] | None:
        """A value that changes with every activation, also of the same generation; see `Pointer.stamp`."""
        return self._pointer.stamp()

    def history(self) -> list[str]:
        return self._switch.history()

    def trial(self) -> Trial | None:
        """What servers load beside the active one; None: there is nothing. Errors as `Pointer.trial`."""
        trial = self._pointer.trial()
        if trial is None or trial.generation == self.current_or_none() or trial.generation not in self.ids():
            return None
        return trial

    def path(self, generation: str) -> Path:
        """The directory of a generation. Raises GenerationNotFound if the text does not have the form of an id."""
        if not is_time_id(generation):
            raise GenerationNotFound(
                f"{generation[:80]!r} is not the id of a generation; polyrank store list shows them"
            )
        return self._generations / generation

    def manifest(self, generation: str) -> Manifest:
        """Read a generation's manifest, without looking at its other files; errors as `path` and `read_manifest`."""
        return read_manifest(self.path(generation))

    def active(self) -> Manifest:
        """Read the active generation's manifest.

        Raises GenerationNotFound if none is active, or the one that CURRENT names is gone.
        """
        current = self.current()
        if current is None:
            raise GenerationNotFound(f"no generation of {self.root} is active; run: polyrank store activate")
        return self.manifest(current)

    def active_or_none(self) -> Manifest | None:
        """Read the active generation's manifest; None where there is none that can be read."""
        with suppress(GenerationError):
            return self.active()
        return None

    def model_directory(self, generation: str) -> Path:
        return self.path(generation) / MODEL_DIRECTORY

    def updated(self, generation: str) -> tuple[int, int]:
        """Count a generation's candidates with its updates, and return the revision of the last one.

        Its parts are opened one after the other without checking every byte. Errors as `open_parts` and `snapshots`.
        """
        manifest = self.manifest(generation)
        check_beside_parts(self.path(generation), manifest, verify=False)
        updates = list(self.updates.of(manifest).read())

        def count(part: int) -> int:
            with closing(self.open(generation, part, verify=False)) as opened:
                return Snapshot.of(opened).updated(updates).count

        revision = max([manifest.revision, *(each.revision for each in updates)])
        return sum(map(count, range(len(manifest.parts)))), revision

    def check_updates(self, manifest: Manifest) -> None:
        self._switch.check_updates(manifest)

    def rejected_log(self, generation: str) -> Path:
        """The path of the list of rows left out of a generation's pool; it exists if there were any."""
        return self.root / "rejected" / generation / "rejected.jsonl"

    def was_left(self, generation: str) -> bool:
        """Whether a switch has led away from a generation; a compaction takes its place without that."""
        return self._pointer.was_left(generation)

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

    # Opening.

    def open(self, generation: str, part: int = 0, *, verify: bool = True) -> Generation:
        """Open a part of a generation, given by its number; if asked to `verify`, check every byte of its files."""
        return Generation.open(self.path(generation), part, verify=verify, needs_matrix=self._needs_matrix)

    def open_parts(self, generation: str) -> list[Generation]:
        """Open all parts of a generation, and check every byte of it and of its update log."""
        manifest = self.manifest(generation)
        with telling(f"opening generation {generation}"), ExitStack() as stack:
            check_beside_parts(self.path(generation), manifest)
            generations = []
            for part in range(len(manifest.parts)):
                generations.append(self.open(generation, part))
                stack.callback(generations[-1].close)
            self.check_updates(manifest)
            stack.pop_all()
        return generations

    def verify(self, generation: str) -> Manifest:
        """Check every byte of a generation, a part at a time, and of its update log; errors as `open_parts`."""
        manifest = self.manifest(generation)
        with telling(f"checking generation {generation}"):
            check_beside_parts(self.path(generation), manifest)
            for part in range(len(manifest.parts)):
                self.open(generation, part).close()
            self.check_updates(manifest)
        return manifest

    def snapshots(self, parts: Sequence[Generation]) -> list[Snapshot]:
        """The open parts of a generation with its updates. Raises GenerationCorrupt if its update log is damaged."""
        updates = list(self.updates.of(parts[0].manifest).read())
        return [Snapshot.of(each).updated(updates) for each in parts]

    def open_to_serve(self) -> tuple[list[Generation], list[tuple[str, str]]]:
        """Open the first generation of `serving_order` that passes its checks.

        Returns:
            its parts, and those that were refused before it: (id, reason).

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
                return self.open_parts(generation), refused
            except GenerationError as error:
                refused.append((generation, str(error)))
        if refused:
            reasons = "; ".join(reason for _, reason in refused)
        elif self.ids():
            reasons = "none is active; run: polyrank store activate"
        else:
            reasons = "it is empty; run: polyrank build"
        raise GenerationNotFound(f"no good generation in {self.root}: {reasons}")

    # Switching.

    def activate(self, generation: str, encode: Encode | None = None, after: str | None = None) -> None:
        """Verify a generation, then make it the active one; arguments and errors as `verify` and `make_active`."""
        self.make_active(self.verify(generation), encode, after=after)

    def make_active(
        self, manifest: Manifest, encode: Encode | None = None, lease: Lease | None = None, after: str | None = None
    ) -> None:
        """Make a generation the active one. The caller has checked or built it, so its files are not read again.

        A generation that was never active receives the updates made since its pool was read. One that was active before
        comes back as its own last update left it; if it is on trial, it receives those that it still lacks.

        encode: its model, which encodes updates made under another one; None: there must be none. lease: held by the
        builder that built it. after: the generation that must be active until then; None: any.

        Raises:
            GenerationNotFound, GenerationCorrupt, FingerprintMismatch, StoreBusy, LeaseLost: see `Switch.to`; nothing
                has changed then.
            SwitchOvertaken: another one than `after` is active; likewise.
        """
        with self._switch.to(manifest, encode, lease, find=self._finds_texts(manifest)):
            # CURRENT may be lost: whoever names no generation that must be active repairs it by this.
            if after is not None and after != (current := self._pointer.current()):
                raise SwitchOvertaken(after, current)
            self._pointer.advance(manifest.id)

    def _finds_texts(self, manifest: Manifest) -> FindTexts | None:
        """What looks texts up in all of several parts; None: there is one, and who reads its log does that."""
        return None if len(manifest.parts) == 1 else self.stored_texts(manifest)

    def stored_texts(self, manifest: Manifest) -> StoredTexts:
        """Return what looks texts up in all parts of a generation, without its updates."""
        path = self.path(manifest.id)
        paths = [path / manifest.directory(part) for part in range(len(manifest.parts))]
        return StoredTexts(paths, manifest.dim, manifest.dtype, manifest.late)

    def rollback(self, encoding: Callable[[str], Encode] | None = None) -> str:
        """Verify the generation that was active before the current one, then go back to it; returns its id.

        `encoding` returns a generation's model; see `go_back`. Raises GenerationNotFound if none was active before, or
        all have been removed.
        """
        while True:
            history = self.history()
            if not history:
                raise GenerationNotFound(f"no earlier generation to roll back to in {self.root}")
            manifest = self.verify(history[-1])
            if self.go_back(manifest, encoding and encoding(manifest.id)):
                return history[-1]

    def go_back(self, manifest: Manifest, encode: Encode | None = None) -> bool:
        """Go back to a generation that the caller has checked, provided that it is still the last of `history`.

        Returns False if another process has switched meanwhile; then the active generation stays. `encode` is its
        model: with it, a generation on trial receives the updates that it still lacks. Errors as `make_active`.
        """
        with self._switch.to(manifest, encode, find=self._finds_texts(manifest)):
            if self.history()[-1:] != [manifest.id]:
                return False
            self._pointer.go_back(manifest.id)
            return True

    def make_copy_active(
        self,
        old: str,
        copy: Manifest,
        *,
        replaces: bool = True,
        lease: Lease | None = None,
        forget: Forget = forget_nothing,
    ) -> None:
        """Make a copy of the active generation the active one, with the updates of that one alone.

        The caller has just made the copy of `old`, as a compaction. It is removed if it cannot become active. If
        another process holds pointer.lock for too long, it stays, and a warning says so. A collection removes it once a
        newer one is active. If it `replaces` the old one, a rollback leads where it would have led before; else to the
        old one. `lease` and `forget` are as of `make_active` and `leftovers.discard`.
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

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Let nobody switch, publish, collect or update for the block; StoreBusy if others take too long."""
        with self._switch.changing(), self.updates.writing():
            yield

    # A trial.

    def begin_trial(self, generation: str, share: float = 0.0, renewed: float | None = None) -> None:
        """Let servers load a generation beside the active one, in place of another trial; CURRENT stays as it is.

        The trial ends when the generation becomes the active one. Until then no collection removes it. Arguments are
        those of `Trial`.

        Raises:
            InvalidInput: it is the active one, perhaps since a moment ago.
            GenerationNotFound: it was removed meanwhile.
        """
        with self._switch.changing():
            if generation == self.current_or_none():
                raise InvalidInput(f"generation: {generation} is active; put another one on trial")
            if generation not in self.ids():
                raise GenerationNotFound(f"no generation {generation} in {self.root}")
            self._pointer.set_trial(Trial(generation, share, renewed))

    def renew_trial(self, trial: Trial) -> bool:
        """Give the trial of a generation another share and lease; False: it is not on trial any more."""
        with self._switch.changing():
            before = self.trial()
            if before is None or before.generation != trial.generation:
                return False
            self._pointer.set_trial(trial)
            return True

    def end_trial(self, generation: str | None = None) -> None:
        """End the trial, or that of this generation alone; raises StoreBusy as `begin_trial`.

        It also removes what a switch has left that was killed: a trial of the generation that is active.
        """
        with self._switch.changing():
            trial = self._pointer.trial()
            if generation is None or (trial is not None and trial.generation == generation):
                self._pointer.set_trial(None)

    def withdraw_trial(self, generation: str, why: str) -> None:
        """End the trial of a generation, if it is still on trial, and keep why; raises StoreBusy as `begin_trial`."""
        self._withdraw(lambda trial: trial.generation == generation, why)

    def end_overdue_trial(self, overdue: Trial) -> None:
        """End this trial, unless it was renewed, and keep why; raises StoreBusy as `begin_trial`."""
        self._withdraw(lambda trial: trial == overdue, LEASE_ENDED)

    def _withdraw(self, is_meant: Callable[[Trial], bool], why: str) -> None:
        with self._switch.changing():
            trial = self._pointer.trial()
            if trial is not None and is_meant(trial):
                self._pointer.withdraw(Withdrawn(trial.generation, time.time(), why))

    def withdrawn(self) -> Withdrawn | None:
        return self._pointer.withdrawn()

    def missed(self, manifest: Manifest, encode: Encode) -> MissedUpdates:
        """What the generation on trial has to receive; its updates under another model are encoded by `encode`."""
        return MissedUpdates(self.updates, manifest, encode, find=self._finds_texts(manifest), on_trial=True)

    def receive(self, generation: str, missed: MissedUpdates, within_seconds: float) -> None:
        """Let a generation receive updates while it is on trial; see `MissedUpdates`, whose errors it has.

        Nothing happens while another process sees to it. Encoding takes `within_seconds` at most, or as long as one
        update takes; the rest comes next time.
        """
        with self.updates.receiving() as alone:
            if alone and missed.missed():
                missed.encode(within_seconds)
                with self.updates.writing():
                    trial = self.trial()
                    if trial is not None and trial.generation == generation:
                        missed.receive()

    # Building.

    @contextmanager
    def building(self, redis_url: str | None = None) -> Iterator[Lease | None]:
        """Be the only builder of this store for the block.

        The Redis, if one is given, holds the lease, for hosts that share no locks. `publish` and what activates the
        generation must be given the lease.
        """
        make_directory(self._generations)
        with build_lock(self.root), leased(self.root, redis_url) as lease:
            yield lease

    def new_id(self, fingerprint: str) -> str:
        """Make an id that sorts after every other of the store, even if the clock was set back; see `new_time_id`."""
        strays = [stray.path.name for stray in self.strays() if is_time_id(stray.path.name)]  # links, perhaps
        return new_time_id([*self.ids(), *strays], fingerprint[:8])

    def begin(self, generation: str) -> Path:
        """Create the temporary directory to build a generation in; the caller is the builder."""
        temporary = self._generations / f"{TEMPORARY_PREFIX}{generation}"
        temporary.mkdir()
        return temporary

    def publish(self, temporary: Path, lease: Lease | None = None) -> None:
        """Put a finished temporary directory on the disk, then rename it to its id.

        If the process dies before the rename, the build can be resumed. If it dies after, the journal is left: the next
        builder removes it. Raises StoreBusy if another process holds pointer.lock for too long; the next build can take
        over the chunks.
        """
        sync_tree(temporary)
        with self._switch.changing(), fenced(lease):
            rename_durably(temporary, self.path(temporary.name.removeprefix(TEMPORARY_PREFIX)))
        journal_of(temporary).unlink(missing_ok=True)

    def discard_leftovers(self, forget: Forget = forget_nothing) -> Leftover | None:
        """Remove what killed builds have left but the newest that can be resumed; the caller is the builder."""
        self._name_strays()
        spare = resumable(self._generations, forget)
        discard_all(self._generations, forget, spare)
        return spare

    def discard_killed(self, since: datetime, redis_url: str | None) -> None:
        """Remove what killed builds have left that began after `since`, with their copies."""
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
            reasons = self.reasons_to_keep(keep)
            removed = [generation for generation in self.ids() if generation not in reasons]
            for generation in removed:
                copies.forget(generation)
                shutil.rmtree(self._unlist(generation))
            left = self.ids()[:1]
            for directory in (self.root / "rejected").glob("*"):
                is_old = left and is_time_id(directory.name) and directory.name < left[0]
                if is_old and why_not_plain(directory, is_directory=True) is None:
                    shutil.rmtree(directory)
        with suppress(BuildBusy), self.building(redis_url):
            discard_all(self._generations, copies.forget, resumable(self._generations, copies.forget, recent=True))
            self._switch.remove_updates([stray.path.name for stray in self.strays()])
            copies.forget_orphans()
        return removed

    def reasons_to_keep(self, keep: int = 2) -> dict[str, str]:
        """Return the generations that a collection keeps, oldest first, each with the reason; errors as `gc`."""
        return self._pointer.reasons_to_keep(self.ids(), keep)

    def _name_strays(self) -> None:
        for stray in self.strays()[:_STRAYS_NAMED]:
            log.warning("left aside, because it is not of the store: %s", stray)

    def _unlist(self, generation: str) -> Path:
        """Rename a generation to a temporary directory: if the process dies while it is removed, no half is listed."""
        temporary = self._generations / f"{TEMPORARY_PREFIX}{generation}"
        rename_durably(self.path(generation), temporary)
        return temporary
