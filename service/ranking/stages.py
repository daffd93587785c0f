"""Running the stages of a request: on threads beside the event loop, until a deadline, and with their times taken."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from polyrank.service.errors import DeadlineExceeded
from polyrank.service.observe.labels import STAGES, Stage

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

    def total(self) -> float:
        """Sum the seconds of all stages."""
        return sum(self.seconds.values())


class Threads:
    """Threads that run functions in the order in which they come."""

    def __init__(self, name: str, count: int) -> None:
        self._executor = ThreadPoolExecutor(max_workers=count, thread_name_prefix=name)

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


@asynccontextmanager
async def until(deadline: float) -> AsyncIterator[None]:
    """Run the block until a time on the monotonic clock, then end it with DeadlineExceeded."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise DeadlineExceeded("before it began")
    try:
        async with asyncio.timeout(None if math.isinf(left) else left):
            yield
    except TimeoutError:
        raise DeadlineExceeded("before there was an answer") from None


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
        for stage, seconds in max(timings, key=Timings.total).seconds.items():
            took.seconds[stage] += seconds
