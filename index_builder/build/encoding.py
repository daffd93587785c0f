"""Where a build's vectors come from: as a rule the model, else whoever has them already."""

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from polyrank.index_builder.vectors.encoder import TextEncoder

# (first row, ids, texts) of a shard, and what to tell the number of rows done, to the shard's vectors (N, D), of any
# floating dtype, and how many texts were cut.
VectorSource = Callable[[int, Sequence[str], Sequence[str], Callable[[int], None]], tuple[NDArray[Any], int]]


def encoded_by(encoder: TextEncoder) -> VectorSource:
    """The model as a source; it tells after each of its batches how many rows are done."""

    def vectors(
        start: int, _ids: Sequence[str], texts: Sequence[str], on_encoded: Callable[[int], None]
    ) -> tuple[NDArray[Any], int]:
        done = start

        def on_done(more: int) -> None:
            nonlocal done
            done += more
            on_encoded(done)

        tokens, truncated = encoder.tokenize_candidates(texts)
        return encoder.encode_candidates(tokens, on_done), truncated

    return vectors
