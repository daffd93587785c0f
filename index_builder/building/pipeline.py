"""The way of a build, from a pool to a published generation.

    pool -> ingest -> words -> encode -> index -> manifest -> (copy to Redis) -> publish -> activate

The pool is checked and written to the candidate tables of its parts before anything is encoded, so that a bad pool
fails early. Words are counted in the whole pool, so that what they say for a candidate does not depend on its part.
Then each part is encoded and indexed, one after the other. All files are written to a temporary directory, which is
renamed when it is complete. A build that fails or is cancelled removes it. A build that is killed cannot; the next
build takes over its finished chunks. Memory does not grow with the pool, except for the FAISS index, 10 bytes a
candidate of a pool in several parts, and a little where words count.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.building.encoding import Encodings, VectorSource, encode, encoded_by
from polyrank.index_builder.building.plans import (
    BuildOptions,
    BuildResult,
    BuiltPart,
    Fill,
    Filled,
    PartPlan,
)
from polyrank.index_builder.building.stages import (
    TIMED_CONTEXTS,
    OnProgress,
    StageClock,
    contexts_of_candidates,
    ingest,
    languages_of,
    no_progress,
    within,
)
from polyrank.index_builder.errors import GenerationError, StoreBusy, StoreUnavailable, disk_full_named
from polyrank.index_builder.generation.candidates import CANDIDATES_FILE, CandidateTable, CandidateWriter
from polyrank.index_builder.generation.generation import (
    INDEX_FILE,
    MODEL_DIRECTORY,
    ORDER_FILE,
    Generation,
    StoredTexts,
    check_beside_parts,
    describe_files,
)
from polyrank.index_builder.generation.manifest import (
    MANIFEST_FILE,
    PARTS,
    BuildStats,
    Manifest,
    ModelReference,
    PartEntry,
    part_directory,
)
from polyrank.index_builder.generation.slots import Slots, ranges, slots_of
from polyrank.index_builder.generation.words import count_words, evidence_of, open_words
from polyrank.index_builder.index.choice import IndexSpec, check_factory, choose_index, needs_times
from polyrank.index_builder.index.faiss_index import CandidateIndex
from polyrank.index_builder.index.measuring import EXACT, VECTORS_AND_WORDS, Probe, Recall, measured, time_searches
from polyrank.index_builder.layout import TEMPORARY_PREFIX
from polyrank.index_builder.names import MOST_PARTS
from polyrank.index_builder.pool.rows import Candidate, Rejected
from polyrank.index_builder.redis_client import BUILDING_TIMEOUT_SECONDS
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.leftovers import Copies, Leftover, discard
from polyrank.index_builder.vectors.encoder import Model, TextEncoder, encode_texts
from polyrank.index_builder.vectors.local import DTYPES, LocalEmbeddings
from polyrank.index_builder.vectors.redis import RedisEmbeddings
from polyrank.model.durable import sync_directory
from polyrank.model.errors import InvalidInput
from polyrank.model.lexical.score import LexicalScore
from polyrank.model.registry import ARCHITECTURES
from polyrank.model.representations import each_of
from polyrank.model.telling import telling
from polyrank.model.text.language import count_languages

_BATCH_ROWS = 8192
_SAMPLE = 2000  # texts whose language is looked at
_DEFAULT = BuildOptions()


def build(
    model: Model,
    pool: Iterable[Candidate | Rejected],
    root: Path,
    options: BuildOptions = _DEFAULT,
    *,
    parts: int = 1,
    vectors: VectorSource | None = None,
    progress: OnProgress = no_progress,
) -> BuildResult:
    """Encode a pool and publish it as a new generation.

    Args:
        model: makes the vectors; a copy goes into the generation.
        pool: see `read_pool`.
        root: the store's directory; made if need be.
        options: the index, its tuning, what to copy and what to activate.
        parts: into how many parts the pool is cut, 1..MOST_PARTS.
        vectors: makes the vectors instead of the model, which need not be a `CandidateEncoder` then.
        progress: called with (stage, done, total) before each step. The stages are "read" (total unknown); "words" if
            they count for the model, two steps a row; "resume" if a killed build has left chunks; "encode" and "append"
            in turns, from the first row that is left to encode; "choose" if the index is chosen by measured times;
            "index"; "recall" if it is measured; "manifest"; "redis" if asked for; "rename"; "CURRENT" if activated.
            Those from "resume" to "recall" come for one part after the other; "resume", "encode" and "append" count the
            rows of all parts. An exception that it raises ends the build.

    Raises:
        InvalidInput: the index is unknown, does not fit the model's dimension or needs more candidates; the dtype is
            unknown; the probes are of another model; there are too many parts for the candidates. All of this is raised
            before anything is encoded.
        PoolError, StoreUnavailable, BuildBusy, LeaseLost, DiskFull: see there. Nothing is left but the log of bad rows,
            and the generation itself if it was published and could not be activated.
        StoreBusy: another process holds a lock of the store for too long; the next build continues this one.
        BuildError: the vectors are not finite or not of the model's dimension, or the recall is not reached; likewise.
    """
    check_parts(parts)
    if any(codes.shape[1:] != (model.dim,) or not np.isfinite(codes).all() for _, codes in options.probes):
        raise InvalidInput(f"probes must be finite vectors of {model.dim} components")
    if options.dtype not in DTYPES:
        raise InvalidInput(f"unknown dtype {options.dtype!r}; use one of {', '.join(DTYPES)}")
    options = replace(options, index=index_for(model, options.index))
    store = GenerationStore(root)
    source = vectors or encoded_by(model)

    def fill(directory: Path, log: Path, clock: StageClock) -> Filled:
        # Read before the pool: the generation is given all later updates when it becomes active.
        revision = store.updates.highest() if options.revision is None else options.revision
        rows, rejected = ingest(pool, directory / CANDIDATES_FILE, log, options.max_rejected, clock)
        counts = {ranges(1)[0]: rows} if parts == 1 else _cut(directory, parts)
        for count in counts.values():
            choose_index(options.index, count, model.dim)  # refuses too few rows before they are encoded
        stored, not_reused = _stored(store, model, options.dtype)
        return Filled(
            parts=[PartPlan(slots, source) for slots in counts],
            order_end=rows,
            revision=revision,
            rejected=rejected,
            rejected_log=log if rejected else None,
            stored=stored,
            not_reused=not_reused,
        )

    return make(store, model, options, fill, StageClock(progress))


def _stored(store: GenerationStore, model: Model, dtype: str) -> tuple[StoredTexts | None, str | None]:
    """What finds the vectors of the active generation, if this model would make the same; or why it is not used.

    Every byte of it is checked before.
    """
    active = store.active_or_none()
    if active is None or not ARCHITECTURES[model.architecture].embeds:
        return None, None
    maker = active.model.fingerprint, active.backend, active.precision, active.dtype
    # Of int8 the manifest does not tell the calibration, so nothing is taken there.
    if maker != (model.fingerprint, model.backend, model.rounding, dtype):
        return None, None
    try:
        with telling(f"checking the vectors of generation {active.id}"):
            for part in range(len(active.parts)):
                store.open(active.id, part).close()
            find = store.stored_texts(active)
            find([])  # opens the files, which may be collected once another generation is active
    except GenerationError as error:
        return None, f"all texts are encoded: {error}"
    return find, None


def check_parts(parts: int) -> None:
    """Raise InvalidInput if a pool cannot be cut into so many parts."""
    if not 1 <= parts <= MOST_PARTS:
        raise InvalidInput(f"a pool can be cut into 1 to {MOST_PARTS} parts, not {parts}")


def _cut(directory: Path, parts: int) -> dict[Slots, int]:
    """Put the rows of the candidate table into those of the parts; returns how many each has."""
    table = CandidateTable(directory / CANDIDATES_FILE)
    slots = np.concatenate([slots_of(ids) for ids, _ in table.batches()])
    rows_of = {each: np.flatnonzero((slots >= each.first) & (slots < each.end)) for each in ranges(parts)}
    if not all(len(rows) for rows in rows_of.values()):
        raise InvalidInput(f"{len(table)} candidates are too few for {parts} parts: a part would be empty")
    for part, rows in enumerate(rows_of.values()):
        batches = (table.rows(rows[start : start + _BATCH_ROWS]) for start in range(0, len(rows), _BATCH_ROWS))
        write_part(directory, part, (candidate for batch in batches for candidate in batch), rows)
    (directory / CANDIDATES_FILE).unlink()
    return {slots: len(rows) for slots, rows in rows_of.items()}


def write_part(directory: Path, part: int, candidates: Iterable[Candidate], order: NDArray[np.int64]) -> None:
    """Write the candidate table of one of several parts, whose rows have these places in the pool."""
    path = directory / part_directory(part)
    path.mkdir(parents=True)
    with CandidateWriter(path / CANDIDATES_FILE) as table:
        for candidate in candidates:
            table.add(candidate)
    order.astype("<i8").tofile(path / ORDER_FILE)


def make(store: GenerationStore, model: Model, options: BuildOptions, fill: Fill, clock: StageClock) -> BuildResult:
    """Make a generation of candidate tables that `fill` writes, and publish it; see `build`.

    Raises CompactionOvertaken if the generation that was copied is not active any more; nothing is left of the copy.
    """
    copies = Copies(store.root, options.redis_url)
    with disk_full_named(store.root), store.building(options.redis_url) as lease:
        generation = store.new_id(model.fingerprint)
        with (
            _connected(generation, model, options) as redis,
            _temporary_directory(store, generation, copies) as (directory, leftover),
        ):
            filled = fill(directory, store.rejected_log(generation), clock)
            model.save(directory / MODEL_DIRECTORY)
            several = len(filled.parts) > 1
            parts = {part_directory(at) if several else "": plan for at, plan in enumerate(filled.parts)}
            new = [directory / path for path, plan in parts.items() if plan.earlier is None]
            evidence = evidence_of(directory / MODEL_DIRECTORY)
            total, start, least = sum(map(_count, new)), 0, options.min_recall
            if evidence is not None:
                clock("words", 0, 2 * total)
                count_words(new, filled.statistics, clock.advance)
            if new and several:
                sync_directory(directory / PARTS)
                sync_directory(directory)

            work, entries, built = Encodings(directory, leftover, filled.stored), list[PartEntry](), list[BuiltPart]()
            before = None if (active := store.active_or_none()) is None else active.index
            for path, plan in parts.items():
                part = directory / path
                if plan.earlier is not None:
                    _take_over(plan.earlier, part)
                    own = plan.earlier.manifest
                    entries.append(PartEntry(*plan.slots, own.count, own.index, own.recall))
                    continue
                assert plan.vectors is not None, "a part that is built has a source of its vectors"
                find = StoredTexts(new[: len(built)], model.dim, options.dtype, model.late_rows)
                encode(work, path, model, options.dtype, plan.vectors, find, within(clock, start, total))
                index, recall = _indexed(part, model, evidence, options, plan.chosen, before, clock)
                entries.append(PartEntry(*plan.slots, _count(part), index, recall.described(least)))
                built.append(BuiltPart(plan.slots.name, index, recall, recall.doubt(index, least)))
                start += entries[-1].count
            work.close()

            clock("manifest", 0, 1)
            manifest = _manifest(directory, model, options, filled, parts, entries, work, clock)
            _check_and_copy(directory, manifest, redis, copies, clock)
            clock("rename", 0, 1)
            store.publish(directory, lease)
        if filled.copy_of is not None:
            clock("CURRENT", 0, 1)
            store.make_copy_active(
                filled.copy_of, manifest, replaces=filled.replaces, lease=lease, forget=copies.forget
            )
        elif options.activate:
            clock("CURRENT", 0, 1)
            encode_updates = partial(encode_texts, model) if isinstance(model, TextEncoder) else None
            store.make_active(manifest, encode_updates, lease)
    return BuildResult(
        manifest=manifest,
        parts=built,
        rejected=filled.rejected,
        rejected_log=filled.rejected_log,
        truncated=work.truncated,
        resumed=work.resumed,
        encoded=work.encoded,
        reused=work.reused,
        not_reused=filled.not_reused,
        seconds=clock.elapsed(),
    )


def index_for(model: Model, index: str) -> str:
    """Return the index to choose for a model's vectors, which is `index` unless they say nothing: then it is "exact".

    Raises InvalidInput if the index is unknown or does not fit the model's dimension, or there is nothing to index.
    """
    if ARCHITECTURES[model.architecture].embeds:
        check_factory(index, model.dim)
        return index
    if index not in ("auto", "exact"):
        raise InvalidInput(f"--index {index}: {model.name} has no vectors to index, its words are; leave --index out")
    return "exact"


@contextmanager
def _connected(generation: str, model: Model, options: BuildOptions) -> Iterator[RedisEmbeddings | None]:
    """The generation's copy in Redis, if one is asked for. A Redis that is down fails before anything is encoded."""
    if options.redis_url is None or not options.copies_vectors:
        yield None
        return
    url, late = options.redis_url, model.late_rows
    copy = RedisEmbeddings(url, generation, model.dim, options.dtype, BUILDING_TIMEOUT_SECONDS, late)
    with closing(copy) as redis:
        redis.ping()
        yield redis


@contextmanager
def _temporary_directory(
    store: GenerationStore, generation: str, copies: Copies
) -> Iterator[tuple[Path, Leftover | None]]:
    """The directory to build in, and what a killed build has left; if the block fails, it goes, with copies in Redis.

    If only a lock was not free, the next build takes over the chunks, as after a kill.
    """
    leftover = store.discard_leftovers(copies.forget)
    directory = store.begin(generation)
    try:
        yield directory, leftover
    except StoreBusy:
        raise
    except BaseException:
        if directory.exists():
            discard(directory, copies.forget)
        elif generation not in store.ids():  # the next builder removed it, with what had been copied until then
            with suppress(StoreUnavailable):
                copies.forget(generation)
        raise


def _count(part: Path) -> int:
    return len(CandidateTable(part / CANDIDATES_FILE))


def _indexed(
    part: Path,
    model: Model,
    evidence: LexicalScore | None,
    options: BuildOptions,
    chosen: IndexSpec | None,
    before: IndexSpec | None,
    clock: StageClock,
) -> tuple[IndexSpec, Recall]:
    """Choose the index of a part, unless it is `chosen`; build and save it, unless a scan is the index; measure it.

    `before`: the active generation's. If there are real contexts, and words count (`evidence`), the recall is that of
    both.
    """
    contexts = options.probes
    with closing(LocalEmbeddings(part, model.dim, options.dtype)) as vectors:
        matrix, times = vectors.matrix, None
        if chosen is None and needs_times(options.index, *matrix.shape):
            clock("choose", 0, 1)
            timed = [codes for _, codes in contexts[:: max(1, len(contexts) // TIMED_CONTEXTS)][:TIMED_CONTEXTS]]
            times = time_searches(matrix, timed or contexts_of_candidates(part, model, matrix))
        spec = chosen or choose_index(options.index, len(matrix), model.dim, times, before)
        clock("index", 0, 1)
        if spec.factory is None:
            return spec, EXACT if evidence is None else replace(EXACT, of=VECTORS_AND_WORDS)
        index = CandidateIndex.build(spec, matrix)
        index.save(part / INDEX_FILE)
        clock("recall", 0, 1)
        if evidence is None:
            probes = [Probe(codes) for _, codes in contexts]
        else:
            table = open_words(part, evidence, len(matrix)).table
            probes = [Probe(codes, partial(evidence.additions, context, table)) for context, codes in contexts]
        index, recall = measured(index, matrix, probes, options.min_recall)
        return index.spec, recall


def _manifest(
    directory: Path,
    model: Model,
    options: BuildOptions,
    filled: Filled,
    parts: Mapping[str, PartPlan],
    entries: list[PartEntry],
    work: Encodings,
    clock: StageClock,
) -> Manifest:
    seconds = max(clock.seconds.get("encode", 0.0), 1e-9)
    worst = min(entries, key=lambda entry: float(entry.recall["recall@10"] or 0.0))
    files = {f"{path}/": plan.earlier.manifest.files for path, plan in parts.items() if plan.earlier is not None}
    new = sum(entry.count for plan, entry in zip(parts.values(), entries, strict=True) if plan.earlier is None)
    count = sum(entry.count for entry in entries)
    languages = languages_of(directory / MODEL_DIRECTORY)
    tables = [CandidateTable(directory / path / CANDIDATES_FILE) for path in parts] if languages else []
    step = -(-sum(map(len, tables)) // _SAMPLE)
    texts = [each.text for table in tables for each in table.rows(np.arange(0, len(table), step))]
    manifest = Manifest(
        id=directory.name.removeprefix(TEMPORARY_PREFIX),
        created_at=datetime.now(UTC).isoformat(),
        model=ModelReference(model.name, model.architecture, model.fingerprint, languages),
        backend=model.backend,
        precision=model.precision,
        dim=model.dim,
        late=model.late_rows,
        dtype=options.dtype,
        count=count,
        revision=filled.revision,
        order_end=count if len(entries) == 1 else filled.order_end,
        index=worst.index,
        recall=worst.recall,
        languages=count_languages(texts) if languages else {},
        files=describe_files(directory, files),
        build=BuildStats(
            seconds={stage: round(seconds, 6) for stage, seconds in clock.seconds.items()},
            candidates_per_second=round((new - work.resumed - work.reused) / seconds, 3),
            rejected=filled.rejected,
            truncated=work.truncated,
            attempts=work.attempts,
        ),
        parts=entries,
    )
    (directory / MANIFEST_FILE).write_bytes(manifest.to_json())
    return manifest


def _take_over(earlier: Generation, part: Path) -> None:
    """Give a generation the files of an earlier one's part: as further names of them, where the file system can."""
    for name in earlier.manifest.files:
        target = part / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(earlier.path / name, target)
        except OSError:
            shutil.copyfile(earlier.path / name, target)


def _check_and_copy(
    directory: Path, manifest: Manifest, redis: RedisEmbeddings | None, copies: Copies, clock: StageClock
) -> None:
    """Check that the files fit together by opening the parts, then put their vectors into Redis if asked for."""
    check_beside_parts(directory, manifest, verify=False)
    if redis is not None:
        copies.note(manifest.id)
    start = 0
    for part in range(len(manifest.parts)):
        with closing(Generation.open(directory, part, verify=False)) as generation:
            if redis is not None:
                _copy(generation, redis, within(clock, start, manifest.count))
            start += generation.manifest.count
    if redis is not None:
        redis.commit()


def _copy(part: Generation, redis: RedisEmbeddings, clock: OnProgress) -> None:
    start = 0
    for ids, _ in part.candidates.batches():
        clock("redis", start, None)
        vectors = part.embeddings.representations(np.arange(start, start + len(ids)))
        redis.put_many(ids, vectors.first)
        if redis.rows is not None:
            redis.rows.put_many(ids, each_of(*vectors.blocks()[1]))
        start += len(ids)
