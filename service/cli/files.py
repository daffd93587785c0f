"""Files that commands read and write."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank.index_builder.layout import why_no_store
from polyrank.index_builder.names import is_encoding
from polyrank.service.cli.output import UsageError

if TYPE_CHECKING:
    from polyrank.index_builder.pool.rows import Candidate, Rejected


_ENCODING_HELP = "of .csv pools, such as windows-1252 or utf-16; default: UTF-8, or what their first bytes say"


def add_encoding_option(parser: Any) -> None:
    """Add `--encoding`, for `--pool`."""
    parser.add_argument("--encoding", type=_encoding, metavar="NAME", help=_ENCODING_HELP)


def _encoding(name: str) -> str:
    if not is_encoding(name):
        raise argparse.ArgumentTypeError(f"{name!r} is unknown; name one such as windows-1252 or utf-16")
    return name


def read_candidates(pools: Sequence[Path], encoding: str | None) -> Iterator["Candidate"]:
    """Stream the good rows of a pool; after the last one, report the bad rows on standard error.

    Raises:
        PoolInvalid: at once if a file is missing or of an unknown kind; while reading if it is damaged.
    """
    from polyrank.index_builder.pool.rows import read_pool

    return _good(read_pool(pools, encoding=encoding))


def _good(rows: "Iterable[Candidate | Rejected]") -> Iterator["Candidate"]:
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


def require_store(root: Path) -> None:
    """Raise UsageError if the directory is no store; an empty one is a store of which nothing was built yet."""
    if why := why_no_store(root):
        raise UsageError(f"{why}; polyrank build makes a store")
