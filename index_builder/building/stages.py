"""Stages of a build before and after encoding, and its progress: what its caller hears of it, and how long each took.

`ingest` writes the pool's good rows into a candidate table.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from polyrank.index_builder.errors import PoolEmpty, TooManyRejected
from polyrank.index_builder.generation.candidates import CANDIDATES_FILE, CandidateTable, CandidateWriter
from polyrank.index_builder.pool.rows import Candidate, Rejected
from polyrank.index_builder.vectors.encoder import ContextEncoder, Model
from polyrank.model.checkpoint.files import CONFIG_FILE, read_object
from polyrank.model.config import ModelConfig
from polyrank.model.text.assembly import Conversation

# In these stages other processes begin to see the generation, so the build can no longer be cancelled.
PUBLISHING = ("rename", "CURRENT")

# Called with (stage, done, total); the total is None while it is unknown.
OnProgress = Callable[[str, int, int | None], None]

MOST_LISTED = 10_000  # a small compressed pool may hold millions of bad rows
_ROWS_A_REPORT = 1000
# How many contexts "auto" times searches with, and how many candidates make one where no real ones are given.
TIMED_CONTEXTS = 12
_TURNS = 4
Codes = NDArray[np.float32]


def no_progress(_stage: str, _count: int, _total: int | None) -> None:
    """Report to nobody."""


def within(on_progress: OnProgress, before: int, total: int) -> OnProgress:
    """Return what passes the progress of a part on: its rows come behind `before` ones, of `total` of all parts."""
    return lambda stage, count, _: on_progress(stage, before + count, total)


class StageClock:
    """Passes progress on and adds up the seconds of each stage. What the caller's function raises ends the build.

    `seconds`: by stage, up to the latest call.
    """

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._start = self._since = time.monotonic()
        self._latest: tuple[str, int, int | None] = ("read", 0, None)
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str, count: int, total: int | None) -> None:
        """Announce the next step; the time since the last call belongs to the stage announced then."""
        now, before = time.monotonic(), self._latest[0]
        self.seconds[before] = self.seconds.get(before, 0.0) + now - self._since
        self._latest, self._since = (stage, count, total), now
        self._on_progress(stage, count, total)

    def advance(self, rows: int) -> None:
        """Announce that so many more rows of the current stage are done."""
        stage, count, total = self._latest
        self(stage, count + rows, total)

    def elapsed(self) -> float:
        return time.monotonic() - self._start


def ingest(
    pool: Iterable[Candidate | Rejected], table: Path, log: Path, max_rejected: float, clock: StageClock
) -> tuple[int, int]:
    """Write the candidate table; returns how many rows are candidates, and how many are left out.

    If a row is left out, the log is written, too: JSON lines of file, line and reason.
    The log lists the first `MOST_LISTED` bad rows, and as many repeated texts, which are not bad. Once more are bad,
    every further one ends the reading if the share of bad rows is too large by then.

    Raises:
        TooManyRejected: more than the share `max_rejected` of the rows are bad; the log is kept.
        PoolEmpty: no row is good, or there is none.
    """
    clock("read", 0, None)
    count = rejected = bad = 0
    first_bad: Rejected | None = None
    ended_early = False
    with ExitStack() as files:
        writer = files.enter_context(CandidateWriter(table))
        for row in pool:
            if isinstance(row, Candidate):
                writer.add(row)
                count += 1
            else:
                if not rejected:
                    log.parent.mkdir(parents=True, exist_ok=True)
                    left_out = files.enter_context(log.open("wb"))
                rejected += 1
                if row.is_bad:
                    first_bad, bad = first_bad or row, bad + 1
                if (bad if row.is_bad else rejected - bad) <= MOST_LISTED:
                    entry = {"file": row.file, "line": row.line, "reason": row.reason}
                    left_out.write(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))
                if bad > MOST_LISTED and bad > max_rejected * (count + rejected):
                    ended_early = True
                    break
            if (count + rejected) % _ROWS_A_REPORT == 0:
                clock("read", count + rejected, None)
    total = count + rejected
    if first_bad is not None and bad > max_rejected * total:
        rows = f"the first {total} rows" if ended_early else f"{total} rows"
        where = f"{first_bad.file}:{first_bad.line}: {first_bad.reason}"
        raise TooManyRejected(bad, rows, max_rejected, log, where)
    if count == 0:
        raise PoolEmpty("the pool holds no candidate" + (f"; the bad rows: {log}" if rejected else ""))
    return count, rejected


def languages_of(model: Path) -> list[str]:
    """Return the languages that the model in a directory learnt, as its checkpoint says; empty: it does not."""
    path = model / CONFIG_FILE
    config = read_object(path) if path.is_file() else {}
    return list(ModelConfig.from_json(config).languages) if config.get("languages") else []


class EncodedContext(NamedTuple):
    """A real context."""

    conversation: Conversation  # what its words are read from
    codes: Codes  # its vectors (M, D), with the score scale multiplied in

    @classmethod
    def of(cls, model: ContextEncoder, conversations: Sequence[Conversation]) -> "list[EncodedContext]":
        encoded = model.encode_contexts([model.tokenize_context(each)[0] for each in conversations])
        return [cls(*each) for each in zip(conversations, encoded, strict=True)]


def contexts_of_candidates(directory: Path, model: Model, matrix: NDArray[Any]) -> list[Codes]:
    """Contexts of candidates that follow each other in the pool, for they cost a search what real ones do.

    A model that encodes no contexts is taken for a Bi-encoder: a candidate's vector stands for a context.
    """
    starts = np.linspace(0, len(matrix) - _TURNS, TIMED_CONTEXTS).astype(np.int64).tolist()
    if not isinstance(model, ContextEncoder):
        return [np.asarray(matrix[[start]], np.float32) for start in starts]
    table = CandidateTable(directory / CANDIDATES_FILE)
    turns = [[each.text for each in table.rows(range(start, start + _TURNS))] for start in starts]
    return [each.codes for each in EncodedContext.of(model, [*map(Conversation.of, turns)])]
