"""A new generation of what updates have made of the active one: nothing is encoded anew, and no answer changes.

Rows keep their order, so that ties break as before. Updates that come meanwhile are given to the new generation when it
takes the old one's place.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from polyrank.index_builder.build.build import BuildResult, build, no_progress
from polyrank.index_builder.build.stages import Progress
from polyrank.index_builder.build.vector_source import VectorSource
from polyrank.index_builder.errors import GenerationNotFound, NothingToCompact
from polyrank.index_builder.index.choice import IndexSpec, choose_index
from polyrank.index_builder.index.faiss_factory import check_rows
from polyrank.index_builder.pool.pool import Candidate
from polyrank.index_builder.store.generation import Generation
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.manifest import Manifest
from polyrank.index_builder.store.snapshot import Snapshot
from polyrank.model.errors import InvalidInput

_BATCH_ROWS = 8192


class _Kept:
    """The model of a generation, of which nothing but the files is needed."""

    def __init__(self, generation: Generation) -> None:
        reference = generation.manifest.model
        self.name, self.architecture, self.fingerprint = reference.name, reference.architecture, reference.fingerprint
        self.dim, self.backend = generation.manifest.dim, generation.manifest.backend
        self._directory = generation.model_directory

    def save(self, directory: Path) -> None:
        """Copy the checkpoint."""
        shutil.copytree(self._directory, directory)


def compact(root: Path, *, redis_url: str | None = None, progress: Progress = no_progress) -> BuildResult:
    """Build the active generation anew with its updates, and put it in its place.

    Args:
        root: the store's directory.
        redis_url: also copy the vectors there.
        progress: as `build` tells it.

    Raises:
        GenerationNotFound: none is active.
        GenerationCorrupt: the active one is damaged.
        MatrixMissing: this is a replica without its matrix.
        NothingToCompact: it was not updated, or nothing is left in it.
        CompactionOvertaken: another one became active meanwhile; nothing is left.
        StoreUnavailable, BuildBusy, DiskFull: see there; likewise.
    """
    store = GenerationStore(root, needs_matrix=False)
    current = store.current()
    if current is None:
        raise GenerationNotFound(f"no generation of {root} is active")
    opened = store.open(current)
    try:
        with store.updates.writing():  # no update between the two
            snapshot, revision = store.snapshot(opened), store.updates.highest()
        if not snapshot.changed or not snapshot.count:
            raise NothingToCompact(f"generation {current} " + ("was not updated" if snapshot.count else "is empty"))
        opened.embeddings.require_matrix()
        spec = _chosen(opened.manifest, snapshot.count)
        return build(
            _Kept(opened),
            _candidates(snapshot),
            root,
            index=spec.asked,
            params=spec.params,
            dtype=opened.manifest.dtype,
            redis_url=redis_url,
            progress=progress,
            vectors=_vectors(snapshot),
            revision=revision,
            replaces=current,
        )
    finally:
        opened.close()


def _chosen(manifest: Manifest, count: int) -> IndexSpec:
    """What was asked for, by the number that there are now: searched as before, where that is the same kind."""
    before = manifest.index
    try:
        spec = choose_index(before.asked, count, manifest.dim)
        check_rows(spec, count, manifest.dim)
    except InvalidInput:  # it has become too small for what was asked for, and stays "auto" from now on
        spec = choose_index("auto", count, manifest.dim)
    return replace(spec, params=before.params) if spec.kind == before.kind else spec


def _candidates(snapshot: Snapshot) -> Iterator[Candidate]:
    for start in range(0, snapshot.count, _BATCH_ROWS):
        yield from snapshot.candidates(snapshot.all_rows[start : start + _BATCH_ROWS])


def _vectors(snapshot: Snapshot) -> VectorSource:
    def of_shard(
        start: int, ids: Sequence[str], _texts: Sequence[str], _on_done: Callable[[int], None]
    ) -> tuple[NDArray[Any], int]:
        return snapshot.vectors(snapshot.all_rows[start : start + len(ids)]), 0

    return of_shard
