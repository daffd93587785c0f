"""Copies of the active generation with its updates: a compaction, and a pool that is cut into other parts.

Nothing is encoded, and rows keep their order in the pool, so that ties break as before. A part that would be as it is
keeps its files. Updates made meanwhile are given to the copy when it takes the active generation's place.

A compaction counts words anew, over all parts: they say what they would if the pool were built as it is now. Nothing
else of an answer changes. Where the pool is cut anew, no answer changes: words count by the statistics that are there.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.building.encoding import ChunkTexts, EncodedChunk
from polyrank.index_builder.building.pipeline import check_parts, make, write_part
from polyrank.index_builder.building.plans import BuildOptions, BuildResult, Filled, PartPlan
from polyrank.index_builder.building.stages import OnProgress, StageClock, no_progress
from polyrank.index_builder.errors import (
    CompactionOvertaken,
    GenerationError,
    MatrixMissing,
    NothingToCompact,
    SwitchOvertaken,
)
from polyrank.index_builder.generation.candidates import CANDIDATES_FILE, CandidateWriter, interleaved
from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.generation.slots import Slots, ranges
from polyrank.index_builder.index.choice import IndexSpec, choose_index
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.errors import InvalidInput
from polyrank.model.lexical.words import Statistics
from polyrank.model.representations import Representations

BATCH_ROWS = 8192


def compact(
    root: Path, *, redis_url: str | None = None, copies_vectors: bool = True, progress: OnProgress = no_progress
) -> BuildResult:
    """Build the active generation anew with its updates, and put the new one in its place; arguments as `build`.

    Raises:
        NothingToCompact: the active one was not updated, or no candidate is left in it or in a part of it.
        CompactionOvertaken: another generation became active meanwhile; nothing is left of the new one.
    """
    store = GenerationStore(root, needs_matrix=False)
    options = BuildOptions(redis_url=redis_url, copies_vectors=copies_vectors)
    with _opened(store) as source:
        if source.snapshots[0].revision == source.old.revision:
            raise NothingToCompact(f"generation {source.old.id} was not updated")
        counts_words = source.generations[0].words is not None
        parts = []
        for part, snapshot in enumerate(source.snapshots):
            if not snapshot.count:
                if len(source.snapshots) == 1:
                    raise NothingToCompact(f"generation {source.old.id} is empty")
                advice = "cut the pool into fewer parts before, with polyrank shards move"
                raise NothingToCompact(f"part {snapshot.slots.name} has no candidate left; {advice}")
            may_stay = len(source.snapshots) > 1 and not counts_words
            parts.append(source.whole(part) if may_stay and source.is_same(part) else source.rows_of(snapshot.slots))
        result = source.copied(parts, options, StageClock(progress), replaces=True)
    return replace(result, counted=result.count) if counts_words else result


def move(root: Path, shards: int, *, redis_url: str | None = None, progress: OnProgress = no_progress) -> BuildResult:
    """Cut the active generation into so many parts, 1..MOST_PARTS, with its updates, and make the result active.

    The old one stays, so a rollback leads back to it. Raises InvalidInput if there are too many parts for the
    candidates, or so many already.
    """
    check_parts(shards)
    with _opened(GenerationStore(root)) as source:
        if [part.slots for part in source.old.parts] == ranges(shards):
            raise InvalidInput(f"{root} is cut into {shards} parts already")
        parts = []
        for slots in ranges(shards):
            parts.append(source.rows_of(slots))
            if not len(parts[-1].rows):
                raise InvalidInput(f"the pool has too few candidates: the part {slots.name} would be empty")
        words = source.generations[0].words
        statistics = None if words is None else words.table.statistics
        return source.copied(parts, BuildOptions(redis_url=redis_url), StageClock(progress), statistics, replaces=False)


@contextmanager
def updated_pool(store: GenerationStore, generation: str) -> Iterator[tuple[int, Iterator[Candidate]]]:
    """The candidates of the active generation with its updates, in the pool's order, for a build with another model.

    Yields the last revision that they contain, and the candidates. Errors as `compact`; raises SwitchOvertaken where
    another generation is active.
    """
    with _opened(store) as source:
        if source.old.id != generation:
            raise SwitchOvertaken(generation, source.old.id)
        yield source.revision, source.candidates(source.rows_of(ranges(1)[0]))


@dataclass(frozen=True, slots=True, eq=False)
class _PartRows:
    """The rows that a part takes, in the order of the pool."""

    slots: Slots
    like: Manifest  # the part whose index is chosen again
    sources: NDArray[np.int64]  # from which of the snapshots each comes, (N,)
    rows: NDArray[np.int64]
    order: NDArray[np.int64]  # their places in the pool, (N,), ascending
    earlier: Generation | None = None  # the part that is taken as it is; None: it is built of the rows


@contextmanager
def _opened(store: GenerationStore) -> "Iterator[_Source]":
    """Open the active generation for the block, which no lock keeps from being collected once another one is active."""
    old = store.active()
    try:
        with ExitStack() as stack:
            yield _Source(store, old, stack)
    except (FileNotFoundError, GenerationError) as error:
        if store.current_or_none() == old.id:
            raise
        raise CompactionOvertaken(old.id) from error


class _Source:
    """The active generation with its updates; `revision`: the last one that was used."""

    def __init__(self, store: GenerationStore, old: Manifest, stack: ExitStack) -> None:
        self._store, self.old = store, old
        self.generations = [stack.enter_context(closing(each)) for each in store.open_parts(old.id)]
        with store.updates.writing():  # no update may come between the two
            self.snapshots, self.revision = store.snapshots(self.generations), store.updates.highest()
        for each in self.generations:
            if not each.embeddings.is_whole:
                raise MatrixMissing(each.manifest.id)

    def is_same(self, part: int) -> bool:
        """Whether no update has changed a part, given by its number."""
        return not len(self.snapshots[part].removed) and not len(self.snapshots[part].added)

    def whole(self, part: int) -> _PartRows:
        generation, none = self.generations[part], np.empty(0, np.int64)
        return _PartRows(self.snapshots[part].slots, generation.manifest, none, none, none, generation)

    def rows_of(self, slots: Slots) -> _PartRows:
        by_snapshot = [each.rows_within(slots) for each in self.snapshots]
        order = np.concatenate([each.order(rows) for each, rows in zip(self.snapshots, by_snapshot, strict=True)])
        by_order = np.argsort(order)
        sources = np.repeat(np.arange(len(by_snapshot)), [len(rows) for rows in by_snapshot])[by_order]
        same = [each.manifest for each in self.generations if each.manifest.parts[0].slots == slots]
        like = (same or [self.generations[0].manifest])[0]
        return _PartRows(slots, like, sources, np.concatenate(by_snapshot)[by_order], order[by_order])

    def copied(
        self,
        parts: Sequence[_PartRows],
        options: BuildOptions,
        clock: StageClock,
        statistics: Statistics | None = None,
        *,
        replaces: bool,
    ) -> BuildResult:
        """Make a generation of these parts, and put it in the place of the active one."""

        def fill(directory: Path, _log: Path, clock: StageClock) -> Filled:
            count, total = 0, sum(len(each.rows) for each in parts)
            for part, each in enumerate(parts):
                clock("read", count, total)
                if len(parts) == 1:
                    with CandidateWriter(directory / CANDIDATES_FILE) as table:
                        for candidate in self.candidates(each):
                            table.add(candidate)
                elif each.earlier is None:
                    write_part(directory, part, self.candidates(each), each.order)
                count += len(each.rows)
            return Filled(
                parts=[self._plan(each) for each in parts],
                order_end=max(each.order_end for each in self.snapshots),
                revision=self.revision,
                statistics=statistics,
                copy_of=self.old.id,
                replaces=replaces,
            )

        options = replace(options, dtype=self.old.dtype, min_recall=self.old.min_recall)
        return make(self._store, ModelFiles(self.generations[0]), options, fill, clock)

    def _plan(self, part: _PartRows) -> PartPlan:
        if part.earlier is not None:
            return PartPlan(part.slots, None, earlier=part.earlier)
        return PartPlan(part.slots, partial(self._vectors, part), chosen_again(part.like, len(part.rows)))

    def candidates(self, part: _PartRows) -> Iterator[Candidate]:
        for start in range(0, len(part.rows), BATCH_ROWS):
            of, rows = part.sources[start : start + BATCH_ROWS], part.rows[start : start + BATCH_ROWS]
            yield from interleaved([each.candidates(rows[of == at]) for at, each in enumerate(self.snapshots)], of)

    def _vectors(
        self, part: _PartRows, chunks: Iterator[ChunkTexts], _on_done: Callable[[int], None]
    ) -> Iterator[EncodedChunk]:
        """A `VectorSource` once the part is given."""
        for chunk in chunks:
            here = list(chunk.rows)
            of, rows = part.sources[here], part.rows[here]
            by_snapshot = [each.representations(rows[of == at]) for at, each in enumerate(self.snapshots)]
            yield EncodedChunk(chunk, Representations.interleaved(by_snapshot, of), 0)


class ModelFiles:
    """The model of a generation, known by its manifest and its files alone: it is copied, not loaded."""

    def __init__(self, generation: Generation) -> None:
        reference = generation.manifest.model
        self.name, self.architecture, self.fingerprint = reference.name, reference.architecture, reference.fingerprint
        self.dim, self.late_rows = generation.manifest.dim, generation.manifest.late
        self.backend, self.precision = generation.manifest.backend, generation.manifest.precision
        self.rounding = self.precision  # which calibration is not told; no other one takes part
        self._directory = generation.model_directory

    def save(self, directory: Path) -> None:
        shutil.copytree(self._directory, directory)


def chosen_again(manifest: Manifest, count: int) -> IndexSpec:
    """The index that was asked for, chosen by today's count. If its kind stays, so do its search parameters.

    Nothing is measured, because there are no contexts without the model. The last build's times are predicted for the
    new count.
    """
    before = manifest.index
    times = before.times and before.times.grown(manifest.count, count)
    try:
        spec = choose_index(before.asked, count, manifest.dim, times, before)
    except InvalidInput:  # too few candidates are left for it: "auto" from now on
        spec = choose_index("auto", count, manifest.dim)
    return replace(spec, params=before.params) if spec.kind == before.kind else spec
