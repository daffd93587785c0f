"""Cut a pool that is built already into another number of parts. Nothing is encoded, and no answer changes.

Hashes of ids are sorted in `ids.index`, so the rows that a new part takes from an old one are found at once. They are
put in the order of the pool, their vectors are copied, and the statistics of the words stay. Each new part is built by
`build`, as in a compaction. The new set receives all updates of the old one when it becomes active. The set of the old
parts stays, so a rollback leads back to it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.building.compaction import ModelFiles, chosen_again
from polyrank.index_builder.building.encoding import ChunkTexts, EncodedChunk
from polyrank.index_builder.building.pipeline import BuildOptions, build
from polyrank.index_builder.building.stages import OnProgress, no_progress
from polyrank.index_builder.errors import disk_full_named
from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.names import MOST_PARTS
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.scale.sets import PartSet, PartsStore, PoolPart, order_of, part_of, set_of
from polyrank.index_builder.scale.slots import Slots, ranges
from polyrank.model.errors import InvalidInput
from polyrank.model.representations import Representations

_BATCH_ROWS = 8192


def move(root: Path, shards: int, *, progress: OnProgress = no_progress) -> PartSet:
    """Cut the active set into so many parts, and make the result the active set; returns it.

    A part whose slots stay as they are keeps its generation.

    Args:
        root: the store's directory.
        shards: how many parts, 1..MOST_PARTS.
        progress: see `build`; the rows of all parts that are built count together.

    Raises:
        InvalidInput: there are too many parts for the candidates, or so many already.
        GenerationNotFound: no set is active.
        GenerationCorrupt: the active one is damaged.
        CompactionOvertaken: another set became active meanwhile; nothing is left of the new one.
        StoreWhole, BuildBusy, DiskFull, StoreBusy: see `build_parts`.
    """
    if not 1 <= shards <= MOST_PARTS:
        raise InvalidInput(f"a pool can be cut into 1 to {MOST_PARTS} parts, not {shards}")
    store = PartsStore(root)
    store.active()  # else no store is made of the directory
    with disk_full_named(root), store.building():
        old = store.active()
        kept = {part.slots: part for part in old.parts}
        wanted = ranges(shards)
        if list(kept) == wanted:
            raise InvalidInput(f"{root} is cut into {shards} parts already")
        try:
            with ExitStack() as stack:
                sources = [stack.enter_context(closing(store.open(part))) for part in old.parts]
                taken = {slots: _taken(sources, slots) for slots in wanted if slots not in kept}
                parts = _parts(store, sources, wanted, kept, taken, progress)
            progress("rename", 0, 1)
            set_id = store.new_id(old.model.fingerprint)
            manifests = [store.part_manifest(part) for part in parts]
            moved = set_of(set_id, manifests, parts, old.revision, old.order_end)
            store.publish(moved)
            progress("CURRENT", 0, 1)
            store.make_copy_active(old.id, moved, replaces=False)
        finally:
            store.tidy()
    return moved


@dataclass(frozen=True, slots=True, eq=False)
class _Taken:
    """The rows that a new part takes, in the order of the pool.

    Attributes:
        sources: from which of the old parts each comes, (N,).
        rows: in these, (N,).
        order: their places in the pool, (N,), ascending.
    """

    sources: NDArray[np.int64]
    rows: NDArray[np.int64]
    order: NDArray[np.int64]


def _taken(sources: Sequence[Generation], slots: Slots) -> _Taken:
    found = [each.embeddings.ids.rows_between(*slots.hashes) for each in sources]
    of = np.repeat(np.arange(len(sources)), [len(rows) for rows in found])
    if not len(of):
        raise InvalidInput(f"the pool has too few candidates: the part {slots.name} would be empty")
    rows = np.concatenate(found)
    order = np.concatenate([order_of(each)[rows_] for each, rows_ in zip(sources, found, strict=True)])
    by_order = np.argsort(order)
    return _Taken(of[by_order], rows[by_order], order[by_order])


def _parts(
    store: PartsStore,
    sources: Sequence[Generation],
    wanted: Sequence[Slots],
    kept: dict[Slots, PoolPart],
    taken: dict[Slots, _Taken],
    progress: OnProgress,
) -> list[PoolPart]:
    first, total, done = sources[0], sum(len(each.rows) for each in taken.values()), 0
    parts = []
    for slots in wanted:
        if slots in kept:
            parts.append(kept[slots])
            continue
        rows = taken[slots]
        result = build(
            ModelFiles(first),
            _candidates(sources, rows),
            store.part(slots).root,
            BuildOptions(
                chosen=chosen_again(first.manifest, len(rows.rows)),
                dtype=first.manifest.dtype,
                activate=False,
                revision=0,
            ),
            vectors=partial(_stored_vectors, sources, rows),
            statistics=first.words.table.statistics if first.words else None,
            order=rows.order,
            progress=partial(report_part, progress, done, total),
        )
        parts.append(part_of(slots, store.part(slots), result.generation))
        done += len(rows.rows)
    return parts


def report_part(progress: OnProgress, before: int, total: int, stage: str, done: int, of: int | None) -> None:
    """Pass the progress of a part on that is copied: its rows come behind `before` ones, of `total` of all parts."""
    if stage in ("encode", "append"):
        progress("copy", before + done, total)
    elif stage not in ("read", "rename"):
        progress(stage, done, of)


def _candidates(sources: Sequence[Generation], taken: _Taken) -> Iterator[Candidate]:
    for start in range(0, len(taken.rows), _BATCH_ROWS):
        of, rows = taken.sources[start : start + _BATCH_ROWS], taken.rows[start : start + _BATCH_ROWS]
        read = [iter(each.candidates.rows(rows[of == at])) for at, each in enumerate(sources)]
        yield from (next(read[at]) for at in of.tolist())


def _stored_vectors(
    sources: Sequence[Generation], taken: _Taken, chunks: Iterator[ChunkTexts], _on_done: Callable[[int], None]
) -> Iterator[EncodedChunk]:
    """A `VectorSource` once the old parts and the rows are given."""
    for chunk in chunks:
        here = list(chunk.rows)
        of, rows = taken.sources[here], taken.rows[here]
        made = Representations.join(
            [each.embeddings.representations(rows[of == at]) for at, each in enumerate(sources)]
        )
        yield EncodedChunk(chunk, made.take(np.argsort(np.argsort(of, kind="stable"))), 0)
