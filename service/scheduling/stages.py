"""A request on its way through the stages, and the threads beside the event loop on which stages run."""

import asyncio
import math
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle
from typing import Any, TypeVar, cast

from polyrank.model.text.reading import Steps, step
from polyrank.service.caching.redis_server import Budget
from polyrank.service.errors import DeadlineExceeded
from polyrank.service.observe.labels import STAGES, Stage

# So much of a request's time is kept for writing and sending the answer.
ANSWER_SECONDS = 0.01
# A stage may take so much of the time left; the rest is for the stages after it, the last of which fetches the texts.
SHARE_BEFORE_LAST = 0.8
# Work is taken on where it is predicted to take this share of the time that is left at most.
SHARE_OF_TIME = 0.5
# So much is added to a thread's niceness: beside a thread that computes all the time it gets a tenth of a processor.
LOWER_BY = 10
OLDEST_EVERY = 8

T = TypeVar("T")
U = TypeVar("U")


@dataclass(eq=False)
class Ticket:
    """A request that was let in: what it adds to the work, of that texts to encode, and how many searches it is."""

    tokens: int
    new: int = 0
    searches: int = 1


class Journey:
    """The way of one request through the stages: how much time it has, and where that goes.

    Stages follow each other, though on different threads, so there is no lock. Those that run at the same time have a
    journey each (`beside`), of which the longest counts. `deadline` is on the monotonic clock; without a `ticket` it
    was not let in yet, or needs none.
    """

    __slots__ = ("budget", "deadline", "seconds", "ticket")

    def __init__(self, deadline: float = math.inf, budget: Budget | None = None, ticket: Ticket | None = None) -> None:
        self.deadline, self.budget, self.ticket = deadline, budget or Budget(), ticket
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)  # "queue": of waiting for its turn

    @property
    def left(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.deadline - time.monotonic()

    def until(self, deadline: float) -> "Journey":
        """Return it with another deadline; it is one journey otherwise."""
        own = self.beside()
        own.deadline, own.seconds = deadline, self.seconds
        return own

    def before_answer(self) -> "Journey":
        """Return it with a deadline that leaves time to write and send the answer."""
        return self.until(self.deadline - ANSWER_SECONDS)

    def before_last(self) -> "Journey":
        """Return it with the deadline of a stage that is not the last one."""
        now = time.monotonic()
        return self.until(now + SHARE_BEFORE_LAST * max(0.0, self.deadline - now))

    def beside(self) -> "Journey":
        """Return one for what is done beside other work: with times of its own."""
        return Journey(self.deadline, self.budget, self.ticket)

    def add_longest(self, journeys: Sequence["Journey"]) -> None:
        """Add the times of what took longest of all that was done at the same time."""
        if journeys:
            for stage, seconds in max(journeys, key=Journey.total).seconds.items():
                self.seconds[stage] += seconds

    async def side_by_side(
        self, one: "Callable[[Journey], Coroutine[Any, Any, T]]", other: "Callable[[Journey], Coroutine[Any, Any, U]]"
    ) -> tuple[T, U]:
        """Run two stages at the same time; the first error ends both."""
        journeys = self.beside(), self.beside()
        tasks = asyncio.ensure_future(one(journeys[0])), asyncio.ensure_future(other(journeys[1]))
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            del task, tasks  # they hold an error, which holds this frame: in a circle, all would stay for long
            self.add_longest(journeys)

    @asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Run the block until the deadline, then end it with DeadlineExceeded."""
        left = self.left
        if left <= 0:
            raise DeadlineExceeded("before it began")
        with suppress(TimeoutError):  # it holds the task, which holds the error below: as above
            async with asyncio.timeout(None if math.isinf(left) else left):
                yield
            return
        raise DeadlineExceeded("before there was an answer")

    @contextmanager
    def timed(self, stage: Stage) -> Iterator[None]:
        """Add the block's time to a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - began

    @contextmanager
    def queued(self) -> Iterator[None]:
        """Add the block's time to "queue", except for what is added to other stages meanwhile."""
        began, before = time.perf_counter(), self.total()
        try:
            yield
        finally:
            self.seconds["queue"] += time.perf_counter() - began - (self.total() - before)

    @asynccontextmanager
    async def holding(self, lock: asyncio.Lock | asyncio.Semaphore) -> AsyncIterator[None]:
        """Hold a lock or a place of a semaphore for the block; the wait for it counts as queueing."""
        with self.queued():
            await lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def measure(self, stage: Stage, work: Callable[[], T]) -> T:
        """Call a function that is one stage."""
        with self.timed(stage):
            return work()

    def total(self) -> float:
        """Sum the seconds of all stages."""
        return sum(self.seconds.values())


class Threads:
    """Threads that run functions in the order in which they come; each thread calls `at_start` first."""

    def __init__(self, name: str, count: int, at_start: Callable[[], None] | None = None) -> None:
        self._executor = ThreadPoolExecutor(max_workers=count, thread_name_prefix=name, initializer=at_start)

    async def run(self, work: Callable[[], T], journey: Journey, stage: Stage | None = None) -> T:
        """Run a function; cancelling drops it if it has not begun.

        All of it is one stage; None: it adds its own stages to the journey. All other time until its result is here
        counts as queueing.
        """
        with journey.queued():
            # Not named: a future that failed holds this frame, which would hold it until the garbage collector runs.
            return await asyncio.wrap_future(
                self.submit(work if stage is None else partial(journey.measure, stage, work))
            )

    async def run_steps(self, steps: Steps[T], stage: Stage, journey: Journey) -> T:
        """Do steps, with the work of others between them."""
        while True:
            is_done, result = await self.run(partial(step, steps), journey, stage)
            if is_done:
                return cast(T, result)

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

    async def run(self, turns: int, letters: int, step: Callable[[], T], journey: Journey) -> T:
        """Do a step of a work that has had so many; cancelling and times as `Threads.run`."""
        place, future = (turns, letters, next(self._numbers)), Future[T]()
        future.add_done_callback(lambda _: self._let_go(place))  # of what was cancelled, at once
        with journey.queued():
            with self._changing:
                self._waiting[place] = future, step
            self._thread.submit(self._turn)
            try:
                return await asyncio.wrap_future(future)
            finally:
                del future  # it holds an error, which holds this frame: in a circle, all would stay for long

    def _let_go(self, place: tuple[int, int, int]) -> None:
        with self._changing:
            self._waiting.pop(place, None)

    def _turn(self) -> None:
        """Do the first step in line. Each step brings a turn, so some turns find nothing after one was cancelled."""
        with self._changing:
            if not self._waiting:
                return
            oldest = next(self._turns) == OLDEST_EVERY - 1
            future, step = self._waiting.pop(next(iter(self._waiting)) if oldest else min(self._waiting))
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(step())
            except BaseException as error:  # as an executor does, so that no caller waits for ever
                future.set_exception(error)
                del future, step  # as in `run`

    def close(self) -> None:
        """Finish what has begun, drop what waits."""
        self._thread.close()
        with self._changing:
            left = [future for future, _ in self._waiting.values()]
        for future in left:
            future.cancel()


def lower_priority() -> None:
    """Let this thread have the processors that others leave; nothing is done where only processes have priorities."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            niceness = os.getpriority(os.PRIO_PROCESS, thread) + LOWER_BY
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
