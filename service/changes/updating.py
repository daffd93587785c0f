"""Updates of the generation that is served: encoded, put on the disk, searchable, and only then acknowledged."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.update_log import Update, UpdateLog
from polyrank.index_builder.vectors.codec import rounded
from polyrank.service.errors import NotReady, Overloaded, RevisionNotReached
from polyrank.service.live.serving import Serving
from polyrank.service.live.switching import Live
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking.engine import Engine

# For so long a request waits for an update of another process, which look at each other's once a second.
ARRIVES_WITHIN_SECONDS = 2.0
# For so long an update waits for a switch that another process has begun.
SWITCHES_WITHIN_SECONDS = 10.0
# And for so long for others that write, or switch, at that moment.
WRITES_WITHIN_SECONDS = 10.0
# So many updates may be under way.
MOST_WAITING = 256
_LOOK_SECONDS = 0.02

T = TypeVar("T")

Vectors = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A change that is on the disk and searchable.

    Attributes:
        generation: the id of what was updated.
        revision: the update's.
        missing: ids to delete that were not there.
    """

    generation: str
    revision: int
    missing: Sequence[str] = ()


class Updating:
    """Writes updates, one at a time; other processes on the store wait for each other.

    Args:
        store: where the logs are.
        live: what is served.
        engine: encodes.
        metrics: told what was changed.
    """

    def __init__(self, store: GenerationStore, live: Live, engine: Engine, metrics: Metrics) -> None:
        self._store, self._live, self._engine, self._metrics = store, live, engine, metrics
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="updates-write")
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="updates-read")
        self._waiting = 0
        self._refreshing: asyncio.Future[Serving | None] | None = None
        self._log: UpdateLog | None = None

    async def upsert(self, candidates: Sequence[Candidate]) -> Acknowledged:
        """Add candidates, or put them in the place of those with the same ids.

        Raises:
            NotReady: nothing is served, or not what is active.
            Overloaded: too many are under way.
            UpdatesBusy: other processes change the store for too long.
            BuildError: a vector is not finite.
            GenerationCorrupt: the update log is damaged.
            OSError: nothing was written, or it may have been and cannot be acknowledged.
        """
        made_by, vectors = "", cast(Vectors, np.empty((0, 0)))

        async def attempt(serving: Serving) -> Acknowledged | None:
            nonlocal made_by, vectors
            maker = f"{serving.ranker.fingerprint} {serving.generation.manifest.dtype}"
            if made_by != maker:
                made_by, vectors = maker, await self._vectors(serving, candidates)
            return await self._in_writer(lambda: self._write(serving.generation.id, candidates, vectors, ()))

        acknowledged = await self._on_active(attempt)
        self._metrics.count_updated("upsert", len(candidates))
        return acknowledged

    async def delete(self, ids: Sequence[str]) -> Acknowledged:
        """Remove candidates; errors as `upsert`."""

        async def attempt(serving: Serving) -> Acknowledged | None:
            nothing = np.empty((0, serving.ranker.dim), np.float32)
            return await self._in_writer(lambda: self._write(serving.generation.id, (), nothing, ids))

        acknowledged = await self._on_active(attempt)
        self._metrics.count_updated("delete", len(ids) - len(acknowledged.missing))
        return acknowledged

    async def reached(self, revision: int, deadline: float) -> Serving:
        """What is served, once it knows of an update.

        Args:
            revision: the update's.
            deadline: on the monotonic clock.

        Raises:
            NotReady: nothing is served.
            RevisionNotReached: the update did not come.
            GenerationCorrupt: the update log is damaged.
        """
        until = min(deadline, time.monotonic() + ARRIVES_WITHIN_SECONDS)
        while (serving := self._live.require()).snapshot.revision < revision:
            left = until - time.monotonic()
            if left <= 0:
                raise RevisionNotReached(revision, serving.snapshot.revision)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._refreshed(), left)
                if self._live.require().snapshot.revision < revision:
                    await asyncio.sleep(min(_LOOK_SECONDS, left))
        return serving

    async def follow(self) -> None:
        """Take over what other processes have written."""
        await asyncio.get_running_loop().run_in_executor(self._reader, self._live.take_over)

    def close(self) -> None:
        """Finish what was begun."""
        self._writer.shutdown(wait=True)
        self._reader.shutdown(wait=True)

    def _refreshed(self) -> Awaitable[Serving | None]:
        """One look at the log for all that wait."""
        if self._refreshing is None or self._refreshing.done():
            look = asyncio.get_running_loop().run_in_executor(self._reader, self._live.refresh)
            look.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be waiting any more
            self._refreshing = look
        return asyncio.shield(self._refreshing)

    async def _on_active(self, attempt: Callable[[Serving], Awaitable[Acknowledged | None]]) -> Acknowledged:
        """Attempt it once what is served is the active generation, too."""
        if self._waiting >= MOST_WAITING:
            raise Overloaded(self._waiting)
        self._waiting += 1
        try:
            return await self._attempted(attempt)
        finally:
            self._waiting -= 1

    async def _attempted(self, attempt: Callable[[Serving], Awaitable[Acknowledged | None]]) -> Acknowledged:
        until = time.monotonic() + SWITCHES_WITHIN_SECONDS
        while True:
            serving = self._live.require()
            current = await asyncio.get_running_loop().run_in_executor(self._reader, self._store.current)
            if current == serving.generation.id and (acknowledged := await attempt(serving)) is not None:
                return acknowledged
            if current in self._live.refused or time.monotonic() > until:
                raise NotReady(f"the active generation {current} is not served here, so it cannot be updated here")
            await asyncio.sleep(_LOOK_SECONDS)

    async def _in_writer(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, work)

    async def _vectors(self, serving: Serving, candidates: Sequence[Candidate]) -> Vectors:
        """In the store's dtype; a candidate whose text stays as it is keeps its vector."""
        vectors, new = await self._engine.look_up(partial(_known, serving, candidates))
        if len(new):
            texts = [candidates[at].text for at in new.tolist()]
            encoded = await self._engine.encode(serving.ranker, texts, math.inf)
            vectors[new] = rounded(encoded.vectors, serving.generation.manifest.dtype)
        return vectors

    def _write(
        self, generation: str, upserts: Sequence[Candidate], vectors: Vectors, deletes: Sequence[str]
    ) -> Acknowledged | None:
        """Append to the generation's log and serve it; None where it is not the active one any more."""
        with self._store.updates.writing(WRITES_WITHIN_SECONDS):
            if self._store.current() != generation:
                return None
            serving = self._live.refresh()
            if serving is None or serving.generation.id != generation:
                return None
            rows = serving.snapshot.rows(deletes)
            missing = [each for each, row in zip(deletes, rows.tolist(), strict=True) if row < 0]
            # Ids that are not there are written, too: a generation that is being built may hold them.
            revision = self._append(serving, upserts, vectors, deletes)
        self._live.refresh()
        return Acknowledged(generation, revision, missing)

    def _append(self, serving: Serving, upserts: Sequence[Candidate], vectors: Vectors, deletes: Sequence[str]) -> int:
        manifest = serving.generation.manifest
        if self._log is None or self._log.subject.generation != manifest.id:
            self._log = self._store.updates.of(manifest)
        self._log.catch_up()
        revision = 1 + max(self._log.revision, self._log.floor, manifest.revision)
        self._log.append(Update(revision, upserts, vectors, deletes))
        return revision


def _known(serving: Serving, candidates: Sequence[Candidate]) -> tuple[Vectors, NDArray[np.int64]]:
    """Vectors (N, D), of those filled in whose texts stay as they are; the places of the others, ascending."""
    rows = serving.snapshot.rows([each.id for each in candidates])
    known = np.flatnonzero(rows >= 0)
    before = serving.snapshot.candidates(rows[known])
    same = [at for at, old in zip(known.tolist(), before, strict=True) if old.text == candidates[at].text]
    vectors = np.empty((len(candidates), serving.ranker.dim), serving.generation.embeddings.dtype)
    if same:
        vectors[same] = serving.gather(rows[same]).vectors
    return vectors, np.setdiff1d(np.arange(len(candidates)), same, assume_unique=True)
