"""Updates of what is served: encoded, written to the log, made searchable, and then acknowledged."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.update_log import Update
from polyrank.index_builder.vectors.local import rounded_all
from polyrank.model.representations import Representations
from polyrank.service.errors import NotReady, Overloaded, RevisionNotReached
from polyrank.service.live.switching import Live
from polyrank.service.observe.logs import POOL
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking.engine import Pool
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.runtime import Runtime
from polyrank.service.scheduling.stages import Journey

# A request waits so long for an update of another process. Processes read each other's updates once a second.
ARRIVES_WITHIN_SECONDS = 2.0
# An update waits so long for this process to follow a switch that another one has made.
SWITCHES_WITHIN_SECONDS = 10.0
# An update waits so long for other processes that write or switch.
WRITES_WITHIN_SECONDS = 10.0
# Shards may take so long to say which texts they store; those of a shard that takes longer are encoded again.
KNOWN_WITHIN_SECONDS = 2.0
# So many updates may be in progress at a time.
MOST_WAITING = 256
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A change that is on the disk and searchable; `missing`: ids to delete that were not there."""

    generation: str
    revision: int
    missing: Sequence[str] = ()


# The model's fingerprint and the store's dtype, to which the vectors belong; and what was made.
_Encoded = tuple[tuple[str, str], Representations]


class Updating:
    """Writes updates, one at a time; processes on the same store wait for each other."""

    def __init__(
        self, store: GenerationStore, live: Live[Serving], runtime: Runtime, metrics: Metrics, pool: str = ""
    ) -> None:
        self._store, self._live, self._runtime, self._metrics = store, live, runtime, metrics
        self._writer = ThreadPoolExecutor(1, "updates-write", POOL.set, (pool,))
        self._reader = ThreadPoolExecutor(1, "updates-read", POOL.set, (pool,))
        self._waiting = 0
        self._changing: dict[str, asyncio.Future[None]] = {}  # texts of updates in progress, and their ends
        self._refreshing: asyncio.Future[Serving | None] | None = None

    async def upsert(self, candidates: Sequence[Candidate]) -> Acknowledged:
        """Add candidates; one with the id of another takes its place.

        Raises:
            NotReady: nothing is served, or not what is active.
            Overloaded: too many updates are in progress.
            OSError: nothing was written, or it may have been and cannot be acknowledged.
        """
        acknowledged = await self._change(candidates, ())
        self._metrics.series(self._metrics.updates, "upsert").inc(len(candidates))
        return acknowledged

    async def delete(self, ids: Sequence[str]) -> Acknowledged:
        """Remove candidates; errors as `upsert`."""
        acknowledged = await self._change((), ids)
        self._metrics.series(self._metrics.updates, "delete").inc(len(ids) - len(acknowledged.missing))
        return acknowledged

    async def reached(self, revision: int, journey: Journey) -> Serving:
        """Wait until what is served holds the update of a revision, and return it.

        Raises:
            NotReady: nothing is served.
            RevisionNotReached: the update did not come in time.
        """
        until = min(journey.deadline, time.monotonic() + ARRIVES_WITHIN_SECONDS)
        while (serving := self._live.require()).snapshot.revision < revision:
            left = until - time.monotonic()
            if left <= 0:
                raise RevisionNotReached(revision, serving.snapshot.revision)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._refreshed(), left)
                if self._live.require().snapshot.revision < revision:
                    await asyncio.sleep(min(_LOOK_SECONDS, left))
        return serving

    def _refreshed(self) -> Awaitable[Serving | None]:
        if self._refreshing is None or self._refreshing.done():
            reading = asyncio.get_running_loop().run_in_executor(self._reader, self._live.refresh)
            reading.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits by then
            self._refreshing = reading
        return asyncio.shield(self._refreshing)

    async def take_over(self) -> None:
        """Take over what other processes have written."""
        await asyncio.get_running_loop().run_in_executor(self._reader, self._live.take_over)

    def close(self) -> None:
        self._writer.shutdown(wait=True)
        self._reader.shutdown(wait=True)

    # --- the way of an update, top to bottom

    async def _change(self, upserts: Sequence[Candidate], deletes: Sequence[str]) -> Acknowledged:
        if self._waiting >= MOST_WAITING:
            raise Overloaded(self._waiting)
        self._waiting += 1
        try:
            async with self._alone_with({candidate.text for candidate in upserts}):
                return await self._written(upserts, deletes)
        finally:
            self._waiting -= 1

    @asynccontextmanager
    async def _alone_with(self, texts: set[str]) -> AsyncIterator[None]:
        """Let no other update with one of these texts be in progress: encoded twice, it would not tie in all parts."""
        while busy := {self._changing[text] for text in texts & self._changing.keys()}:
            await asyncio.wait(busy)
        end = asyncio.get_running_loop().create_future()
        self._changing.update(dict.fromkeys(texts, end))
        try:
            yield
        finally:
            for text in texts:
                del self._changing[text]
            end.set_result(None)

    async def _written(self, upserts: Sequence[Candidate], deletes: Sequence[str]) -> Acknowledged:
        """Write the update as soon as the active generation is the one that is served here; encode it before."""
        in_thread = asyncio.get_running_loop().run_in_executor
        until = time.monotonic() + SWITCHES_WITHIN_SECONDS
        encoded: _Encoded | None = None
        while True:
            serving = self._live.require()
            current = await in_thread(self._reader, self._store.current)
            if current == serving.generation.id:
                encoded = await self._encoded(serving, upserts, encoded)
                write = partial(self._write, current, upserts, encoded[1], deletes)
                if (acknowledged := await in_thread(self._writer, write)) is not None:
                    return acknowledged
            why, passes = self._live.why_not(current)
            if why is not None and not passes:
                raise NotReady(f"the active generation {current} is not served here: {why}; activate another one")
            if time.monotonic() > until:
                yet = why or "this server still loads it"
                raise NotReady(f"the active generation {current} is not served yet: {yet}; send the update again")
            await asyncio.sleep(_LOOK_SECONDS)

    async def _encoded(self, serving: Serving, candidates: Sequence[Candidate], before: _Encoded | None) -> _Encoded:
        """Encode the candidates, unless that was done for the same model; a text that is stored keeps its vector."""
        maker = serving.ranker.fingerprint, serving.generation.manifest.dtype
        if before is not None and before[0] == maker:
            return before
        if not candidates:
            return maker, Representations.none(serving.ranker.dim, serving.ranker.late_rows)
        texts = list(dict.fromkeys(candidate.text for candidate in candidates))
        same, made = await Pool(self._runtime, serving, Journey(time.monotonic() + KNOWN_WITHIN_SECONDS)).texts(texts)
        new = np.setdiff1d(np.arange(len(texts)), same, assume_unique=True)
        if len(new):
            encoded = await self._runtime.forwards.encode(serving.ranker, [texts[at] for at in new.tolist()], Journey())
            made = Representations.join([made, rounded_all(encoded.made, serving.generation.manifest.dtype)])
        place = {texts[at]: place for place, at in enumerate([*same.tolist(), *new.tolist()])}
        return maker, made.take([place[candidate.text] for candidate in candidates])

    def _write(
        self, generation: str, upserts: Sequence[Candidate], made: Representations, deletes: Sequence[str]
    ) -> Acknowledged | None:
        """Append to the generation's log and serve it; None where the generation is not the active one any more."""
        with self._store.updates.writing(WRITES_WITHIN_SECONDS):
            if self._store.current() != generation:
                return None
            serving = self._live.refresh()
            if serving is None or serving.generation.id != generation:
                return None
            # It was just read to its end, and nobody else may append: another thread that reads it finds nothing new.
            log = serving.log
            revision = 1 + max(log.revision, log.floor, serving.generation.manifest.revision)
            missing = serving.missing(deletes)
            # Missing ids are written, too: a generation that is being built may hold them.
            log.append(Update(revision, upserts, made, deletes))
        self._live.refresh()
        return Acknowledged(generation, revision, missing)
