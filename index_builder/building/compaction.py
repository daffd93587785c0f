"""Compaction: build the active generation anew with the updates made to it. Nothing is encoded.

Rows keep their order, so that ties break as before. Words are counted anew: they say what they would if the pool were
built as it is now. Nothing else of an answer changes. Updates made meanwhile are given to the new generation when it
takes the old one's place.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from polyrank.index_builder.building.encoding import ChunkTexts, EncodedChunk
from polyrank.index_builder.building.pipeline import BuildOptions, BuildResult, build
from polyrank.index_builder.building.stages import OnProgress, no_progress
from polyrank.index_builder.errors import GenerationNotFound, NothingToCompact
from polyrank.index_builder.generation.generation import Generation
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.index.choice import IndexSpec, choose_index
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.model.errors import InvalidInput

BATCH_ROWS = 8192


def compact(root: Path, *, redis_url: str | None = None, progress: OnProgress = no_progress) -> BuildResult:
    """Build the active generation anew with its updates, and put the new one in its place; arguments as `build`.

    Raises:
        GenerationNotFound: no generation is active.
        GenerationCorrupt: the active one is damaged.
        MatrixMissing: this is a replica without the matrix.
        NothingToCompact: the active one was not updated, or no candidate is left in it.
        CompactionOvertaken: another generation became active meanwhile; nothing is left of the new one.
        StoreUnavailable, BuildBusy, LeaseLost, DiskFull: see `build`.
    """
    store = GenerationStore(root, needs_matrix=False)
    current = store.current()
    if current is None:
        raise GenerationNotFound(f"no generation of {root} is active")
    opened = store.open(current)
    try:
        with store.updates.writing():  # no update may come between the two
            snapshot, revision = store.snapshot(opened), store.updates.highest()
        if not snapshot.changes or not snapshot.count:
            raise NothingToCompact(f"generation {current} " + ("was not updated" if snapshot.count else "is empty"))
        opened.embeddings.require_matrix()  # and, with a second stage, its rows
        options = BuildOptions(
            chosen=chosen_again(opened.manifest, snapshot.count),
            dtype=opened.manifest.dtype,
            redis_url=redis_url,
            revision=revision,
            replaces=current,
        )
        vectors = partial(stored_vectors, snapshot)
        built = build(ModelFiles(opened), candidates_of(snapshot), root, options, vectors=vectors, progress=progress)
        return built if opened.words is None else replace(built, counted=built.count)
    finally:
        opened.close()


class ModelFiles:
    """The model of a generation, known by its manifest and its files alone: it is copied, not loaded."""

    def __init__(self, generation: Generation) -> None:
        reference = generation.manifest.model
        self.name, self.architecture, self.fingerprint = reference.name, reference.architecture, reference.fingerprint
        self.dim, self.late_rows = generation.manifest.dim, generation.manifest.late
        self.backend, self.precision = generation.manifest.backend, generation.manifest.precision
        self._directory = generation.model_directory

    def save(self, directory: Path) -> None:
        """Copy the checkpoint."""
        shutil.copytree(self._directory, directory)


def stored_vectors(
    snapshot: Snapshot, chunks: Iterator[ChunkTexts], _on_done: Callable[[int], None]
) -> Iterator[EncodedChunk]:
    """A `VectorSource` once the snapshot is given."""
    for chunk in chunks:
        yield EncodedChunk(chunk, snapshot.representations(snapshot.all_rows[list(chunk.rows)]), 0)


def candidates_of(snapshot: Snapshot) -> Iterator[Candidate]:
    """Yield the candidates of all rows, in their order."""
    for start in range(0, snapshot.count, BATCH_ROWS):
        yield from snapshot.candidates(snapshot.all_rows[start : start + BATCH_ROWS])


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
