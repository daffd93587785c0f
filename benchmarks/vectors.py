"""Vectors that are there already, for builds that encode nothing."""

from collections.abc import Callable, Iterator

from polyrank.index_builder.build.encoding import EncodedShard, ShardTexts, VectorSource
from polyrank.model.representations import Representations


def taken_from(rows: Callable[[int, int], Representations]) -> VectorSource:
    """Return a source for `build`; `rows(first, end)` gives the representations of these rows, without `end`."""

    def source(shards: Iterator[ShardTexts], _on_done: Callable[[int], None]) -> Iterator[EncodedShard]:
        for shard in shards:
            yield EncodedShard(shard, rows(shard.start, shard.start + len(shard.ids)), truncated=0)

    return source
