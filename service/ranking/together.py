"""Work of several requests in one go: what waits for the same thing is done with the first of it whose turn comes."""

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar, cast

from polyrank.service.ranking.threads import Threads
from polyrank.service.ranking.values import Stages

Job = TypeVar("Job")
Result = TypeVar("Result")


class _Waiting(Generic[Job, Result]):
    """A job, since when it waits, and what came of it."""

    def __init__(self, job: Job, stages: Stages) -> None:
        self.job, self.stages, self.since = job, stages, time.perf_counter()
        self.done = False
        self.result: Result | None = None
        self.error: Exception | None = None


class Together(Generic[Job, Result]):
    """Gathers jobs of equal keys while a thread is busy.

    Args:
        threads: where the work is done; one thread.
        work: does several jobs, and returns a result for each.
        most: jobs at a time.
    """

    def __init__(self, threads: Threads, work: Callable[[Sequence[Job]], list[Result]], most: int) -> None:
        self._threads, self._work, self._most = threads, work, most
        self._changing = threading.Lock()
        self._waiting: dict[Hashable, list[_Waiting[Job, Result]]] = {}

    async def run(self, key: Hashable, job: Job, stages: Stages) -> Result:
        """Do a job when its turn comes, or with one of the same key that came before; cancelling drops what waits.

        Args:
            key: of the jobs that may be done with it.
            job: what to do.
            stages: told as "queue" how long it waited, also for the others that were done with it.

        Raises:
            Exception: what the work raises for this job, be it with others or alone.
        """
        own: _Waiting[Job, Result] = _Waiting(job, stages)
        with self._changing:
            self._waiting.setdefault(key, []).append(own)
        try:
            await self._threads.run(lambda: self._turn(key, own))
        finally:
            self._leave(key, own)
        if own.error is not None:
            raise own.error
        return cast(Result, own.result)

    def _turn(self, key: Hashable, own: _Waiting[Job, Result]) -> None:
        if own.done:
            return
        with self._changing:
            waiting = self._waiting.get(key, [])
            taken = waiting[: self._most]
            del waiting[: self._most]
        told = [each.stages.total() for each in taken]
        self._do(taken)
        ended = time.perf_counter()
        for each, before in zip(taken, told, strict=True):
            each.stages.add("queue", ended - each.since - (each.stages.total() - before))

    def _do(self, taken: Sequence[_Waiting[Job, Result]]) -> None:
        try:
            results = self._work([each.job for each in taken])
        except Exception as error:
            if len(taken) > 1:  # one of them is to blame: the others must not fail with it
                for each in taken:
                    self._do([each])
                return
            taken[0].error, taken[0].done = error, True
            return
        for each, result in zip(taken, results, strict=True):
            each.result, each.done = result, True

    def _leave(self, key: Hashable, own: _Waiting[Job, Result]) -> None:
        with self._changing:
            waiting = self._waiting.get(key, [])
            if own in waiting:
                waiting.remove(own)
            if not waiting:
                self._waiting.pop(key, None)
