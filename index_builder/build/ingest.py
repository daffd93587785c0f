"""The first stage of a build: write the pool's good rows into the candidate table and its bad rows into a log."""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from polyrank.index_builder.build.progress import StageClock
from polyrank.index_builder.errors import PoolEmpty, TooManyRejected
from polyrank.index_builder.generation.candidates import CandidateWriter
from polyrank.index_builder.pool.rows import Candidate, Rejected

MOST_LISTED = 10_000  # a small compressed pool may hold millions of bad rows
_ROWS_A_REPORT = 1000


@dataclass(frozen=True, slots=True)
class Ingested:
    """How many rows of a pool are good and bad, and the log of the bad ones; None if there are none."""

    count: int
    rejected: int
    log: Path | None


def ingest(
    pool: Iterable[Candidate | Rejected], table: Path, log: Path, max_rejected: float, clock: StageClock
) -> Ingested:
    """Write the candidate table. If a row is bad, also write the log: JSON lines of file, line and reason.

    The log lists the first `MOST_LISTED` bad rows. Once there are more, every further one ends the reading if the share
    of bad rows is too large by then.

    Raises:
        TooManyRejected: more than the share `max_rejected` of the rows are bad; the log is kept.
        PoolEmpty: no row is good, or there is none.
    """
    clock("read", 0, None)
    count = rejected = 0
    first: Rejected | None = None
    ended_early = False
    with ExitStack() as files:
        writer = files.enter_context(CandidateWriter(table))
        for row in pool:
            if isinstance(row, Candidate):
                writer.add(row)
                count += 1
            else:
                if first is None:
                    first = row
                    log.parent.mkdir(parents=True, exist_ok=True)
                    bad_rows = files.enter_context(log.open("wb"))
                rejected += 1
                if rejected <= MOST_LISTED:
                    bad_rows.write(orjson.dumps(asdict(row), option=orjson.OPT_APPEND_NEWLINE))
                elif rejected > max_rejected * (count + rejected):
                    ended_early = True
                    break
            if (count + rejected) % _ROWS_A_REPORT == 0:
                clock("read", count + rejected, None)
    total = count + rejected
    if first is not None and rejected > max_rejected * total:
        rows = f"the first {total} rows" if ended_early else f"{total} rows"
        raise TooManyRejected(rejected, rows, max_rejected, log, f"{first.file}:{first.line}: {first.reason}")
    if count == 0:
        raise PoolEmpty("the pool holds no candidate" + (f"; the bad rows: {log}" if rejected else ""))
    return Ingested(count, rejected, log if rejected else None)
