"""Files that the commands `evaluate` and `mine` read and write."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from polyrank.service.cli.output import UsageError

if TYPE_CHECKING:
    from polyrank.index_builder.pool.rows import Candidate, Rejected


def read_candidates(pools: Sequence[Path]) -> Iterator["Candidate"]:
    """Stream the good rows of a pool; after the last one, report the bad rows on standard error.

    Raises:
        PoolInvalid: at once if a file is missing or of an unknown kind; while reading if it is damaged.
    """
    from polyrank.index_builder.pool.rows import read_pool

    return _good(read_pool(pools))


def _good(rows: "Iterator[Candidate | Rejected]") -> Iterator["Candidate"]:
    from polyrank.index_builder.pool.rows import Candidate

    first, count = None, 0
    for row in rows:
        if isinstance(row, Candidate):
            yield row
        else:
            first, count = first or row, count + 1
    if first is not None:
        where = f"{first.file}:{first.line}: {first.reason}"
        print(f"{count} bad rows of the pool were left out; the first: {where}", file=sys.stderr)


def require_writable(option: str, output: Path, inputs: Iterable[Path]) -> None:
    """Refuse, before the work begins, an option's file that could not be written after it or that is an input.

    Raises:
        UsageError: it is a directory, its directory is missing, or it is one of the inputs.
    """
    if output.is_dir():
        raise UsageError(f"{option} {output} is a directory; name a file")
    if not output.parent.is_dir():
        raise UsageError(f"{option} {output}: there is no directory {output.parent}")
    if output.exists() and any(path.exists() and output.samefile(path) for path in inputs):
        raise UsageError(f"{option} {output} is an input too; name another file")
