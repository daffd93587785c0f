"""When the server compacts what it serves."""

import logging

from index_builder.errors import JobConflict
from service.jobs import Jobs
from service.live import Live

log = logging.getLogger(__name__)


class Compacting:
    """Starts a compaction when updates have changed many rows.

    Args:
        live: what is served.
        jobs: where compactions run.
        after: so many rows added or removed; 0: never.
    """

    def __init__(self, live: Live, jobs: Jobs, after: int) -> None:
        self._live, self._jobs, self._after = live, jobs, after
        self._generation, self._due = "", after

    async def look(self) -> None:
        """Start one if it is due and nothing else is being built."""
        current = self._live.current
        if not self._after or current is None:
            return
        if current.generation.id != self._generation:
            self._generation, self._due = current.generation.id, self._after
        changed = current.snapshot.changed
        if changed < self._due or not current.snapshot.count:
            return
        try:
            record = await self._jobs.compact()
        except JobConflict:
            return  # the next look is in a second
        self._due = 2 * changed  # one that fails is not tried again at once
        log.info("compacting", extra={"fields": {"job": record.id, "changed": changed}})
