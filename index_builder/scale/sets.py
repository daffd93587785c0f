"""A store that is cut into parts: its sets, and which of them is active.

STORE/CURRENT, HISTORY           which set is active: store/pointer.py
STORE/generations/<id>/          manifest.json: the generation of each part; it never changes
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
    StoreOutdated,
    StoreWhole,
)
from polyrank.index_builder.generation.generation import MODEL_DIRECTORY, Generation, read_manifest
from polyrank.index_builder.generation.manifest import FORMAT_VERSION, MANIFEST_FILE, Manifest, ModelReference
from polyrank.index_builder.generation.stored_texts import StoredTexts
from polyrank.index_builder.generation.texts import FindTexts
from polyrank.index_builder.layout import (
    GENERATIONS,
    PARTS,
    TEMPORARY_PREFIX,
    entries,
    is_in_parts,
    is_time_id,
    why_not_plain,
)
from polyrank.index_builder.records import record, sealed, unsealed
from polyrank.index_builder.scale.membership import Membership
from polyrank.index_builder.scale.slots import SLOTS, Slots
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.locks import build_lock
from polyrank.index_builder.store.pool_store import PoolStore
from polyrank.model.durable import make_directory, rename_durably, sync_tree
from polyrank.model.errors import InvalidInput, shortage_in
from polyrank.model.inputs import read_input
from polyrank.model.representations import LateRows

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
        """The content of `manifest.json`."""
        return sealed({"format_version": FORMAT_VERSION, "slots": SLOTS, **dataclasses.asdict(self)})

    @classmethod
    def from_json(cls, content: bytes, set_id: str) -> "PartSet":
        """Read the content of `manifest.json` of the set with this id.

        Raises:
            GenerationCorrupt: anything is missing, unknown, of another type or out of bounds, it is of another
                generation or format, or its checksum does not fit.
        """
        try:
            body = unsealed(content, FORMAT_VERSION)
            if body.pop("slots", None) != SLOTS:
                raise ValueError(f"its slots are not {SLOTS}")
            read = record(cls, body, "manifest")
            _check(read, set_id)
        except ValueError as error:
            raise GenerationCorrupt(set_id, f"{MANIFEST_FILE}: {error}") from error
        return read


def _check(read: PartSet, set_id: str) -> None:
    if read.id != set_id:
        raise ValueError(f"is that of generation {read.id}")
    ends = [0, *(part.end_slot for part in read.parts)]
    if [part.first_slot for part in read.parts] != ends[:-1] or ends[-1] != SLOTS or sorted(set(ends)) != ends:
        raise ValueError("its parts do not have every slot once")
    if not all(is_time_id(part.generation) and part.count > 0 for part in read.parts):
        raise ValueError("a part names no generation, or one without candidates")
    if read.revision < 0 or read.order_end < read.count:
        raise ValueError("revision or order_end is out of bounds")


class PartsStore(PoolStore[PartSet]):
    """A store whose generations are cut into parts.

    Raises:
        StoreWhole: the directory is a store that is not cut into parts.
        StoreOutdated: it is of an older format.
    """

    def __init__(self, root: Path) -> None:
        if (root / "sets").is_dir():
            raise StoreOutdated(root)
        if not is_in_parts(root) and (root / GENERATIONS).is_dir():
            raise StoreWhole(root)
        super().__init__(root, root / GENERATIONS)

    # What there is.

    def read(self, generation: str) -> PartSet:
        """Read a generation, without looking at its parts.

        Raises:
            GenerationNotFound: there is none with this id.
            GenerationCorrupt: its file is missing or damaged.
            Shortage: it cannot be read at the moment.
        """
        path = self.path(generation)
        if not path.is_dir() or why_not_plain(path, is_directory=True):
            raise GenerationNotFound(f"no generation {generation} in {self.root}")
        try:
            content = read_input(path / MANIFEST_FILE)
        except OSError as error:
            raise shortage_in(error) or GenerationCorrupt(generation, f"{MANIFEST_FILE}: {error.strerror}") from error
        return PartSet.from_json(content, generation)

    def active(self) -> PartSet:
        """Read the active generation.

        Raises:
            GenerationNotFound: none is active, or the one that CURRENT names is gone.
            GenerationCorrupt, Shortage: see `current` and `read`.
        """
        current = self.current()
        if current is None:
            raise GenerationNotFound(f"no generation of {self.root} is active; polyrank build --shards makes one")
        return self.read(current)

    def part(self, slots: Slots) -> GenerationStore:
        """The store of a part's generations."""
        return GenerationStore(self.root / PARTS / slots.name)

    def directory(self, part: PoolPart) -> Path:
        """The directory of a part's generation."""
        return self.part(part.slots).path(part.generation)

    def part_manifest(self, part: PoolPart) -> Manifest:
        """Read the manifest of a part's generation.

        Raises:
            GenerationNotFound, GenerationCorrupt, Shortage: see `read_manifest`; also if it is not the one that was in
                the part when the whole was made.
        """
        directory = self.directory(part)
        manifest = read_manifest(directory)
        if sha256(read_input(directory / MANIFEST_FILE)).hexdigest() != part.manifest:
            raise GenerationCorrupt(part.generation, f"{MANIFEST_FILE} is not the one that its pool knows")
        return manifest

    def manifest(self, generation: str) -> Manifest:
        """Describe a generation; index and recall are those of the part with the lowest recall.

        Errors as `read` and `part_manifest`.
        """
        made = self.read(generation)
        worst = min(map(self.part_manifest, made.parts), key=lambda each: float(each.recall["recall@10"] or 0.0))
        return dataclasses.replace(
            worst, id=made.id, created_at=made.created_at, count=made.count, revision=made.revision
        )

    def model_directory(self, generation: str) -> Path:
        """The directory of a generation's model: that of its first part; errors as `read`."""
        return self.directory(self.read(generation).parts[0]) / MODEL_DIRECTORY

    def parts(self, generation: str) -> list[dict[str, Any]]:
        """Describe the parts of a generation; what is wrong with one is its `error`. Errors as `read`."""
        return [self._described(part) for part in self.read(generation).parts]

    def _described(self, part: PoolPart) -> dict[str, Any]:
        row = {"slots": part.name, "generation": part.generation, "count": part.count}
        try:
            manifest = self.part_manifest(part)
        except GenerationError as error:
            return {**row, "error": str(error)}
        size = sum(entry.bytes for entry in manifest.files.values())
        return {**row, "index": manifest.index.kind, "recall": manifest.recall, "bytes": size}

    def members(self, made: PartSet) -> list[Membership]:
        """Return which candidates were built into each part; raises GenerationCorrupt, Shortage."""
        try:
            return [Membership(self.directory(part), part.slots, part.count) for part in made.parts]
        except (OSError, ValueError) as error:
            raise shortage_in(error) or GenerationCorrupt(made.id, f"the ids of its parts: {error}") from error

    def updated(self, generation: str) -> tuple[int, int]:
        """Count by ids alone; errors as `read` and `members`, and GenerationCorrupt of the update log."""
        made = self.read(generation)
        members, log = self.members(made), self.updates.of(made)
        updates = list(log.read())
        for each in members:
            each.update(updates)
        return sum(each.counts().count for each in members), max(log.revision, made.revision)

    def open(self, part: PoolPart, *, verify: bool = True) -> Generation:
        """Open a part's generation; errors as `part_manifest` and `Generation.open`."""
        self.part_manifest(part)
        opened = self.part(part.slots).open(part.generation, verify=verify)
        if opened.order is None:
            opened.close()
            raise GenerationCorrupt(part.generation, "it does not hold the order of its rows in the pool")
        return opened

    def verify(self, generation: str) -> PartSet:
        """Check every byte of a generation's parts and of its update log.

        Raises:
            GenerationNotFound, GenerationCorrupt, Shortage: of the whole, or of the first part that is not as it was;
                the message names the part.
        """
        read = self.read(generation)
        self.check_updates(read)
        for part in read.parts:
            try:
                self.open(part).close()
            except GenerationError as error:
                raise GenerationCorrupt(generation, f"part {part.name}: {error}") from error
        return read

    def _finds_texts(self, version: PartSet) -> FindTexts:
        """What looks texts up in all parts: shards see their own alone."""
        paths = [self.directory(part) for part in version.parts]
        return StoredTexts(paths, version.dim, version.dtype, version.late)

    # Building.

    @contextmanager
    def building(self) -> Iterator[None]:
        """Be the only builder of this store for the block; raises BuildBusy if another one is at work."""
        make_directory(self.root)
        with build_lock(self.root):
            yield

    def publish(self, made: PartSet) -> None:
        """Write a set whose generations are published; the caller is the builder."""
        temporary = self._generations / f"{TEMPORARY_PREFIX}{made.id}"
        make_directory(temporary)
        (temporary / MANIFEST_FILE).write_bytes(made.to_json())
        sync_tree(temporary)
        with self._switch.changing():
            rename_durably(temporary, self.path(made.id))

    # Collecting.

    def gc(self, keep: int = 2, redis_url: str | None = None) -> list[str]:
        """Remove old generations, and those of parts that none names. Returns the ids of the generations removed.

        Which stay: see `Pointer.expired`. What parts hold stays while somebody builds. Parts have no copies in Redis.

        Raises:
            GenerationCorrupt: CURRENT or a generation that stays is damaged; nothing of a part is removed.
            StoreBusy: another process holds a lock for too long; the next collection continues.
        """
        if not self._generations.is_dir():
            return []  # and no store is made of the directory
        with self._switch.changing():
            removed = self._pointer.expired(self.ids(), keep)
            for generation in removed:
                shutil.rmtree(self._unlist(generation))
        with suppress(BuildBusy), self.building():
            self.remove_unnamed()
            self._switch.remove_updates([stray.path.name for stray in self.strays()])
        return removed

    def discard_killed(self, since: datetime, redis_url: str | None = None) -> None:
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
        for temporary in entries(self._generations).temporary:
            shutil.rmtree(temporary)
        self._remove_rejected()
        named: dict[str, set[str]] = {}
        for set_id in self.ids():
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


def open_store(root: Path) -> PoolStore[Any]:
    """Return the store of a directory; see `GenerationStore`."""
    return PartsStore(root) if is_in_parts(root) else GenerationStore(root)


def part_of(slots: Slots, store: GenerationStore, generation: str) -> PoolPart:
    """Describe the generation of a part that was just built for its set; errors as `read_manifest`."""
    directory = store.path(generation)
    manifest = read_manifest(directory)
    digest = sha256(read_input(directory / MANIFEST_FILE)).hexdigest()
    return PoolPart(slots.first, slots.end, generation, digest, manifest.count)


def order_of(part: Generation) -> NDArray[np.int64]:
    """Return the place of each row of a part's generation in the pool, (N,)."""
    assert part.order is not None, "`PartsStore.open` refuses a part without it"
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
