"""A store that is cut into parts: its sets, and which of them is active.

STORE/CURRENT, HISTORY           which set is active: store/pointer.py
STORE/sets/<id>/set.json         a set: the generation of each part; it never changes
STORE/parts/<first>-<end>/       the part of a range of slots: a store of generations without CURRENT
STORE/log/                       the updates of each set, one log for all of its parts: store/updates.py
STORE/rejected/<id>/             rejected.jsonl: the bad rows of a set's pool
STORE/jobs/                      index jobs: build/job_records.py
STORE/building/                  what a build keeps while it runs: cutting.py
STORE/build.lock, pointer.lock   who may build and switch: store/locks.py

A part's generations are those of any store. Beside the other files they hold `order.bin`, the place of each row in the
whole pool. Equal scores are ordered by it, so an answer does not depend on the number of parts.

A row that an update adds takes the next place in the pool after all rows of the set, whatever part it is in.

A set is complete: it is written once all its generations are published, and only then can CURRENT name it. No answer is
made from two sets.
"""

import dataclasses
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.errors import (
    BuildBusy,
    GenerationCorrupt,
    GenerationError,
    GenerationNotFound,
    StoreBusy,
    StoreWhole,
)
from polyrank.index_builder.generation.generation import Generation, read_manifest
from polyrank.index_builder.generation.manifest import MANIFEST_FILE, Manifest, ModelReference
from polyrank.index_builder.generation.stored_texts import StoredTexts
from polyrank.index_builder.layout import (
    GENERATIONS,
    SETS,
    TEMPORARY_PREFIX,
    Stray,
    entries,
    is_in_parts,
    why_not_plain,
)
from polyrank.index_builder.records import record, sealed, unsealed
from polyrank.index_builder.scale.slots import SLOTS, Slots
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.locks import build_lock
from polyrank.index_builder.store.switch import Switch
from polyrank.index_builder.time_ids import is_time_id, new_time_id
from polyrank.index_builder.vectors.encoder import Encode
from polyrank.model.durable import make_directory, rename_durably, sync_tree
from polyrank.model.errors import InvalidInput, shortage_in
from polyrank.model.inputs import read_input
from polyrank.model.representations import LateRows

FORMAT_VERSION = 1
SET_FILE = "set.json"
PARTS = "parts"
BUILDING = "building"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolPart:
    """A part of a set.

    Attributes:
        first_slot, end_slot: its range of slots, without the end.
        generation: the id of its generation in the part's store.
        manifest: the sha256 of the generation's manifest.json, which holds those of all other files.
        count: of its candidates.
    """

    first_slot: int
    end_slot: int
    generation: str
    manifest: str
    count: int

    @property
    def slots(self) -> Slots:
        """Its range of slots."""
        return Slots(self.first_slot, self.end_slot)

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.slots.name


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSet:
    """The generations of all parts that are served together, as they were built.

    Attributes:
        created_at: ISO 8601, UTC.
        revision: of the last update that its pool can contain.
        order_end: rows that updates add have their places in the pool from here on.
        model, backend, precision, dim, late, dtype: of every part; see `Manifest`.
        parts: by their slots, ascending; together they have all of them.
    """

    id: str
    created_at: str
    revision: int
    order_end: int
    model: ModelReference
    backend: str
    precision: str
    dim: int
    dtype: str
    late: LateRows | None
    parts: list[PoolPart]

    @property
    def count(self) -> int:
        """The number of candidates."""
        return sum(part.count for part in self.parts)

    def to_json(self) -> bytes:
        """The content of `set.json`."""
        return sealed({"format_version": FORMAT_VERSION, "slots": SLOTS, **dataclasses.asdict(self)})

    @classmethod
    def from_json(cls, content: bytes, set_id: str) -> "PartSet":
        """Read the content of `set.json` of the set with this id.

        Raises:
            GenerationCorrupt: anything is missing, unknown, of another type or out of bounds, it is of another set or a
                newer format, or its checksum does not fit.
        """
        try:
            body = unsealed(content, FORMAT_VERSION)
            del body["format_version"]
            if body.pop("slots", None) != SLOTS:
                raise ValueError(f"its slots are not {SLOTS}")
            read = record(cls, body, "set", {"late": _late})
            _check(read, set_id)
        except ValueError as error:
            raise GenerationCorrupt(set_id, f"{SET_FILE}: {error}") from error
        return read


def _late(value: object) -> LateRows | None:
    return None if value is None else record(LateRows, value, "late")


def _check(read: PartSet, set_id: str) -> None:
    if read.id != set_id:
        raise ValueError(f"is that of set {read.id}")
    ends = [0, *(part.end_slot for part in read.parts)]
    if [part.first_slot for part in read.parts] != ends[:-1] or ends[-1] != SLOTS or sorted(set(ends)) != ends:
        raise ValueError("its parts do not have every slot once")
    if not all(is_time_id(part.generation) and part.count > 0 for part in read.parts):
        raise ValueError("a part names no generation, or one without candidates")
    if read.revision < 0 or read.order_end < read.count:
        raise ValueError("revision or order_end is out of bounds")


class SetStore:
    """The sets under a directory; several threads and processes may call every method.

    Raises:
        StoreWhole: the directory is a store that is not cut into parts.
    """

    def __init__(self, root: Path) -> None:
        if (root / GENERATIONS).is_dir() and not is_in_parts(root):
            raise StoreWhole(root)
        self.root, self._sets = root, root / SETS
        self._switch = Switch(root, "set", self.ids, self.read)
        self._pointer, self.updates = self._switch.pointer, self._switch.updates

    # What there is.

    def ids(self) -> list[str]:
        """The published sets, oldest first."""
        return entries(self._sets).published

    def strays(self) -> list[Stray]:
        """What lies among the sets and is not of the store; it is left alone."""
        return entries(self._sets).strays

    def current(self) -> str | None:
        """The active set's id; see `Pointer.current`."""
        return self._pointer.current()

    def current_or_none(self) -> str | None:
        """The active set's id; None also where CURRENT is damaged."""
        return self._pointer.current_or_none()

    def stamp(self) -> tuple[int, int] | None:
        """A value that changes with every activation; see `Pointer.stamp`."""
        return self._pointer.stamp()

    def history(self) -> list[str]:
        """The sets that rollbacks can reach; the next one last."""
        return self._switch.history()

    def path(self, set_id: str) -> Path:
        """The directory of a set. Raises GenerationNotFound if the text does not have the form of an id."""
        if not is_time_id(set_id):
            raise GenerationNotFound(f"{set_id[:80]!r} is not the id of a set; polyrank shards status shows them")
        return self._sets / set_id

    def read(self, set_id: str) -> PartSet:
        """Read a set, without looking at its parts.

        Raises:
            GenerationNotFound: there is none with this id.
            GenerationCorrupt: its file is missing or damaged.
            Shortage: it cannot be read at the moment.
        """
        path = self.path(set_id)
        if not path.is_dir() or why_not_plain(path, is_directory=True):
            raise GenerationNotFound(f"no set {set_id} in {self.root}")
        try:
            content = read_input(path / SET_FILE)
        except OSError as error:
            raise shortage_in(error) or GenerationCorrupt(set_id, f"{SET_FILE}: {error.strerror}") from error
        return PartSet.from_json(content, set_id)

    def active(self) -> PartSet:
        """Read the active set.

        Raises:
            GenerationNotFound: none is active, or the one that CURRENT names is gone.
            GenerationCorrupt, Shortage: see `current` and `read`.
        """
        current = self.current()
        if current is None:
            raise GenerationNotFound(f"no set of {self.root} is active; polyrank build --shards makes one")
        return self.read(current)

    def part(self, slots: Slots) -> GenerationStore:
        """The store of a part's generations."""
        return GenerationStore(self.root / PARTS / slots.name)

    def manifest(self, part: PoolPart) -> Manifest:
        """Read the manifest of a part's generation.

        Raises:
            GenerationNotFound, GenerationCorrupt, Shortage: see `read_manifest`; also if it is not the one that was in
                the part when the set was made.
        """
        directory = self.part(part.slots).path(part.generation)
        manifest = read_manifest(directory)
        if sha256(read_input(directory / MANIFEST_FILE)).hexdigest() != part.manifest:
            raise GenerationCorrupt(part.generation, f"{MANIFEST_FILE} is not the one that its set knows")
        return manifest

    def described(self, made: PartSet) -> Manifest:
        """Describe a set as a generation; index and recall are those of the part with the lowest recall.

        Errors as `manifest`.
        """
        worst = min(map(self.manifest, made.parts), key=lambda each: float(each.recall["recall@10"] or 0.0))
        return dataclasses.replace(
            worst, id=made.id, created_at=made.created_at, count=made.count, revision=made.revision
        )

    def open(self, part: PoolPart, *, verify: bool = True) -> Generation:
        """Open a part's generation; errors as `manifest` and `Generation.open`."""
        self.manifest(part)
        opened = self.part(part.slots).open(part.generation, verify=verify)
        if opened.order is None:
            opened.close()
            raise GenerationCorrupt(part.generation, "it does not hold the order of its rows in the pool")
        return opened

    def verify(self, set_id: str) -> PartSet:
        """Check every byte of a set's parts and of its update log.

        Raises:
            GenerationNotFound, GenerationCorrupt, Shortage: of the set, or of the first part that is not as it was; the
                message names the part.
        """
        read = self.read(set_id)
        self.check_updates(read)
        for part in read.parts:
            try:
                self.open(part).close()
            except GenerationError as error:
                raise GenerationCorrupt(set_id, f"part {part.name}: {error}") from error
        return read

    def check_updates(self, made: PartSet) -> None:
        """Read a set's update log to its end.

        Raises:
            GenerationCorrupt: it is damaged, or gone though the set is active or was.
            Shortage: it cannot be read at the moment.
        """
        self._switch.check_updates(made)

    def rejected_log(self, set_id: str) -> Path:
        """The path of the list of bad rows in a set's pool; it exists if there were any."""
        return self.root / "rejected" / set_id / "rejected.jsonl"

    # Switching.

    def activate(self, set_id: str, encode: Encode | None = None) -> None:
        """Verify a set, then make it the active one; arguments and errors as `verify` and `make_active`."""
        self.make_active(self.verify(set_id), encode)

    def make_active(self, made: PartSet, encode: Encode | None = None) -> None:
        """Make a set the active one; the caller has checked its parts.

        A set that was never active receives the updates made since its pool was read. One that was active before comes
        back as its own last update left it.

        Args:
            made: the set.
            encode: its model, which encodes updates made under another one; None: there must be none.

        Raises:
            GenerationNotFound: it was removed meanwhile. After this and all other errors, nothing has changed.
            GenerationCorrupt: its update log is damaged or gone.
            FingerprintMismatch: an update has to be encoded, and there is no `encode`.
            StoreBusy: another process holds a lock of the store for too long.
        """
        paths = [self.part(part.slots).path(part.generation) for part in made.parts]
        find = StoredTexts(paths, made.dim, made.dtype, made.late)
        with self._switch.to(made, encode, find=find):
            self._pointer.advance(made.id)

    def make_copy_active(self, old: str, copy: PartSet, *, replaces: bool) -> None:
        """Make a copy of the active set the active one, with the updates of that set alone.

        Args:
            old: the active set.
            copy: what the caller has just made of it. It is removed if it cannot become active. If another process
                holds pointer.lock for too long, it stays, and a warning says so.
            replaces: a rollback leads where it would have led before; else it leads to the old set.

        Raises:
            CompactionOvertaken: another set is active.
            GenerationNotFound, GenerationCorrupt, StoreBusy: see `make_active`.
        """
        try:
            with self._switch.to(copy, copy_of=old):
                if replaces:
                    self._pointer.replace(copy.id, self.ids())
                else:
                    self._pointer.advance(copy.id)
        except BaseException:
            self._remove_useless(copy.id)
            raise

    def _remove_useless(self, set_id: str) -> None:
        try:
            with self._switch.changing():
                if set_id in self.ids() and self._pointer.current_or_none() != set_id:
                    self._remove(set_id)
        except StoreBusy as error:
            log.warning("set %s stays, though it cannot become active: %s", set_id, error)

    def rollback(self) -> str:
        """Verify the set that was active before the current one, then go back to it; returns its id.

        Raises:
            GenerationNotFound: none was active before, or all have been removed.
            GenerationCorrupt, Shortage: it cannot be served; nothing changes.
        """
        while True:
            history = self.history()
            if not history:
                raise GenerationNotFound(f"no earlier set to roll back to in {self.root}")
            if self.go_back(self.verify(history[-1])):
                return history[-1]

    def go_back(self, made: PartSet) -> bool:
        """Go back to a set that the caller has checked, provided that it is still the last of `history`.

        Returns False if another process has switched meanwhile. Errors as `make_active`.
        """
        with self._switch.to(made):
            if self.history()[-1:] != [made.id]:
                return False
            self._pointer.go_back(made.id)
            return True

    # Building.

    @contextmanager
    def building(self) -> Iterator[None]:
        """Be the only builder of this store for the block; raises BuildBusy if another one is at work."""
        make_directory(self.root)
        with build_lock(self.root):
            yield

    def new_id(self, fingerprint: str) -> str:
        """Make an id that sorts after every other of the store."""
        strays = [stray.path.name for stray in self.strays() if is_time_id(stray.path.name)]
        return new_time_id([*self.ids(), *strays], fingerprint[:8])

    def publish(self, made: PartSet) -> None:
        """Write a set whose generations are published; the caller is the builder."""
        temporary = self._sets / f"{TEMPORARY_PREFIX}{made.id}"
        make_directory(temporary)
        (temporary / SET_FILE).write_bytes(made.to_json())
        sync_tree(temporary)
        with self._switch.changing():
            rename_durably(temporary, self.path(made.id))

    # Collecting.

    def gc(self, keep: int = 2) -> list[str]:
        """Remove old sets, and the generations that no set names. Returns the ids of the sets removed.

        Which sets stay: see `Pointer.expired`. Generations stay while somebody builds.

        Raises:
            GenerationCorrupt: CURRENT or a set that stays is damaged; no generation is removed.
            StoreBusy: another process holds a lock for too long; the next collection continues.
        """
        if not self._sets.is_dir():
            return []  # and no store is made of the directory
        with self._switch.changing():
            removed = self._pointer.expired(self.ids(), keep)
            for set_id in removed:
                self._remove(set_id)
        with suppress(BuildBusy), self.building():
            self.remove_unnamed()
            self._switch.remove_updates([stray.path.name for stray in self.strays()])
        return removed

    def _remove(self, set_id: str) -> None:
        temporary = self._sets / f"{TEMPORARY_PREFIX}{set_id}"
        rename_durably(self.path(set_id), temporary)
        shutil.rmtree(temporary)

    def discard_killed(self, since: datetime, _redis_url: str | None = None) -> None:
        """Remove what killed builds have left in the parts that began after `since`.

        Raises:
            BuildBusy: another builder is at work; the next build removes it.
            GenerationCorrupt, StoreBusy: see `remove_unnamed`.
        """
        with self.building():
            for directory in (self.root / PARTS).glob("*-*"):
                if why_not_plain(directory, is_directory=True) is None:
                    GenerationStore(directory).discard_killed(since, None)
            shutil.rmtree(self.root / BUILDING, ignore_errors=True)
            self.remove_unnamed()

    def tidy(self) -> None:
        """Do what `remove_unnamed` does, if it can be done now; else say why not, and leave it to the next call.

        For those whose own work is done or has failed by then: a set that is damaged is no fault of theirs.
        """
        try:
            self.remove_unnamed()
        except (GenerationError, StoreBusy) as error:
            log.warning("generations that no set names stay in %s: %s", self.root, error)

    def remove_unnamed(self) -> None:
        """Remove the generations that no set names, parts without any, and logs of bad rows older than all sets.

        The caller is the builder.

        Raises:
            GenerationCorrupt: a set is damaged, so what it names is not known; nothing is removed.
            StoreBusy: another process holds a lock for too long; the next call continues.
        """
        for temporary in entries(self._sets).temporary:
            shutil.rmtree(temporary)
        ids = self.ids()
        for directory in (self.root / "rejected").glob("*"):
            is_old = ids and is_time_id(directory.name) and directory.name < ids[0]
            if is_old and why_not_plain(directory, is_directory=True) is None:
                shutil.rmtree(directory)
        named: dict[str, set[str]] = {}
        for set_id in ids:
            for part in self.read(set_id).parts:
                named.setdefault(part.name, set()).add(part.generation)
        for directory in sorted((self.root / PARTS).glob("*-*")):
            if why_not_plain(directory, is_directory=True) is not None:
                log.warning("left aside, because it is not of the store: %s", directory)
            elif directory.name not in named:
                shutil.rmtree(directory)
            else:
                store = GenerationStore(directory)
                store.remove([each for each in store.ids() if each not in named[directory.name]])


def part_of(slots: Slots, store: GenerationStore, generation: str) -> PoolPart:
    """Describe the generation of a part that was just built for its set; errors as `read_manifest`."""
    directory = store.path(generation)
    manifest = read_manifest(directory)
    digest = sha256(read_input(directory / MANIFEST_FILE)).hexdigest()
    return PoolPart(slots.first, slots.end, generation, digest, manifest.count)


def order_of(part: Generation) -> NDArray[np.int64]:
    """Return the place of each row of a part's generation in the pool, (N,)."""
    assert part.order is not None, "`SetStore.open` refuses a part without it"
    return part.order


def set_of(
    set_id: str, manifests: Sequence[Manifest], parts: Sequence[PoolPart], revision: int, order_end: int | None = None
) -> PartSet:
    """Describe a set of parts that was made just now.

    Args:
        set_id: its id.
        manifests: those of the parts' generations.
        parts: of the set.
        revision: see `PartSet`.
        order_end: see `PartSet`; None: the number of candidates.

    Raises:
        InvalidInput: they are of different models or kinds of vectors.
    """
    facts: list[dict[str, Any]] = [
        {name: getattr(each, name) for name in ("model", "backend", "precision", "dim", "dtype", "late")}
        for each in manifests
    ]
    if any(each != facts[0] for each in facts):
        raise InvalidInput("the parts of a set are of different models or kinds of vectors")
    return PartSet(
        id=set_id,
        created_at=datetime.now(UTC).isoformat(),
        revision=revision,
        order_end=sum(part.count for part in parts) if order_end is None else order_end,
        parts=list(parts),
        **facts[0],
    )
