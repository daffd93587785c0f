"""Build a pool into parts, and publish them as a set.

    pool -> one candidate table -> for each part: its rows -> build -> manifest.json -> CURRENT

The whole pool is checked and written to one candidate table before anything is encoded, as in any build. Where words
count, they are counted in the whole pool, so that a part's scores are those that it would have among all candidates.
Then each part is built by `build` into its own store, one after the other.

STORE/building/ holds the table and `finished.jsonl`, a line for each part that is done. A build that fails or is
cancelled removes both, and the generations that it made. A build that is killed leaves them: the next one takes over
the parts that it would make of the same rows, and the finished chunks of the part in which the other was killed.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from polyrank.index_builder.building.encoding import VectorSource
from polyrank.index_builder.building.pipeline import BuildOptions, BuildResult, build, check_options, index_for
from polyrank.index_builder.building.stages import (
    Ingested,
    OnProgress,
    StageClock,
    counted_anew,
    ingest,
    no_progress,
    statistics_of,
    texts_of,
)
from polyrank.index_builder.errors import GenerationError, StoreBusy, disk_full_named
from polyrank.index_builder.generation.candidates import CandidateTable
from polyrank.index_builder.generation.generation import CANDIDATES_FILE, MODEL_DIRECTORY
from polyrank.index_builder.generation.stored_texts import StoredTexts
from polyrank.index_builder.generation.words import evidence_of
from polyrank.index_builder.names import MOST_PARTS
from polyrank.index_builder.pool.rows import Candidate, Rejected
from polyrank.index_builder.scale.sets import BUILDING, PartSet, PartsStore, PoolPart, part_of, set_of
from polyrank.index_builder.scale.slots import Slots, ranges, slots_of
from polyrank.index_builder.vectors.encoder import Model, TextEncoder, encode_texts
from polyrank.model.durable import make_directory
from polyrank.model.errors import InvalidInput
from polyrank.model.inputs import read_input
from polyrank.model.lexical.words import Statistics

_BATCH_ROWS = 8192
_FINISHED = "finished.jsonl"
# Stages of which each row has its turn once in a build, whatever part it is in.
_BY_ROW = ("resume", "encode", "append")
# A part is not seen by anybody before its set is.
_HIDDEN = ("read", "rename")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetResult:
    """What was built.

    Attributes:
        built: by the names of the parts; those that a killed build had finished are missing.
        rejected, rejected_log: see `BuildResult`.
        resumed: candidates whose vectors a killed build had finished.
        counted: see `BuildResult`.
    """

    made: PartSet
    built: dict[str, BuildResult]
    rejected: int
    rejected_log: Path | None
    resumed: int
    seconds: float
    counted: int | None = None

    @property
    def generation(self) -> str:
        """The id of the generation that was made."""
        return self.made.id

    @property
    def count(self) -> int:
        """Its candidates."""
        return self.made.count

    @property
    def truncated(self) -> int:
        """Texts cut to the model's length, of the parts built."""
        return sum(each.truncated for each in self.built.values())

    @property
    def notes(self) -> list[str]:
        """What the user should know about the indexes and the words."""
        notes = [f"part {name}: {note}" for name, each in self.built.items() for note in each.notes]
        return notes if self.counted is None else [*notes, counted_anew(self.counted)]


# What a build or a compaction of either kind of store has done.
Built = BuildResult | SetResult


def build_parts(
    model: Model,
    pool: Iterable[Candidate | Rejected],
    root: Path,
    shards: int,
    options: BuildOptions,
    *,
    vectors: VectorSource | None = None,
    progress: OnProgress = no_progress,
) -> SetResult:
    """Encode a pool into so many parts and publish them as a new set.

    Args:
        model: see `build`.
        pool: see `build`.
        vectors: see `build`.
        root: the store's directory; made if need be.
        shards: how many parts, 1..MOST_PARTS.
        options: of each part; `activate` is of the set.
        progress: see `build`; of the stages of parts, "encode" and "append" count the rows of all parts.

    Raises:
        StoreWhole: the directory is a store that is not cut into parts.
        InvalidInput: there are too many parts for the candidates, or the vectors are to be copied into Redis; and see
            `build`.
        PoolError, BuildBusy, DiskFull, StoreBusy, BuildError: see `build`.
    """
    if not 1 <= shards <= MOST_PARTS:
        raise InvalidInput(f"a pool can be cut into 1 to {MOST_PARTS} parts, not {shards}")
    if options.redis_url is not None:
        raise InvalidInput("the vectors of a store that is cut into parts are not copied into Redis")
    options = replace(options, index=index_for(model, options.index))
    check_options(model, options)
    store, clock = PartsStore(root), StageClock(progress)
    with disk_full_named(root), store.building():
        set_id = store.new_id(model.fingerprint)
        # Read before the pool: the set is given all later updates when it becomes active.
        revision = store.updates.highest() if options.revision is None else options.revision
        with _Workplace(store) as place:
            rows = ingest(pool, place.table_file, store.rejected_log(set_id), options.max_rejected, clock)
            table = CandidateTable(place.table_file)
            chosen = _rows_of_parts(table, shards)
            model.save(place.model)
            statistics = None
            if evidence_of(place.model) is not None:
                clock("words", 0, len(table))
                statistics = statistics_of(texts_of(table), clock)
            maker = _Maker(store, place, model, options, statistics, vectors, clock)
            parts, built = maker.make(table, chosen)
            clock("rename", 0, 1)
            made = set_of(set_id, [store.part_manifest(part) for part in parts], parts, revision)
            store.publish(made)
        if options.activate:
            clock("CURRENT", 0, 1)
            store.make_active(made, partial(encode_texts, model) if isinstance(model, TextEncoder) else None)
        store.tidy()
    return _result(made, built, rows, maker.resumed, clock)


def _result(made: PartSet, built: dict[str, BuildResult], rows: Ingested, resumed: int, clock: StageClock) -> SetResult:
    return SetResult(
        made=made,
        built=built,
        rejected=rows.rejected,
        rejected_log=rows.log,
        resumed=resumed,
        seconds=clock.elapsed(),
    )


def _rows_of_parts(table: CandidateTable, shards: int) -> dict[Slots, NDArray[np.int64]]:
    """Return the rows of each part, ascending."""
    slots = np.concatenate([slots_of(ids) for ids, _ in table.batches()])
    found = {each: np.flatnonzero((slots >= each.first) & (slots < each.end)) for each in ranges(shards)}
    if not all(len(rows) for rows in found.values()):
        raise InvalidInput(f"{len(table)} candidates are too few for {shards} parts: a part would be empty")
    return found


class _Workplace:
    """STORE/building, for the block: removed at its end, and left where the process is killed."""

    def __init__(self, store: PartsStore) -> None:
        self._store, self.directory = store, store.root / BUILDING
        self.table_file, self.model = self.directory / CANDIDATES_FILE, self.directory / MODEL_DIRECTORY
        self._finished = self.directory / _FINISHED

    def __enter__(self) -> "_Workplace":
        make_directory(self.directory)
        shutil.rmtree(self.model, ignore_errors=True)
        self.known = self._read()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, StoreBusy):  # the next build takes over what is there
            return
        shutil.rmtree(self.directory)
        if kind is not None:
            self._store.tidy()

    def _read(self) -> dict[str, str]:
        """The generations of the parts that were finished, by what they were made of, up to a line cut short."""
        found: dict[str, str] = {}
        with suppress(OSError, ValueError, KeyError, TypeError):
            for line in read_input(self._finished).splitlines():
                read = orjson.loads(line)
                found[str(read["source"])] = str(read["generation"])
        return found

    def finish(self, source: str, generation: str) -> None:
        """Note that a part is done; the generation is on the disk."""
        with self._finished.open("ab") as file:
            file.write(orjson.dumps({"source": source, "generation": generation}, option=orjson.OPT_APPEND_NEWLINE))


class _Maker:
    """Builds the parts, one after the other.

    Attributes:
        resumed: candidates whose vectors a killed build had finished.
    """

    def __init__(
        self,
        store: PartsStore,
        place: _Workplace,
        model: Model,
        options: BuildOptions,
        statistics: Statistics | None,
        vectors: VectorSource | None,
        clock: StageClock,
    ) -> None:
        self._store, self._place, self._model = store, place, model
        self._options = replace(options, activate=False, revision=0)
        self._statistics, self._vectors, self._clock = statistics, vectors, clock
        self.resumed = 0

    def make(
        self, table: CandidateTable, rows_of: dict[Slots, NDArray[np.int64]]
    ) -> tuple[list[PoolPart], dict[str, BuildResult]]:
        """Build or take over every part."""
        parts: list[PoolPart] = []
        built: dict[str, BuildResult] = {}
        done, paths = 0, list[Path]()
        for slots, rows in rows_of.items():
            source = self._source(slots, table, rows)
            part = self._finished(slots, source)
            if part is None:
                result = build(
                    self._model,
                    _candidates(table, rows),
                    self._store.part(slots).root,
                    self._options,
                    vectors=self._vectors,
                    find=StoredTexts(paths[:], self._model.dim, self._options.dtype, self._model.late_rows),
                    statistics=self._statistics,
                    order=rows,
                    progress=_of_part(self._clock, done, len(table)),
                )
                part = part_of(slots, self._store.part(slots), result.generation)
                self._place.finish(source, result.generation)
                built[slots.name] = result
                self.resumed += result.resumed
            else:
                self.resumed += part.count
            parts.append(part)
            paths.append(self._store.part(slots).path(part.generation))
            done += len(rows)
        return parts, built

    def _finished(self, slots: Slots, source: str) -> PoolPart | None:
        """The part, if a killed build has made it of the same, and it is whole."""
        generation = self._place.known.get(source)
        if generation is None:
            return None
        store = self._store.part(slots)
        try:
            store.verify(generation)
            return part_of(slots, store, generation)
        except GenerationError:
            return None

    def _source(self, slots: Slots, table: CandidateTable, rows: NDArray[np.int64]) -> str:
        """Digest what a part's generation depends on."""
        model, options = self._model, self._options
        runner = model.fingerprint, model.backend, model.precision
        digest = sha256(orjson.dumps([*slots, runner, options.of_files(), rows.size]))
        for _, codes in options.probes:
            digest.update(np.ascontiguousarray(codes).data)
        if self._statistics is not None:
            for array in self._statistics.arrays().values():
                digest.update(np.ascontiguousarray(array).data)
        digest.update(rows.astype("<i8").data)
        for candidate in _candidates(table, rows):
            digest.update(orjson.dumps(asdict(candidate)))
        return digest.hexdigest()


def _candidates(table: CandidateTable, rows: NDArray[np.int64]) -> Iterator[Candidate]:
    for start in range(0, len(rows), _BATCH_ROWS):
        yield from table.rows(rows[start : start + _BATCH_ROWS])


def _of_part(progress: Callable[[str, int, int | None], Any], before: int, total: int) -> OnProgress:
    """Pass a part's progress on: rows count among those of all parts."""

    def call(stage: str, done: int, of: int | None) -> None:
        if stage in _BY_ROW:
            progress(stage, before + done, total)
        elif stage not in _HIDDEN:
            progress(stage, done, of)

    return call
