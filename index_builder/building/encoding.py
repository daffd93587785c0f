"""The second stage of a build: make the vectors of the candidate table's rows and write them to the matrix.

The matrix of each part grows chunk by chunk, and beside it the block of the model's second stage, if it has one. A
batch of the candidate table is a chunk. A chunk is put on the disk and then noted in the build's journal. If the build
is killed, the next one compares the journal with its own pool and model and copies the chunks that agree.

Each text is encoded once: a row with the text of an earlier one takes what was made of that, and a text that the active
generation has, of the same model and dtype, what is stored there.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.building.stages import OnProgress
from polyrank.index_builder.errors import BuildError
from polyrank.index_builder.generation.candidates import (
    CANDIDATES_FILE,
    CandidateTable,
    FindTexts,
    KnownTexts,
    TextIndex,
)
from polyrank.index_builder.store.leftovers import Chunk, Journal, Leftover, content_digest, journal_of, source_digest
from polyrank.index_builder.vectors.encoder import Model, TextEncoder
from polyrank.index_builder.vectors.local import EmbeddingsWriter, LeftBlocks, rounded_all, written
from polyrank.model.durable import sync_directory
from polyrank.model.representations import Representations


class ChunkTexts(NamedTuple):
    """What a chunk is made from: the rows of the candidate table from row `start` on, or some of them.

    `rows`: of the ids and texts, (N,).
    """

    start: int
    ids: Sequence[str]
    texts: Sequence[str]
    rows: Sequence[int]

    def only(self, positions: Sequence[int]) -> "ChunkTexts":
        ids, texts = [self.ids[at] for at in positions], [self.texts[at] for at in positions]
        return ChunkTexts(self.start, ids, texts, [self.rows[at] for at in positions])


class EncodedChunk(NamedTuple):
    """What was made of a chunk, of any floating dtype, and how many of its texts were cut."""

    chunk: ChunkTexts
    representations: Representations
    truncated: int


# Called with the chunks to make and a function to call with the number of rows that were made. Yields every chunk in
# its order; it may read ahead.
VectorSource = Callable[[Iterator[ChunkTexts], Callable[[int], None]], Iterator[EncodedChunk]]


def encoded_by(model: Model | TextEncoder) -> VectorSource:
    """A source that has the model encode the texts. Raises TypeError if the model encodes no texts."""
    if not isinstance(model, TextEncoder):
        raise TypeError("a model that encodes no texts needs another source of vectors")

    def encode(chunks: Iterator[ChunkTexts], on_done: Callable[[int], None]) -> Iterator[EncodedChunk]:
        for chunk in chunks:
            tokens, truncated = model.tokenize_candidates(chunk.texts)
            yield EncodedChunk(chunk, model.represent_candidates(tokens, on_done), truncated)

    return encode


class Encodings:
    """What a build has encoded, and what a killed one has left; the parts share it.

    Attributes:
        attempts: how many builds, this one included, have worked on the chunks.
        truncated: texts cut to the model's length.
        encoded: texts that the source was asked for.
        reused: rows with a text of `stored`, which finds what an earlier generation has; None: nothing is reused.
    """

    def __init__(self, directory: Path, leftover: Leftover | None, stored: FindTexts | None = None) -> None:
        self.directory, self._leftover, self.stored = directory, leftover, stored
        self._before, self._left = (0, list[Chunk]()) if leftover is None else leftover.journal()
        self._journal: Journal | None = None
        self.attempts, self.truncated, self.resumed = 1, 0, 0
        self.encoded = self.reused = 0

    def left_of(self, part: str) -> tuple[Path, list[Chunk]] | None:
        """The matrix that a killed build has left of a part, and the chunks in it; None: it has left none."""
        chunks = [chunk for chunk in self._left if chunk.part == part]
        return (self._leftover.matrix(part), chunks) if self._leftover is not None and chunks else None

    def take_over(self, part: str, chunks: Sequence[Chunk], *, is_whole: bool) -> None:
        """Note what was copied of a part; where that is not the whole part and all that was left of it, no more is.

        Once nothing more is to be copied, what was left is removed: else it would hide this build should it be killed.
        """
        if chunks:
            self.attempts = self._before + 1
            self.resumed += sum(chunk.rows for chunk in chunks)
            self.note(chunks)
        later = [chunk for chunk in self._left if chunk.part != part]
        # A text that is encoded anew in this part would have another vector in a later one.
        self._left = later if is_whole and len(chunks) == len(self._left) - len(later) else []
        if self._leftover is not None and not self._left:  # only now: before the old one knew more
            self._leftover.discard()
            self._leftover = None

    def note(self, chunks: Sequence[Chunk]) -> None:
        """Put chunks that are on the disk into the journal, which is begun with the first: else nothing can be left."""
        self.truncated += sum(chunk.truncated for chunk in chunks)
        if self._journal is None:
            self._journal = Journal(journal_of(self.directory), self.attempts, chunks)
        else:
            self._journal.append(*chunks)

    def close(self) -> None:
        if self._leftover is not None:
            self._leftover.discard()


def encode(
    work: Encodings,
    part: str,
    model: Model,
    dtype: str,
    source: VectorSource,
    find: FindTexts,
    progress: OnProgress,
) -> None:
    """Write the matrix and the indexes of ids and texts for the candidate table in a part's directory.

    The source makes the vectors that no killed build has left, and neither `find` knows, which looks into the parts
    before, nor an earlier generation. Raises BuildError if the source gave vectors that are not finite or not of the
    model's dimension, or not all of them.
    """
    directory = work.directory / part
    table = CandidateTable(directory / CANDIDATES_FILE)
    TextIndex.write(directory, table)
    with closing(EmbeddingsWriter(directory, model.dim, dtype, model.late_rows)) as matrix:
        assembly = _Assembly(work, part, model, dtype, matrix)
        assembly.take_over(table, progress)
        if assembly.rows < len(table):
            _fill(assembly, table, source, find, progress)
        matrix.commit()


def _fill(
    assembly: "_Assembly", table: CandidateTable, source: VectorSource, find: FindTexts, clock: OnProgress
) -> None:
    """Write what the source makes of all rows that the assembly lacks."""
    rows_made, total = assembly.rows, len(table)  # a source that reads ahead has made more than was written
    texts, plans = TextIndex(assembly.directory, table), deque[_Plan]()

    def open_chunks() -> Iterator[ChunkTexts]:
        start = 0
        for place, (ids, own) in enumerate(table.batches()):
            chunk = ChunkTexts(start, ids, own, range(start, start + len(ids)))
            start += len(ids)
            if place < assembly.chunks:
                continue
            plan = _plan(chunk, texts, find, assembly.stored)
            if plan.new or plans:  # behind a chunk that is not written yet, one text is asked for in vain
                plans.append(plan)
                yield chunk.only(plan.new or [0])
            else:
                write(None, plan)

    def write(encoded: EncodedChunk | None, plan: _Plan) -> None:
        nonlocal rows_made
        clock("append", assembly.rows, total)
        assembly.append(encoded, plan)
        rows_made = max(rows_made, assembly.rows)
        if assembly.rows < total:
            clock("encode", rows_made, total)

    def on_done(rows: int) -> None:
        nonlocal rows_made
        rows_made += rows
        clock("encode", rows_made, total)

    clock("encode", rows_made, total)
    for encoded in source(open_chunks(), on_done):
        write(encoded, plans.popleft())
    if assembly.rows != total:
        raise BuildError(f"vectors of {assembly.rows} candidates were made, not of all {total}")


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Where the vectors of a chunk come from."""

    chunk: ChunkTexts
    earlier: NDArray[np.int64]  # positions of texts that a row before the chunk has, and `rows`, the first of these
    rows: NDArray[np.int64]
    in_parts: KnownTexts  # texts that a part before has, and `in_store`, those of an earlier generation
    in_store: KnownTexts
    new: list[int]  # positions of the texts to encode, each once, in the order of the rows
    of_new: dict[int, int]  # for each position that is none of these, which of the new texts it has

    def whole(self, new: Representations, earlier: Representations) -> Representations:
        """Put together what was made of the new texts, of the earlier rows and of the known texts."""
        places, start = np.empty(len(self.chunk.ids), np.int64), len(self.new)
        places[list(self.of_new)] = list(self.of_new.values())
        for positions in (self.earlier, self.in_parts.positions, self.in_store.positions):
            places[positions] = start + np.arange(len(positions))
            start += len(positions)
        parts = (new, earlier, self.in_parts.representations, self.in_store.representations)
        return Representations.join([part for part in parts if len(part.first)]).take(places)


def _plan(chunk: ChunkTexts, texts: TextIndex, find: FindTexts, stored: FindTexts) -> _Plan:
    first = texts.first_rows(chunk.texts)
    is_earlier = (first >= 0) & (first < chunk.start)
    in_parts, is_open = find(chunk.texts), ~is_earlier
    is_open[in_parts.positions] = False
    is_earlier[in_parts.positions] = False
    open_places = np.flatnonzero(is_open)
    places, representations = stored([chunk.texts[at] for at in open_places.tolist()])
    in_store = KnownTexts(open_places[places], representations)
    is_open[in_store.positions] = False
    first_at: dict[str, int] = {}
    for at in (to_encode := np.flatnonzero(is_open).tolist()):
        first_at.setdefault(chunk.texts[at], at)
    new, number = [*first_at.values()], {text: place for place, text in enumerate(first_at)}
    of_new = {at: number[chunk.texts[at]] for at in to_encode}
    return _Plan(chunk, np.flatnonzero(is_earlier), first[is_earlier], in_parts, in_store, new, of_new)


class _Assembly:
    """The matrix of a part, of which it is the only writer, whoever makes the vectors.

    `chunks`: how many are on the disk and in the journal.
    """

    def __init__(self, work: Encodings, part: str, model: Model, dtype: str, matrix: EmbeddingsWriter) -> None:
        self._work, self._part, self._model, self._dtype, self._matrix = work, part, model, dtype, matrix
        self.directory = work.directory / part
        self.chunks = self.rows = 0

    def _written(self, rows: NDArray[np.int64]) -> Representations:
        dim, late = self._model.dim, self._model.late_rows
        if not len(rows):
            return Representations.none(dim, late)
        return written(self.directory, rows, self.rows, dim, self._dtype, late)

    def stored(self, texts: Sequence[str]) -> KnownTexts:
        if self._work.stored is not None:
            return self._work.stored(texts)
        return KnownTexts(np.empty(0, np.int64), Representations.none(self._model.dim, self._model.late_rows))

    def append(self, encoded: EncodedChunk | None, plan: _Plan) -> None:
        """Write the next chunk, and note it when it is on the disk; None: nothing was encoded for it."""
        chunk = plan.chunk
        truncated = self._count_cut([chunk.texts[at] for at in plan.in_store.positions.tolist()])
        if encoded is not None and encoded.chunk.start != self.rows:
            raise BuildError(f"the chunk from row {encoded.chunk.start} came where that from row {self.rows} was due")
        new = Representations.none(self._model.dim, self._model.late_rows)
        if encoded is not None:
            self._work.encoded += len(encoded.chunk.texts)
            if plan.new:
                new = _stored(encoded.representations, len(plan.new), self._model, self._dtype)
                truncated += encoded.truncated
        self._work.reused += len(plan.in_store.positions)
        vectors = plan.whole(new, self._written(plan.rows))
        self._matrix.put_many(chunk.ids, vectors)
        self._matrix.sync()
        entry = self._chunk_of(chunk.ids, chunk.texts, vectors, truncated)
        if not self.chunks:
            sync_directory(self.directory)
        self._work.note([entry])
        self.chunks, self.rows = self.chunks + 1, self.rows + entry.rows

    def _count_cut(self, texts: Sequence[str]) -> int:
        """Count the texts that the model cuts, each once, as where they are encoded."""
        if not texts or not isinstance(self._model, TextEncoder):
            return 0
        return self._model.tokenize_candidates([*dict.fromkeys(texts)])[1]

    def take_over(self, table: CandidateTable, clock: OnProgress) -> None:
        """Copy a killed build's chunks, up to the first that does not fit the model, dtype or table."""
        chunks = list[Chunk]()
        if (leftover := self._work.left_of(self._part)) is not None:
            chunks = self._copied(*leftover, table, clock)
            self._matrix.sync()
            sync_directory(self.directory)
        self.chunks, self.rows = len(chunks), sum(chunk.rows for chunk in chunks)
        self._work.take_over(self._part, chunks, is_whole=self.rows == len(table))

    def _copied(self, matrix: Path, chunks: Sequence[Chunk], table: CandidateTable, clock: OnProgress) -> list[Chunk]:
        copied, rows, total = list[Chunk](), 0, sum(chunk.rows for chunk in chunks)
        with (
            suppress(FileNotFoundError),
            closing(LeftBlocks(matrix, self._model.dim, self._model.late_rows, self._dtype)) as blocks,
        ):
            for chunk, (ids, texts) in zip(chunks, table.batches(), strict=False):
                clock("resume", rows, total)
                vectors = blocks.read(len(ids))
                if vectors is None or chunk != self._chunk_of(ids, texts, vectors, chunk.truncated):
                    break
                self._matrix.put_many(ids, vectors)
                copied.append(chunk)
                rows += chunk.rows
        return copied

    def _chunk_of(self, ids: Sequence[str], texts: Sequence[str], vectors: Representations, truncated: int) -> Chunk:
        model = self._model
        source = source_digest(model.fingerprint, (model.backend, model.rounding), self._dtype, ids, texts)
        return Chunk(self._part, len(ids), truncated, source, content_digest(vectors, truncated))


def _stored(vectors: Representations, count: int, model: Model, dtype: str) -> Representations:
    """What was made of so many candidates as the files hold it: in their dtype, one row after the other."""
    if vectors.first.shape != (count, model.dim):
        raise BuildError(f"the model gave vectors of shape {vectors.first.shape}, not {(count, model.dim)}")
    if not vectors.fits(model.late_rows):
        raise BuildError("the model gave other rows for its second stage than it says it has")
    first, late, counts = rounded_all(vectors, dtype)
    if late is None or counts is None:
        return Representations(np.ascontiguousarray(first))
    return Representations(np.ascontiguousarray(first), np.ascontiguousarray(late), counts.astype(np.int64))
