"""Decides when the server compacts what it serves."""

import asyncio
import logging

from polyrank.index_builder.errors import JobConflict
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.errors import shortage_in
from polyrank.service.changes.jobs import Jobs
from polyrank.service.live.switching import Live
from polyrank.service.ranking.parts import Serving

MOST_LOG_BYTES = 32 << 20  # some 35,000 updates of usual texts; their texts and vectors are in memory
FEWEST_COUNTED = 100  # of a smaller pool's words, half as many changes say little: under 50 texts no word counts at all

log = logging.getLogger(__name__)


class Compacting:
    """Starts a compaction when updates have changed many rows.

    So many upserts and deletions as `after` make one due, or a log of so many bytes as MOST_LOG_BYTES. Where words
    count, half as many as there were texts when they were counted do so too, because how rare each word is has changed
    then. After one was begun, or could not be, twice as much makes the next one due. `after` 0: it never is.
    """

    def __init__(self, store: GenerationStore, live: Live[Serving], jobs: Jobs, after: int) -> None:
        self._store, self._live, self._jobs, self._after = store, live, jobs, after
        self._generation, self._due = "", 1.0

    async def look(self) -> None:
        """Start one if it is due and nothing else is being built.

        Raises:
            OSError: the system lacks something for the moment, such as descriptors; the next look tries again.
        """
        current = self._live.current
        if not self._after or current is None:
            return
        if current.generation.id != self._generation:
            self._generation, self._due = current.generation.id, 1.0
        changed = current.snapshot.changes
        share = max(changed / self._after, current.log.size / MOST_LOG_BYTES)
        if (words := current.generation.words) is not None:
            share = max(share, 2 * changed / max(words.table.statistics.texts, FEWEST_COUNTED))
        if share < self._due or not current.snapshot.count:
            return
        if not all(part.has_matrix for part in current.parts):
            return
        if await asyncio.to_thread(self._store.current_or_none) != current.generation.id:
            return  # another one stands in for the active generation
        try:
            record = await self._jobs.compact()
        except JobConflict:
            return  # tried again at the next look
        except OSError as error:
            if shortage_in(error):
                raise
            self._due = 2 * share
            log.warning("nothing can be compacted from here", extra={"fields": {"why": error}})
            return
        self._due = 2 * share  # if this one fails, the next try comes later
        log.info("compacting", extra={"fields": {"job": record.id, "changed": changed, "log_bytes": current.log.size}})
