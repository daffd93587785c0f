"""What can go wrong between a pool of candidates and a served generation.

RankingError (polyrank.model.errors)
  PoolError
    PoolInvalid           the file cannot be read as a pool at all
    PoolEmpty             no candidate was left
    TooManyRejected       more bad rows than allowed
  GenerationError
    GenerationNotFound    no generation of that id, or none at all
    GenerationCorrupt     a generation or pointer that fails its checks
    FingerprintMismatch   vectors of another model than the one asked for
    MatrixMissing         this replica was made without the matrix, which it would need
  StoreError
    StoreUnavailable      Redis does not answer, or refuses
    UpdatesBusy           others write updates or switch for too long
  BuildError              a build cannot go on; also raised itself
    BuildBusy             another build of this store is running
    NothingToCompact      the active generation was not updated, or nothing is left in it
    CompactionOvertaken   another generation became active meanwhile
    LeaseLost             another builder has overtaken this one
    DiskFull              no room, or a quota or file size limit was met
  JobNotFound
  JobConflict             another job is queued or running
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polyrank.model.errors import RankingError


class PoolError(RankingError):
    """The candidate pool cannot be used."""


class PoolInvalid(PoolError):
    """The file cannot be read as a pool: missing, of an unknown kind, truncated, or without a usable header."""

    def __init__(self, file: str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = file
        self.reason = reason


class PoolEmpty(PoolError):
    """The pool holds no candidate."""


class TooManyRejected(PoolError):
    """More rows were rejected than the build tolerates."""

    def __init__(self, rejected: int, total: int, allowed: float, log: Path, first: str) -> None:
        super().__init__(
            f"{rejected} of {total} rows are bad, more than the {allowed:.2%} allowed; "
            f"the first: {first}; all of them: {log}"
        )
        self.rejected = rejected
        self.total = total
        self.allowed = allowed
        self.log = log


class GenerationError(RankingError):
    """A generation cannot be used."""


class GenerationNotFound(GenerationError):
    """The store holds no such generation."""


class GenerationCorrupt(GenerationError):
    """A generation fails its checks, so it is not served."""

    def __init__(self, generation: str, reason: str) -> None:
        super().__init__(f"generation {generation} is refused: {reason}")
        self.generation = generation
        self.reason = reason


class FingerprintMismatch(GenerationError):
    """Vectors would have met a model that did not make them."""

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(f"model fingerprint {expected} was expected, but this is {actual}")
        self.expected = expected
        self.actual = actual


class MatrixMissing(GenerationError):
    """A replica that reads vectors from Redis is asked for what only the matrix has."""

    def __init__(self, generation: str) -> None:
        super().__init__(f"this replica does not hold the matrix of generation {generation}; do this where it lies")
        self.generation = generation


class StoreError(RankingError):
    """The embedding store failed."""


class StoreUnavailable(StoreError):
    """Redis does not answer in time, or refuses the command."""


class UpdatesBusy(StoreError):
    """Others write updates, or switch to another generation, for longer than one is willing to wait."""


class BuildError(RankingError):
    """The build cannot go on."""


class BuildBusy(BuildError):
    """Another process is building into this store."""


class NothingToCompact(BuildError):
    """A compaction would change nothing, or leave no candidate."""


class CompactionOvertaken(BuildError):
    """The generation that was compacted is not the active one any more, so the compaction is of no use."""


class LeaseLost(BuildError):
    """This builder was paused or cut off for so long that another one took its place."""

    def __init__(self, root: Path) -> None:
        super().__init__(
            f"another build into {root} has taken over: this one was paused or cut off from Redis for too long, "
            "and what it made is not active; build again if its pool is the newer one"
        )
        self.root = root


class DiskFull(BuildError):
    """The file system took no more data."""


class JobNotFound(RankingError):
    """No job has this id."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job {job_id!r}")
        self.job_id = job_id


class JobConflict(RankingError):
    """Another job is queued or running."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id} has not finished; wait for it or cancel it")
        self.job_id = job_id


# EFBIG: the process's file size limit; EDQUOT: the user's quota.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def disk_full_named(directory: Path) -> Iterator[None]:
    """Turn the operating system's words for "no room" into `DiskFull`; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise DiskFull(
            f"no room left under {directory}: {os.strerror(error.errno)}; free some space and try again"
        ) from error
