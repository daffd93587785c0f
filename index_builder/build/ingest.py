"""First pass of a build: the pool's good rows into the candidate table, its bad rows into a log."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import orjson

from polyrank.index_builder.errors import PoolEmpty, TooManyRejected
from polyrank.index_builder.pool.rows import Candidate, Rejected
from polyrank.index_builder.store.candidates import CandidateWriter

_ROWS_A_REPORT = 1000


@dataclass(frozen=True, slots=True)
class Ingested:
    """What the pool held: good rows, bad rows, and the log of the bad ones if there were any."""

    count: int
    rejected: int
    log: Path | None


def ingest(
    pool: Iterable[Candidate | Rejected], table: Path, log: Path, max_rejected: float, on_read: Callable[[int], None]
) -> Ingested:
    """Write the candidate table, and the log (JSON lines of file, line and reason) if a row is bad.

    Args:
        pool: the rows.
        table: the candidate table to write.
        log: the log to write.
        max_rejected: the share of rows that may be bad.
        on_read: called now and then with the number of rows read.

    Raises:
        TooManyRejected: more are bad; the log is kept.
        PoolEmpty: no row is good, or there is none.
    """
    with ExitStack() as stack:
        writer = stack.enter_context(CandidateWriter(table))
        bad = _RejectedLog(log, stack)
        count = 0
        for row in pool:
            if isinstance(row, Rejected):
                bad.add(row)
            else:
                writer.add(row)
                count += 1
            if (count + bad.count) % _ROWS_A_REPORT == 0:
                on_read(count + bad.count)
    total = count + bad.count
    if bad.first is not None and bad.count > max_rejected * total:
        raise TooManyRejected(
            bad.count, total, max_rejected, log, f"{bad.first.file}:{bad.first.line}: {bad.first.reason}"
        )
    if count == 0:
        raise PoolEmpty("the pool holds no candidate" + (f"; the bad rows: {log}" if bad.count else ""))
    return Ingested(count, bad.count, log if bad.count else None)


class _RejectedLog:
    """Counts bad rows and writes them down; no bad row, no file."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path, self._stack = path, stack
        self._file: BinaryIO | None = None
        self.count = 0
        self.first: Rejected | None = None

    def add(self, row: Rejected) -> None:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._stack.enter_context(self._path.open("wb"))
            self.first = row
        self.count += 1
        self._file.write(orjson.dumps(asdict(row), option=orjson.OPT_APPEND_NEWLINE))
