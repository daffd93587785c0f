"""What is not done with a pool that is cut into parts: in the place of the classes that do it are some that refuse.

The command line builds such a pool, and the server follows.
"""

import time
from collections.abc import Sequence
from typing import NoReturn

from polyrank.index_builder.build.job_records import JobRecord
from polyrank.index_builder.errors import JobNotFound
from polyrank.index_builder.pool.rows import Candidate
from polyrank.service.changes.jobs import Rebuild
from polyrank.service.errors import NotConfigured, RevisionNotReached
from polyrank.service.ranking.parts import SetServing
from polyrank.service.scale.switching import SetLive

_BUILD = "build it anew with polyrank build --shards, and the server follows"


def not_in_parts(what: str, instead: str) -> NotConfigured:
    """Return the error that says what is not done, and what to do instead."""
    return NotConfigured(f"{what} is not possible where the pool is cut into parts; {instead}")


class NotUpdating:
    """In the place of `Updating`."""

    def __init__(self, live: SetLive) -> None:
        self._live = live

    async def upsert(self, candidates: Sequence[Candidate]) -> NoReturn:
        """Raise NotConfigured."""
        raise not_in_parts("adding candidates", _BUILD)

    async def delete(self, ids: Sequence[str]) -> NoReturn:
        """Raise NotConfigured."""
        raise not_in_parts("removing candidates", _BUILD)

    async def reached(self, revision: int, deadline: float) -> SetServing:
        """Return what is served; raises RevisionNotReached for a revision above 0, because there are no updates."""
        serving = self._live.require()
        if revision > serving.snapshot.revision or time.monotonic() > deadline:
            raise RevisionNotReached(revision, serving.snapshot.revision)
        return serving


class NoJobs:
    """In the place of `Jobs`."""

    async def start(self, rebuild: Rebuild, raw: bytes, key: str | None, has_active: bool) -> NoReturn:
        """Raise NotConfigured."""
        raise not_in_parts("a rebuild by the server", _BUILD)

    async def compact(self) -> NoReturn:
        """Raise NotConfigured."""
        raise not_in_parts("a compaction", "there are no updates to take in")

    async def get(self, job_id: str) -> NoReturn:
        """Raise JobNotFound."""
        raise JobNotFound(job_id)

    async def list(self, limit: int) -> list[JobRecord]:
        """Return none."""
        return []

    async def running(self) -> None:
        """Return that none is running."""

    async def cancel(self, job_id: str) -> NoReturn:
        """Raise JobNotFound."""
        raise JobNotFound(job_id)


class NoTrials:
    """In the place of `Trials`."""

    current = None
    bytes = 0

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}

    def require(self) -> NoReturn:
        """Raise NotConfigured."""
        raise _no_trial()

    def begin(self, generation: str) -> NoReturn:
        """Raise NotConfigured."""
        raise _no_trial()

    def end(self) -> None:
        """There is none to end."""

    def follow_if_possible(self) -> None:
        """There is none to follow."""


def _no_trial() -> NotConfigured:
    return not_in_parts("a trial", "serve a copy of the store by a second server, and compare their answers")
