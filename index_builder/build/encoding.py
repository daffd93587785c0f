"""The second stage of a build: make the vectors of the candidate table's rows and write them to the matrix.

The matrix grows shard by shard, and beside it the block of the model's second stage, if it has one. A batch of the
candidate table is a shard. A shard is put on the disk and then noted in the build's journal. If the build is killed,
the next one compares the journal with its own pool and model and copies the shards that agree.
"""

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from polyrank.index_builder.build.progress import StageClock
from polyrank.index_builder.errors import BuildError
from polyrank.index_builder.store.candidates import CandidateTable
from polyrank.index_builder.store.generation import CANDIDATES_FILE
from polyrank.index_builder.store.leftovers import Journal, Leftover, Shard, content_digest, journal_of, source_digest
from polyrank.index_builder.vectors.codec import rounded_all
from polyrank.index_builder.vectors.encoder import Model, TextEncoder
from polyrank.index_builder.vectors.late import fits
from polyrank.index_builder.vectors.local import EmbeddingsWriter, LeftBlocks
from polyrank.model.durable import sync_directory
from polyrank.model.representations import Representations

# Called with a shard's first row, its ids, its texts, and a function to call after each batch with the number of its
# rows. Returns what was made of them, of any floating dtype, and how many texts were cut.
VectorSource = Callable[[int, Sequence[str], Sequence[str], Callable[[int], None]], tuple[Representations, int]]


def encoded_by(model: Model | TextEncoder) -> VectorSource:
    """A source that has the model encode the texts. Raises TypeError if the model encodes no texts."""
    if not isinstance(model, TextEncoder):
        raise TypeError("a model that encodes no texts needs another source of vectors")
    return partial(_encode_shard, model)


def _encode_shard(
    encoder: TextEncoder, _start: int, _ids: Sequence[str], texts: Sequence[str], on_done: Callable[[int], None]
) -> tuple[Representations, int]:
    tokens, truncated = encoder.tokenize_candidates(texts)
    return encoder.represent_candidates(tokens, on_done), truncated


@dataclass(frozen=True, slots=True)
class Encoded:
    """How the encoding went; for the fields see `BuildResult` and `BuildStats`."""

    truncated: int
    resumed: int
    attempts: int


def encode(
    directory: Path, model: Model, dtype: str, source: VectorSource, leftover: Leftover | None, clock: StageClock
) -> Encoded:
    """Write the matrix and the index of the ids for the candidate table in the build's directory.

    The source makes the vectors that no killed build has left. What one has left is removed once its shards are copied.

    Raises:
        BuildError: the source gave vectors that are not finite or not of the model's dimension.
    """
    table = CandidateTable(directory / CANDIDATES_FILE)
    with closing(EmbeddingsWriter(directory, dtype, model.late_rows)) as matrix:
        attempts, shards, journal = 1, list[Shard](), None
        if leftover is not None:
            attempts, shards = _copy_shards(leftover, table, matrix, model, dtype, clock)
            if shards:
                journal = _begin_journal(directory, attempts, shards)
            leftover.discard()  # only now: until the journal was written the old one knew more
        done = resumed = sum(shard.rows for shard in shards)
        for ids, texts in islice(table.batches(), len(shards), None):
            clock("encode", done, len(table))
            made, truncated = source(done, ids, texts, clock.advance)
            clock("append", done, len(table))
            stored = _stored(made, len(ids), model, dtype)
            matrix.put_many(ids, stored)
            matrix.sync()
            shards.append(_described(model, dtype, ids, texts, stored, truncated))
            if journal is None:
                journal = _begin_journal(directory, attempts, shards)
            else:
                journal.append(shards[-1])
            done += len(ids)
        matrix.commit()
    return Encoded(sum(shard.truncated for shard in shards), resumed, attempts)


def _copy_shards(
    leftover: Leftover, table: CandidateTable, matrix: EmbeddingsWriter, model: Model, dtype: str, clock: StageClock
) -> tuple[int, list[Shard]]:
    """Copy a killed build's shards into the matrix, up to the first that does not fit the model, dtype or table.

    Returns how many builds, this one included, have worked on the shards, and the shards.
    """
    attempts, found = leftover.journal()
    shards: list[Shard] = []
    done, total = 0, sum(shard.rows for shard in found)
    with suppress(FileNotFoundError), closing(LeftBlocks(leftover.matrix, model.dim, model.late_rows, dtype)) as left:
        for shard, (ids, texts) in zip(found, table.batches(), strict=False):
            clock("resume", done, total)
            made = left.read(len(ids))
            if made is None or shard != _described(model, dtype, ids, texts, made, shard.truncated):
                break
            matrix.put_many(ids, made)
            shards.append(shard)
            done += shard.rows
    if not shards:
        return 1, []
    matrix.sync()
    return attempts + 1, shards


def _begin_journal(directory: Path, attempts: int, shards: Sequence[Shard]) -> Journal:
    """Start the journal once the first shards are on the disk: without any, there is nothing to take over."""
    sync_directory(directory)
    return Journal(journal_of(directory), attempts, shards)


def _described(
    model: Model, dtype: str, ids: Sequence[str], texts: Sequence[str], made: Representations, truncated: int
) -> Shard:
    source = source_digest(model.fingerprint, (model.backend, model.precision), dtype, ids, texts)
    return Shard(len(ids), truncated, source, content_digest(made, truncated))


def _stored(made: Representations, count: int, model: Model, dtype: str) -> Representations:
    """What was made of so many candidates as the files hold it: in their dtype, one row after the other."""
    if made.first.shape != (count, model.dim):
        raise BuildError(f"the model gave vectors of shape {made.first.shape}, not {(count, model.dim)}")
    if not fits(made, model.late_rows):
        raise BuildError("the model gave other rows for its second stage than it says it has")
    first, late, counts = rounded_all(made, dtype)
    if late is None or counts is None:
        return Representations(np.ascontiguousarray(first))
    return Representations(np.ascontiguousarray(first), np.ascontiguousarray(late), counts.astype(np.int64))
