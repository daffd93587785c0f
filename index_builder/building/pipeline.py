"""The way of a build, from a pool to a published generation.

    pool -> ingest -> words -> encode -> index -> manifest -> (copy to Redis) -> publish -> activate

The pool is checked and written to the candidate table before anything is encoded, so that a bad pool fails early. All
files are written to a temporary directory, which is renamed when it is complete. A build that fails or is cancelled
removes it. A build that is killed cannot; the next build takes over its finished chunks. Memory does not grow with the
pool, except for the FAISS index and a little where words count.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.building.encoding import Encoded, VectorSource, encode, encoded_by, find_none
from polyrank.index_builder.building.stages import (
    EncodedContext,
    Ingested,
    OnProgress,
    StageClock,
    count_pool,
    counted_anew,
    ingest,
    make_index,
    no_progress,
    search_times,
)
from polyrank.index_builder.errors import StoreBusy, StoreUnavailable, disk_full_named
from polyrank.index_builder.generation.generation import (
    CANDIDATES_FILE,
    MODEL_DIRECTORY,
    ORDER_FILE,
    Generation,
    describe_files,
)
from polyrank.index_builder.generation.manifest import MANIFEST_FILE, BuildStats, Manifest, ModelReference
from polyrank.index_builder.generation.texts import FindTexts
from polyrank.index_builder.index.choice import IndexSpec, check_factory, choose_index, needs_times
from polyrank.index_builder.index.measuring import Recall
from polyrank.index_builder.layout import TEMPORARY_PREFIX
from polyrank.index_builder.names import AskedOptions
from polyrank.index_builder.pool.rows import Candidate, Rejected
from polyrank.index_builder.redis_client import BUILDING_TIMEOUT_SECONDS
from polyrank.index_builder.store.copies import Copies
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.leftovers import discard
from polyrank.index_builder.vectors.encoder import DTYPES, Model, TextEncoder, encode_texts
from polyrank.index_builder.vectors.late import each_of
from polyrank.index_builder.vectors.local import LocalEmbeddings
from polyrank.index_builder.vectors.redis import RedisEmbeddings
from polyrank.model.errors import InvalidInput
from polyrank.model.lexical.words import Statistics
from polyrank.model.registry import ARCHITECTURES


@dataclass(frozen=True, kw_only=True)
class BuildOptions(AskedOptions):
    """How a pool becomes a generation. For a lexical model the index is "auto" or "exact".

    Attributes:
        chosen: the index where it is chosen already; `index` does not count then.
        probes: real contexts, encoded by the same model. The index is tuned until requests find `min_recall` of their
            10 best candidates, by vectors and, where they count, words. Without probes the recall is measured with the
            pool's own vectors, by vectors alone, and only reported.
        revision: of the last update that the pool can contain; None: the store's last one when the build begins.
        replaces: the active generation of which this one is a compaction. The new one takes its place, provided that it
            is still active; `activate` does not count then.
    """

    chosen: IndexSpec | None = None
    probes: Sequence[EncodedContext] = field(default=(), metadata={"files": False})  # digested beside the others
    revision: int | None = field(default=None, metadata={"files": False})
    replaces: str | None = field(default=None, metadata={"files": False})


_DEFAULT = BuildOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """What was built.

    Attributes:
        rejected: bad rows left out; `rejected_log` lists them, or is None if there are none.
        truncated: texts cut to the model's length.
        resumed: candidates whose vectors a killed build had finished.
        warning: what the user should know about a low recall; None: nothing.
        counted: the candidates whose words a compaction has counted anew; None: it was none, or words do not count.
    """

    generation: str
    count: int
    rejected: int
    rejected_log: Path | None
    truncated: int
    resumed: int
    index: IndexSpec
    recall: Recall
    warning: str | None
    seconds: float
    counted: int | None = None

    @property
    def notes(self) -> list[str]:
        """What the user should know: which index was chosen by which times, a low recall, and that words count anew."""
        counted = None if self.counted is None else counted_anew(self.counted)
        return [note for note in (self.index.why, self.warning, counted) if note]


def build(
    model: Model,
    pool: Iterable[Candidate | Rejected],
    root: Path,
    options: BuildOptions = _DEFAULT,
    *,
    vectors: VectorSource | None = None,
    find: FindTexts | None = None,
    statistics: Statistics | None = None,
    order: NDArray[np.int64] | None = None,
    progress: OnProgress = no_progress,
) -> BuildResult:
    """Encode a pool and publish it as a new generation.

    Args:
        model: makes the vectors; a copy goes into the generation.
        pool: see `read_pool`.
        root: the store's directory; made if need be.
        options: the index, its tuning, what to copy and what to activate.
        vectors: makes the vectors instead of the model, which need not be a `CandidateEncoder` then.
        find: looks up texts that need not be encoded; None: there are none.
        statistics: by which words count, if they do for the model; None: those of the pool.
        order: the place of each good row in the whole pool, (N,), ascending, if this is a part of it.
        progress: called with (stage, done, total) before each step. The stages are "read" (total unknown); "words" if
            they count for the model, two steps a row; "resume" if a killed build has left chunks; "encode" and "append"
            in turns, from the first row that is left to encode; "choose" if the index is chosen by measured times;
            "index"; "recall" if it is measured; "manifest"; "redis" if asked for; "rename"; "CURRENT" if activated.
            An exception that it raises ends the build.

    Raises:
        InvalidInput: the index is unknown, does not fit the model's dimension or needs more candidates; the dtype is
            unknown; the probes are of another model. All of this is raised before anything is encoded.
        PoolError, StoreUnavailable, BuildBusy, LeaseLost, DiskFull: see there. Nothing is left but the log of bad rows,
            and the generation itself if it was published and could not be activated.
        StoreBusy: another process holds a lock of the store for too long; the next build continues this one.
        BuildError: the vectors are not finite or not of the model's dimension, or the recall is not reached; likewise.
        CompactionOvertaken: the generation to replace is not active any more; likewise.
    """
    check_options(model, options)
    options = replace(options, index=index_for(model, options.index))
    clock, store, copies = StageClock(progress), GenerationStore(root), Copies(root, options.redis_url)
    with disk_full_named(root), store.building(options.redis_url) as lease:
        generation = store.new_id(model.fingerprint)
        with _connected(generation, model, options) as redis:
            leftover = store.discard_leftovers(copies.forget)
            # Read before the pool: the generation is given all later updates when it becomes active.
            revision = store.updates.highest() if options.revision is None else options.revision
            with _temporary_directory(store, generation, copies) as directory:
                log = store.rejected_log(generation)
                rows = ingest(pool, directory / CANDIDATES_FILE, log, options.max_rejected, clock)
                if options.chosen is None:
                    choose_index(options.index, rows.count, model.dim)  # refuses too few rows before they are encoded
                if order is not None:
                    order.astype("<i8").tofile(directory / ORDER_FILE)
                model.save(directory / MODEL_DIRECTORY)
                count_pool(directory, statistics, clock)
                source, known = vectors or encoded_by(model), find or partial(find_none, model)
                encoded = encode(directory, model, options.dtype, source, known, leftover, clock)
                content = _Content(rows, encoded, *_indexed(store, directory, model, options, clock))
                clock("manifest", 0, 1)
                manifest = _write_manifest(directory, model, options, revision, content, clock)
                _check_and_copy(directory, redis, copies, clock)
                clock("rename", 0, 1)
                store.publish(directory, lease)
        if options.replaces is not None:
            clock("CURRENT", 0, 1)
            store.make_copy_active(options.replaces, manifest, lease=lease, forget=copies.forget)
        elif options.activate:
            clock("CURRENT", 0, 1)
            encode_updates = partial(encode_texts, model) if isinstance(model, TextEncoder) else None
            store.make_active(manifest, encode_updates, lease)
    return BuildResult(
        generation=generation,
        count=rows.count,
        rejected=rows.rejected,
        rejected_log=rows.log,
        truncated=encoded.truncated,
        resumed=encoded.resumed,
        index=content.index,
        recall=content.recall,
        warning=content.recall.doubt(content.index, options.min_recall),
        seconds=clock.elapsed(),
    )


def index_for(model: Model, index: str) -> str:
    """Return the index to choose for a model's vectors, which is `index` unless they say nothing: then it is "exact".

    Raises:
        InvalidInput: the index is unknown or does not fit the model's dimension, or there is nothing to index.
    """
    if ARCHITECTURES[model.architecture].embeds:
        check_factory(index, model.dim)
        return index
    if index not in ("auto", "exact"):
        raise InvalidInput(f"--index {index}: {model.name} has no vectors to index, its words are; leave --index out")
    return "exact"


def check_options(model: Model, options: BuildOptions) -> None:
    """Raise InvalidInput where the probes or the dtype do not fit the model or the store."""
    if any(codes.shape[1:] != (model.dim,) or not np.isfinite(codes).all() for _, codes in options.probes):
        raise InvalidInput(f"probes must be finite vectors of {model.dim} components")
    if options.dtype not in DTYPES:
        raise InvalidInput(f"unknown dtype {options.dtype!r}; use one of {', '.join(DTYPES)}")


@contextmanager
def _connected(generation: str, model: Model, options: BuildOptions) -> Iterator[RedisEmbeddings | None]:
    """The generation's copy in Redis, if one is asked for. A Redis that is down fails before anything is encoded."""
    if options.redis_url is None:
        yield None
        return
    url, late = options.redis_url, model.late_rows
    copy = RedisEmbeddings(url, generation, model.dim, options.dtype, BUILDING_TIMEOUT_SECONDS, late)
    with closing(copy) as redis:
        redis.ping()
        yield redis


@contextmanager
def _temporary_directory(store: GenerationStore, generation: str, copies: Copies) -> Iterator[Path]:
    """The directory to build in. If the block fails, it is removed, with what was copied to Redis.

    If only a lock was not free, the next build takes over the chunks, as after a kill.
    """
    directory = store.begin(generation)
    try:
        yield directory
    except StoreBusy:
        raise
    except BaseException:
        if directory.exists():
            discard(directory, copies.forget)
        elif generation not in store.ids():  # the next builder removed it, with what had been copied until then
            with suppress(StoreUnavailable):
                copies.forget(generation)
        raise


@dataclass(frozen=True, slots=True)
class _Content:
    """What the stages have made."""

    rows: Ingested
    encoded: Encoded
    index: IndexSpec
    recall: Recall


def _indexed(
    store: GenerationStore, directory: Path, model: Model, options: BuildOptions, clock: StageClock
) -> tuple[IndexSpec, Recall]:
    """Choose, build and measure the index."""
    with closing(LocalEmbeddings(directory, model.dim, options.dtype)) as vectors:
        matrix, times = vectors.matrix, None
        if options.chosen is None and needs_times(options.index, *matrix.shape):
            clock("choose", 0, 1)
            times = search_times(directory, model, matrix, options.probes)
        active = store.active_manifest()
        before = None if active is None else active.index
        spec = options.chosen or choose_index(options.index, len(matrix), model.dim, times, before)
        return make_index(directory, matrix, spec, options.probes, options.min_recall, clock)


def _write_manifest(
    directory: Path, model: Model, options: BuildOptions, revision: int, content: _Content, clock: StageClock
) -> Manifest:
    rows, encoded = content.rows, content.encoded
    encoding_seconds = max(clock.seconds.get("encode", 0.0), 1e-9)
    manifest = Manifest(
        id=directory.name.removeprefix(TEMPORARY_PREFIX),
        created_at=datetime.now(UTC).isoformat(),
        model=ModelReference(model.name, model.architecture, model.fingerprint),
        backend=model.backend,
        precision=model.precision,
        dim=model.dim,
        late=model.late_rows,
        dtype=options.dtype,
        count=rows.count,
        revision=revision,
        index=content.index,
        recall=content.recall.described(options.min_recall),
        files=describe_files(directory),
        build=BuildStats(
            seconds={stage: round(seconds, 6) for stage, seconds in clock.seconds.items()},
            candidates_per_second=round((rows.count - encoded.resumed) / encoding_seconds, 3),
            rejected=rows.rejected,
            truncated=encoded.truncated,
            attempts=encoded.attempts,
        ),
    )
    (directory / MANIFEST_FILE).write_bytes(manifest.to_json())
    return manifest


def _check_and_copy(directory: Path, redis: RedisEmbeddings | None, copies: Copies, clock: StageClock) -> None:
    """Check that the files fit together by opening the generation, then put its vectors into Redis if asked for."""
    with closing(Generation.open(directory, verify=False)) as generation:
        if redis is None:
            return
        copies.note(generation.id)
        done, total = 0, generation.manifest.count
        for ids, _ in generation.candidates.batches():
            clock("redis", done, total)
            made = generation.embeddings.representations(np.arange(done, done + len(ids)))
            redis.put_many(ids, made.first)
            if redis.rows is not None and made.late is not None and made.counts is not None:
                redis.rows.put_many(ids, each_of(made.late, made.counts))
            done += len(ids)
        redis.commit()
