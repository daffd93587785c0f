"""Vectors that are there already, for builds that encode nothing."""

from collections.abc import Callable, Iterator

import numpy as np

from polyrank.index_builder.building.encoding import ChunkTexts, EncodedChunk, VectorSource
from polyrank.model.representations import Representations


def taken_from(rows: Callable[[int, int], Representations]) -> VectorSource:
    """Return a source for `build`; `rows(first, end)` gives the representations of these rows, without `end`."""

    def source(chunks: Iterator[ChunkTexts], _on_done: Callable[[int], None]) -> Iterator[EncodedChunk]:
        for chunk in chunks:
            made = rows(chunk.start, chunk.rows[-1] + 1)
            yield EncodedChunk(chunk, made.take(np.array(chunk.rows) - chunk.start), truncated=0)

    return source
