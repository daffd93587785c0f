"""The pool of a command that encodes it without building a store."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from polyrank.index_builder.pool.rows import Candidate, Rejected, read_pool


def read_candidates(pools: Sequence[Path]) -> Iterator[Candidate]:
    """Stream the good rows of a pool; once all are read, standard error is told of the bad ones.

    Raises:
        PoolInvalid: before the first row, for a file that is missing or of an unknown kind; while reading, for one
            that cannot be read to its end.
    """
    return _good(read_pool(pools))


def _good(rows: Iterator[Candidate | Rejected]) -> Iterator[Candidate]:
    first, count = None, 0
    for row in rows:
        if isinstance(row, Candidate):
            yield row
        else:
            first, count = first or row, count + 1
    if first is not None:
        where = f"{first.file}:{first.line}: {first.reason}"
        print(f"{count} bad rows of the pool were left out; the first: {where}", file=sys.stderr)
