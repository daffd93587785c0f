"""Jobs of several requests done in one go: those of the same key that wait when the turn of the first comes."""

import asyncio
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

from polyrank.service.ranking.stages import Threads, Timings

Job = TypeVar("Job")
Share = TypeVar("Share")
Result = TypeVar("Result")


class _Waiting(Generic[Job, Share]):
    """A job that waits, and the function that makes its result from its share of the common work."""

    def __init__(self, job: Job, finish: Callable[[Job, Share], Any]) -> None:
        self.job, self._finish = job, finish
        self.done: Future[Any] = Future()

    def settle(self, share: Share) -> None:
        try:
            self.done.set_result(self._finish(self.job, share))
        except BaseException as error:  # as an executor does, so that no caller waits for ever
            self.done.set_exception(error)


class Together(Generic[Job, Share]):
    """Gathers jobs of equal keys while its one thread is busy, then does up to `most` of them in one go.

    `work` does these jobs, and returns each one's share of the result.
    """

    def __init__(self, threads: Threads, work: Callable[[Sequence[Job]], list[Share]], most: int) -> None:
        self._threads, self._work, self._most = threads, work, most
        self._changing = threading.Lock()
        self._waiting: dict[Hashable, list[_Waiting[Job, Share]]] = {}

    async def run(self, key: Hashable, job: Job, finish: Callable[[Job, Share], Result], timings: Timings) -> Result:
        """Do a job when its turn comes, or with one of the same key that came before; cancelling drops what waits.

        `finish` makes the result of the job and its share, on the same thread; its errors are this job's alone. All
        waiting, also for the others that are done with it, counts as queueing.

        Raises:
            Exception: what the work raises for this job alone, or `finish`.
        """
        own: _Waiting[Job, Share] = _Waiting(job, finish)
        with timings.queued():  # from before the thread can begin
            with self._changing:
                self._waiting.setdefault(key, []).append(own)
            turn = self._threads.submit(partial(self._turn, key))
            turn.add_done_callback(lambda turn: turn.cancelled() and own.done.cancel())  # when the threads close
            result: Result = await asyncio.wrap_future(own.done)
            return result

    def _turn(self, key: Hashable) -> None:
        """Do the next jobs of a key. Each job brings a turn, so some turns find nothing to do."""
        with self._changing:
            waiting = [job for job in self._waiting.pop(key, []) if not job.done.cancelled()]
            if len(waiting) > self._most:
                self._waiting[key] = waiting[self._most :]
        if jobs := [job for job in waiting[: self._most] if job.done.set_running_or_notify_cancel()]:
            self._do(jobs)

    def _do(self, jobs: Sequence[_Waiting[Job, Share]]) -> None:
        try:
            shares = self._work([waiting.job for waiting in jobs])
        except BaseException as error:
            if len(jobs) == 1:
                jobs[0].done.set_exception(error)
            else:  # one of them is to blame: the others must not fail with it
                for job in jobs:
                    self._do([job])
            return
        for job, share in zip(jobs, shares, strict=True):
            job.settle(share)
