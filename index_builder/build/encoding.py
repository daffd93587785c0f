"""The second stage of a build: make the vectors of the candidate table's rows and write them to the matrix.

The matrix grows shard by shard; a batch of the candidate table is a shard. A shard is put on the disk and then noted in
the build's journal. If the build is killed, the next one compares the journal with its own pool and model and copies
the shards that agree.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.build.progress import StageClock
from polyrank.index_builder.errors import BuildError
from polyrank.index_builder.store.candidates import CandidateTable
from polyrank.index_builder.store.generation import CANDIDATES_FILE
from polyrank.index_builder.store.leftovers import Journal, Leftover, Shard, content_digest, journal_of, source_digest
from polyrank.index_builder.vectors.codec import DTYPES, rounded
from polyrank.index_builder.vectors.encoder import Model, TextEncoder
from polyrank.index_builder.vectors.local import EmbeddingsWriter
from polyrank.model.durable import sync_directory

# Called with a shard's first row, its ids, its texts, and a function to call after each batch with the number of its
# rows. Returns the vectors (N, D), of any floating dtype, and how many texts were cut.
VectorSource = Callable[[int, Sequence[str], Sequence[str], Callable[[int], None]], tuple[NDArray[Any], int]]


def encoded_by(model: Model | TextEncoder) -> VectorSource:
    """A source that has the model encode the texts. Raises TypeError if the model encodes no texts."""
    if not isinstance(model, TextEncoder):
        raise TypeError("a model that encodes no texts needs another source of vectors")
    return partial(_encode_shard, model)


def _encode_shard(
    encoder: TextEncoder, _start: int, _ids: Sequence[str], texts: Sequence[str], on_done: Callable[[int], None]
) -> tuple[NDArray[Any], int]:
    tokens, truncated = encoder.tokenize_candidates(texts)
    return encoder.encode_candidates(tokens, on_done), truncated


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
    with closing(EmbeddingsWriter(directory, dtype)) as matrix:
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
            vectors = _stored(made, (len(ids), model.dim), dtype)
            matrix.put_many(ids, vectors)
            matrix.sync()
            shards.append(_described(model, dtype, ids, texts, vectors.data, truncated))
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
    with leftover.matrix.open("rb") as file:
        for shard, (ids, texts) in zip(found, table.batches(), strict=False):
            clock("resume", done, total)
            content = file.read(len(ids) * model.dim * DTYPES[dtype].itemsize)
            if shard != _described(model, dtype, ids, texts, content, shard.truncated):
                break
            matrix.put_many(ids, np.frombuffer(content, DTYPES[dtype]).reshape(-1, model.dim))
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
    model: Model, dtype: str, ids: Sequence[str], texts: Sequence[str], vectors: bytes | memoryview, truncated: int
) -> Shard:
    source = source_digest(model.fingerprint, (model.backend, model.precision), dtype, ids, texts)
    return Shard(len(ids), truncated, source, content_digest(vectors, truncated))


def _stored(vectors: NDArray[Any], shape: tuple[int, int], dtype: str) -> NDArray[Any]:
    """The vectors as the matrix holds them: in its dtype, one row after the other."""
    if vectors.shape != shape:
        raise BuildError(f"the model gave vectors of shape {vectors.shape}, not {shape}")
    return np.ascontiguousarray(rounded(vectors, dtype))
