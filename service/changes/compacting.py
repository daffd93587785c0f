"""Decides when the server compacts what it serves."""

import asyncio
import logging

from polyrank.index_builder.errors import JobConflict
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.errors import shortage_in
from polyrank.service.changes.jobs import Jobs
from polyrank.service.live.switching import Live

log = logging.getLogger(__name__)


class Compacting:
    """Starts a compaction when updates have changed many rows.

    So many upserts and deletions as `after` make one due; 0: it never is.
    """

    def __init__(self, store: GenerationStore, live: Live, jobs: Jobs, after: int) -> None:
        self._store, self._live, self._jobs, self._after = store, live, jobs, after
        self._generation, self._due = "", after

    async def look(self) -> None:
        """Start one if it is due and nothing else is being built.

        Raises:
            OSError: the system lacks something for the moment, such as descriptors; the next look tries again.
        """
        current = self._live.current
        if not self._after or current is None:
            return
        if current.generation.id != self._generation:
            self._generation, self._due = current.generation.id, self._after
        changed = current.snapshot.changes
        if changed < self._due or not current.snapshot.count or not current.generation.embeddings.has_matrix:
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
            self._due = 2 * changed
            log.warning("nothing can be compacted from here", extra={"fields": {"why": error}})
            return
        self._due = 2 * changed  # if this one fails, the next try comes later
        log.info("compacting", extra={"fields": {"job": record.id, "changed": changed}})
