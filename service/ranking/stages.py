"""Running the stages of a request: on threads beside the event loop, until a deadline, and with their times taken."""

import asyncio
import math
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import count, cycle
from typing import Any, TypeVar

from polyrank.service.errors import DeadlineExceeded
from polyrank.service.observe.labels import STAGES, Stage

# So much of a request's time is kept for writing and sending the answer.
ANSWER_SECONDS = 0.01
# Work is taken on where it is predicted to take this share of the time that is left at most.
SHARE_OF_TIME = 0.5
# So much is added to a thread's niceness: beside a thread that computes all the time it gets a tenth of a processor.
LOWER_BY = 10
OLDEST_EVERY = 8

T = TypeVar("T")
U = TypeVar("U")


class Timings:
    """Seconds that one request spends in each stage; "queue" is the time that it waits for its turn.

    Stages follow each other, though on different threads, so there is no lock.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def timed(self, stage: Stage) -> Iterator[None]:
        """Add the block's time to a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - began)

    @contextmanager
    def queued(self) -> Iterator[None]:
        """Add the block's time to "queue", except for what is added to other stages meanwhile."""
        began, before = time.perf_counter(), self.total()
        try:
            yield
        finally:
            self.add("queue", time.perf_counter() - began - (self.total() - before))

    def measure(self, stage: Stage, work: Callable[[], T]) -> T:
        """Call a function that is one stage."""
        with self.timed(stage):
            return work()

    def add(self, stage: Stage, seconds: float) -> None:
        """Add to a stage."""
        self.seconds[stage] += seconds

    def add_all(self, other: "Timings") -> None:
        """Add those of work that was done beside other work, and took longest."""
        for stage, seconds in other.seconds.items():
            self.seconds[stage] += seconds

    def total(self) -> float:
        """Sum the seconds of all stages."""
        return sum(self.seconds.values())


class Threads:
    """Threads that run functions in the order in which they come; each thread calls `at_start` first."""

    def __init__(self, name: str, count: int, at_start: Callable[[], None] | None = None) -> None:
        self._executor = ThreadPoolExecutor(max_workers=count, thread_name_prefix=name, initializer=at_start)

    async def run(self, work: Callable[[], T], timings: Timings) -> T:
        """Run a function; cancelling drops it if it has not begun.

        The function adds its own stages to the timings. All other time until its result is here counts as queueing.
        """
        with timings.queued():
            return await asyncio.wrap_future(self.submit(work))

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Queue a function."""
        return self._executor.submit(work)

    def close(self) -> None:
        """Finish what has begun, drop what waits."""
        self._executor.shutdown(wait=True, cancel_futures=True)


class FairThread:
    """A thread that does steps of many works: first of what has had the fewest, then of what has the fewest letters.

    Every `OLDEST_EVERY`th step is the one that has waited longest, so that no number of others starves it.
    """

    def __init__(self, name: str, at_start: Callable[[], None] | None = None) -> None:
        self._thread = Threads(name, 1, at_start)
        self._changing = threading.Lock()
        self._turns = cycle(range(OLDEST_EVERY))
        self._numbers = count()  # those that are equal in both go in the order in which they come
        self._waiting: dict[tuple[int, int, int], tuple[Future[Any], Callable[[], Any]]] = {}

    async def run(self, had: int, letters: int, step: Callable[[], T], timings: Timings) -> T:
        """Do a step of a work that has had so many; cancelling and timings as `Threads.run`."""
        place, done = (had, letters, next(self._numbers)), Future[T]()
        done.add_done_callback(lambda _: self._let_go(place))  # of what was cancelled, at once
        with timings.queued():
            with self._changing:
                self._waiting[place] = done, step
            self._thread.submit(self._turn)
            try:
                return await asyncio.wrap_future(done)
            finally:
                del done  # it holds an error, which holds this frame: in a circle, all would stay for long

    def _let_go(self, place: tuple[int, int, int]) -> None:
        with self._changing:
            self._waiting.pop(place, None)

    def _turn(self) -> None:
        """Do the first step in line. Each step brings a turn, so some turns find nothing after one was cancelled."""
        with self._changing:
            if not self._waiting:
                return
            oldest = next(self._turns) == OLDEST_EVERY - 1
            done, step = self._waiting.pop(next(iter(self._waiting)) if oldest else min(self._waiting))
        if done.set_running_or_notify_cancel():
            try:
                done.set_result(step())
            except BaseException as error:  # as an executor does, so that no caller waits for ever
                done.set_exception(error)
                del done, step  # as in `run`

    def close(self) -> None:
        """Finish what has begun, drop what waits."""
        self._thread.close()
        with self._changing:
            left = [done for done, _ in self._waiting.values()]
        for done in left:
            done.cancel()


def lower_priority() -> None:
    """Let this thread have the processors that others leave; nothing is done where only processes have priorities."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            niceness = os.getpriority(os.PRIO_PROCESS, thread) + LOWER_BY
            os.setpriority(os.PRIO_PROCESS, thread, niceness)


@asynccontextmanager
async def until(deadline: float) -> AsyncIterator[None]:
    """Run the block until a time on the monotonic clock, then end it with DeadlineExceeded."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded("before it began")
    with suppress(TimeoutError):  # it holds the task, which holds the error below: in a circle, all would stay for long
        async with asyncio.timeout(None if math.isinf(left) else left):
            yield
        return
    raise DeadlineExceeded("before there was an answer")


def once(work: Callable[[Timings], Coroutine[Any, Any, T]]) -> Callable[[Timings], Coroutine[Any, Any, T]]:
    """Return a stage that is run when it is called first, and gives the same result afterwards."""
    done: list[T] = []

    async def call(timings: Timings) -> T:
        if not done:
            done.append(await work(timings))
        return done[0]

    return call


async def side_by_side(
    one: Callable[[Timings], Coroutine[Any, Any, T]], other: Callable[[Timings], Coroutine[Any, Any, U]], took: Timings
) -> tuple[T, U]:
    """Run two stages at the same time; the first error ends both. Adds the times of the one that took longer."""
    timings = Timings(), Timings()
    tasks = asyncio.ensure_future(one(timings[0])), asyncio.ensure_future(other(timings[1]))
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        took.add_all(max(timings, key=Timings.total))
