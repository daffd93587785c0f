"""Compaction of a pool that is cut into parts: build it anew with the updates made to it.

Nothing is encoded, and rows keep their places in the pool. Words are counted anew over all parts, so where they count
every part is built. Elsewhere a part that no update has changed keeps its generation. Updates made meanwhile are given
to the new set when it takes the old one's place.
"""

from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from polyrank.index_builder.building.compaction import ModelFiles, candidates_of, chosen_again, compact, stored_vectors
from polyrank.index_builder.building.pipeline import BuildOptions, BuildResult, build
from polyrank.index_builder.building.stages import OnProgress, StageClock, no_progress, statistics_of
from polyrank.index_builder.errors import NothingToCompact, disk_full_named
from polyrank.index_builder.layout import is_in_parts
from polyrank.index_builder.scale.cutting import Built, SetResult
from polyrank.index_builder.scale.moving import report_part
from polyrank.index_builder.scale.sets import PartsStore, PoolPart, part_of, set_of
from polyrank.index_builder.scale.updated_part import UpdatedPart
from polyrank.model.lexical.words import Statistics


def compact_store(root: Path, redis_url: str | None = None, *, progress: OnProgress = no_progress) -> Built:
    """Compact the active generation of either kind of store; errors as `compact` and `compact_parts`."""
    if not is_in_parts(root):
        return compact(root, redis_url=redis_url, progress=progress)
    return compact_parts(root, progress=progress)


def compact_parts(root: Path, *, progress: OnProgress = no_progress) -> SetResult:
    """Build the active set anew with its updates, and put the new one in its place.

    Args:
        root: the store's directory.
        progress: see `build`; the rows of all parts that are built count together.

    Raises:
        GenerationNotFound: no set is active.
        GenerationCorrupt: the active one is damaged.
        NothingToCompact: it was not updated, or a part has no candidate left, which no set may have.
        CompactionOvertaken: another set became active meanwhile; nothing is left of the new one.
        StoreWhole, BuildBusy, DiskFull, StoreBusy: see `build_parts`.
    """
    store, clock = PartsStore(root), StageClock(progress)
    store.active()  # else no store is made of the directory
    with disk_full_named(root), store.building():
        old = store.active()
        with store.updates.writing():  # no update may come between the two
            updates, revision = list(store.updates.of(old).read()), store.updates.highest()
        if not updates:
            raise NothingToCompact(f"generation {old.id} was not updated")
        order_end = old.order_end + sum(len(update.upserts) for update in updates)
        try:
            with ExitStack() as stack:
                opened = {part: stack.enter_context(closing(store.open(part))) for part in old.parts}
                parts = {part.name: UpdatedPart.of(old, part, opened[part]).updated(updates) for part in old.parts}
                changed = {
                    name: part for name, part in parts.items() if len(part.snapshot.removed) or len(part.snapshot.added)
                }
                _check_not_empty(changed)
                statistics = None
                if changed and opened[old.parts[0]].words is not None:
                    changed, statistics = parts, _counted(parts, clock)
                built = _built(store, changed, statistics, clock)
            clock("rename", 0, 1)
            new = [_new(store, part, built) for part in old.parts]
            set_id = store.new_id(old.model.fingerprint)
            made = set_of(set_id, [store.part_manifest(part) for part in new], new, revision, order_end)
            store.publish(made)
            clock("CURRENT", 0, 1)
            store.make_copy_active(old.id, made, replaces=True)
        finally:
            store.tidy()
    return SetResult(
        made=made,
        built=built,
        rejected=0,
        rejected_log=None,
        resumed=0,
        seconds=clock.elapsed(),
        counted=None if statistics is None else made.count,
    )


def _counted(parts: Mapping[str, UpdatedPart], clock: StageClock) -> Statistics:
    """Count the words of all parts."""
    snapshots = [part.snapshot for part in parts.values()]
    clock("words", 0, sum(snapshot.count for snapshot in snapshots))
    return statistics_of((each.text for snapshot in snapshots for each in candidates_of(snapshot)), clock)


def _check_not_empty(changed: Mapping[str, UpdatedPart]) -> None:
    for name, part in changed.items():
        if not part.snapshot.count:
            raise NothingToCompact(
                f"part {name} has no candidate left; cut the pool into fewer parts before, with polyrank shards move"
            )


def _built(
    store: PartsStore, changed: Mapping[str, UpdatedPart], statistics: Statistics | None, clock: StageClock
) -> dict[str, BuildResult]:
    """Build parts, one after the other; words count by the statistics."""
    total, done = sum(part.snapshot.count for part in changed.values()), 0
    built = {}
    for name, part in changed.items():
        snapshot, source = part.snapshot, part.snapshot.generation
        built[name] = build(
            ModelFiles(source),
            candidates_of(snapshot),
            store.part(part.slots).root,
            BuildOptions(
                chosen=chosen_again(source.manifest, snapshot.count),
                dtype=source.manifest.dtype,
                activate=False,
                revision=0,
            ),
            vectors=partial(stored_vectors, snapshot),
            statistics=statistics,
            order=part.order(snapshot.all_rows),
            progress=partial(report_part, clock, done, total),
        )
        done += snapshot.count
    return built


def _new(store: PartsStore, part: PoolPart, built: dict[str, BuildResult]) -> PoolPart:
    if part.name not in built:
        return part
    return part_of(part.slots, store.part(part.slots), built[part.name].generation)
