"""Where parts in this process are searched: threads beside the event loop, and what there is room for on them.

search       one thread: scans and FAISS, and the scores of vectors that are on this machine (retrieval.py)
candidates   a few threads: stored texts, vectors from Redis and their scores (given.py, local_part.py)
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol, TypeVar, cast

from polyrank.model.text.reading import Steps, step
from polyrank.service.observe.labels import Stage
from polyrank.service.ranking.retrieval import Found, PoolSearch, RetrievalBudget, SearchBatch
from polyrank.service.ranking.scheduler import Scheduler, Work
from polyrank.service.ranking.stages import Threads, Timings

CANDIDATE_THREADS = 4
# Requests that share a pass over the pool: with more, the first of them would wait too long for the last.
MOST_SCANS = 16
# Requests that hold what words say for every row, 4 bytes each, and 8 for each row that a filter lets through: those in
# a pass, and those of the next.
MOST_WORDS = 2 * MOST_SCANS

T = TypeVar("T")


class WatchPool(Protocol):
    """Is told what happens."""

    def observe_searched(self, share: float) -> None:
        """The parts that answered a search hold this share of the pool."""


class Desk:
    """Searches and reads parts that are in this process. Made, and used, in one event loop.

    Args:
        threads: of FAISS; None leaves it to FAISS.
        min_searched: an answer of parts that hold less than this share of the pool is refused.
        watch: is told what happens.

    Attributes:
        candidates: the threads of the same name.
        retrieval: what there is time to retrieve.
    """

    def __init__(self, threads: int | None, min_searched: float, watch: WatchPool) -> None:
        self._searches, self._faiss_threads = Scheduler("search", ["search"], MOST_SCANS), threads
        self._words = asyncio.Semaphore(MOST_WORDS)
        self.candidates = Threads("candidates", CANDIDATE_THREADS)
        self.retrieval = RetrievalBudget()
        self.min_searched, self.watch = min_searched, watch

    async def search(self, search: PoolSearch, finish: Callable[[PoolSearch, Found], T]) -> T:
        """Search on the search thread; fetching vectors from Redis would hold it up, so that is done on another."""
        key = search.serving.generation if search.shares else search
        here = search.serving.vectors.are_here
        asked = search, finish if here else lambda _, found: found
        work = Work(SearchBatch(key, self._faiss_threads), [asked], [1])
        with search.timings.queued():  # also while others of the batch are done; its stages are not
            [result] = (await self._searches.run("search", work, math.inf)).outputs
        return result if here else await self.candidates.run(partial(finish, search, result), search.timings)

    @asynccontextmanager
    async def room_for_words(self, counts_words: bool, timings: Timings) -> AsyncIterator[None]:
        """Wait until few others hold what words say for every row, if they count.

        The block must be short: no text that the caller sent is tokenised, and no candidate is encoded in it.
        """
        if not counts_words:
            yield
            return
        with timings.queued():
            await self._words.acquire()
        try:
            yield
        finally:
            self._words.release()

    async def measured(self, stage: Stage, work: Callable[[], T], timings: Timings) -> T:
        """Call a function that is one stage on the threads "candidates"."""
        return await self.candidates.run(partial(timings.measure, stage, work), timings)

    async def in_steps(self, steps: Steps[T], stage: Stage, timings: Timings) -> T:
        """Do steps on the threads "candidates", with the work of others between them."""
        while True:
            is_done, result = await self.measured(stage, partial(step, steps), timings)
            if is_done:
                return cast(T, result)

    @property
    def failed(self) -> str | None:
        """Why nothing can be searched any more; None: all is well."""
        return self._searches.failed

    def close(self) -> None:
        """Finish what has begun, drop what waits."""
        for threads in (self._searches, self.candidates):
            threads.close()
