"""What can go wrong between a pool of candidates and a served generation."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polyrank.model.errors import RankingError


class PoolError(RankingError):
    """The candidate pool cannot be used."""

    status, slug, title = 422, "invalid-input", "The request cannot be used"


class PoolInvalid(PoolError):
    """The file cannot be read as a pool: missing, of an unknown kind, truncated, or without a usable header."""

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.reason = reason


class PoolEmpty(PoolError):
    """The pool holds no candidate."""


class TooManyRejected(PoolError):
    """More rows were rejected than the build allows. `rows` says of which: "200 rows", "the first 200 rows"."""

    def __init__(self, rejected: int, rows: str, allowed: float, log: Path, first: str) -> None:
        super().__init__(
            f"{rejected} of {rows} are bad, more than the {allowed:.2%} allowed; the first: {first}; see {log}"
        )
        self.log = log


class GenerationError(RankingError):
    """A generation cannot be used."""

    status, slug, title = 409, "generation-invalid", "The generation cannot be served"


class GenerationNotFound(GenerationError):
    """The store holds no such generation, or none at all."""

    status, slug, title = 404, "generation-not-found", "No such generation"


class GenerationCorrupt(GenerationError):
    """A generation or pointer fails its checks, so it is not served."""

    def __init__(self, generation: str, reason: str) -> None:
        super().__init__(f"generation {generation} is refused: {reason}")
        self.generation = generation
        self.reason = reason


class FingerprintMismatch(GenerationError):
    """The vectors were made by another model than the one that would use them."""

    status, slug, title = 409, "encoder-mismatch", "Another model is served"

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(f"model fingerprint {expected} was expected, but this is {actual}")
        self.expected = expected
        self.actual = actual


class MatrixMissing(GenerationError):
    """This replica reads vectors from Redis, and the request needs the matrix."""

    status, slug, title = 409, "matrix-missing", "This replica does not hold the matrix"

    def __init__(self, generation: str) -> None:
        super().__init__(f"this replica does not hold the matrix of generation {generation}; do this where it lies")


class StoreError(RankingError):
    """The store failed."""


class StoreUnavailable(StoreError):
    """Redis does not answer in time, or refuses the command."""

    status, slug, title = 503, "store-unavailable", "The store does not answer"


class StoreBusy(StoreError):
    """Another process has held a lock of the store for too long."""

    status, slug, title = 503, "store-busy", "Others are changing the store"

    def __init__(self, lock: Path, holder: str) -> None:
        super().__init__(f"{lock} is held by {holder}; try again, or end that process if it hangs")


class BackupInvalid(StoreError):
    """An archive cannot be restored."""


class BuildError(RankingError):
    """The build cannot go on."""


class BuildBusy(BuildError):
    """Another process is building into this store."""

    status, slug, title = 409, "build-busy", "Another build is running"


class NothingToCompact(BuildError):
    """A compaction would change nothing, or leave no candidate."""

    status, slug, title = 409, "nothing-to-compact", "There are no updates to compact"


class CompactionOvertaken(BuildError):
    """Another generation became active while the old one was compacted or copied, so the copy is of no use."""

    status, slug, title = 409, "compaction-overtaken", "Another generation became active"

    def __init__(self, generation: str) -> None:
        super().__init__(f"generation {generation}, which was copied, is not the active one any more")


class SwitchOvertaken(BuildError):
    """Another generation became active while one was prepared to take the old one's place."""

    def __init__(self, generation: str | None, active: str | None) -> None:
        super().__init__(f"{active} is active, and no more {generation}: somebody else has switched")


class LeaseLost(BuildError):
    """This builder was paused or cut off for so long that another one took its place."""

    def __init__(self, root: Path) -> None:
        super().__init__(
            f"another build into {root} has taken over: this one was paused or cut off from Redis for too long, "
            "and what it made is not active; build again if its pool is the newer one"
        )


class DiskFull(BuildError):
    """The disk is full, or a quota or file size limit was reached."""

    status, slug, title = 507, "disk-full", "No room on the disk"


class ClusterUnavailable(RankingError):
    """A Ray cluster cannot be used, or one of its nodes."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"the Ray cluster at {address} cannot be used: {reason}")


class JobNotFound(RankingError):
    """No job has this id."""

    status, slug, title = 404, "job-not-found", "No such job"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"no job {job_id!r}")


class JobConflict(RankingError):
    """Another job is queued or running."""

    status, slug, title = 409, "job-conflict", "Another job is running"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id} has not finished; wait for it or cancel it")
        self.job_id = job_id


# EFBIG: the process's file size limit; EDQUOT: the user's quota.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def disk_full_named(directory: Path) -> Iterator[None]:
    """Turn the operating system's errors for "no room" into `DiskFull`; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise DiskFull(
            f"no room left under {directory}: {os.strerror(error.errno)}; free some space and try again"
        ) from error
