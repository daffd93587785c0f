"""Jobs of equal keys are done together, fail alone and can be taken back."""

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar
from weakref import WeakSet

import pytest

from polyrank.service.ranking.batching.together import Together
from polyrank.service.ranking.stages import Threads, Timings

T = TypeVar("T")

MOST = 3


class Doubling:
    """Doubles numbers once it is let go; refuses 13 in whatever company."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.calls: list[list[int]] = []

    def __call__(self, jobs: Sequence[int]) -> list[int]:
        self.calls.append(list(jobs))
        self.begun.set()
        assert self.gate.wait(10)
        if 13 in jobs:
            raise ValueError("13")
        return [2 * job for job in jobs]


def checked(_job: int, doubled: int) -> int:
    """What a job makes of its share; 7 cannot be finished."""
    if doubled == 14:
        raise KeyError("7")
    return doubled


Run = Callable[[str, int], Awaitable[int]]


def played(scenario: Callable[[Doubling, Run], Awaitable[None]]) -> Doubling:
    """Play a scenario while one thread works."""
    doubling, threads = Doubling(), Threads("search", 1)
    together = Together(threads, doubling, MOST)

    async def play() -> None:
        await asyncio.wait_for(scenario(doubling, lambda key, job: together.run(key, job, checked, Timings())), 20)

    try:
        asyncio.run(play())
    finally:
        doubling.gate.set()
        threads.close()
    return doubling


async def begun(doubling: Doubling, job: Awaitable[int]) -> "asyncio.Future[int]":
    """A job that the thread is busy with."""
    first = asyncio.ensure_future(job)
    await asyncio.to_thread(doubling.begun.wait, 10)
    return first


def test_what_waits_for_the_same_is_done_together() -> None:
    async def scenario(doubling: Doubling, run: Run) -> None:
        first = await begun(doubling, run("a", 0))
        jobs = (("a", 1), ("b", 2), ("a", 3), ("a", 4), ("a", 5))
        others = [asyncio.ensure_future(run(*job)) for job in jobs]
        await asyncio.sleep(0)
        doubling.gate.set()
        assert await asyncio.gather(first, *others) == [0, 2, 4, 6, 8, 10]

    assert played(scenario).calls == [[0], [1, 3, 4], [2], [5]]


def test_one_that_fails_does_not_fail_the_others() -> None:
    async def scenario(doubling: Doubling, run: Run) -> None:
        first = await begun(doubling, run("a", 0))
        others = [asyncio.ensure_future(run("a", job)) for job in (1, 13, 2)]
        await asyncio.sleep(0)
        doubling.gate.set()
        one, refused, two = await asyncio.gather(*others, return_exceptions=True)
        assert (await first, one, two) == (0, 2, 4)
        assert isinstance(refused, ValueError)

    assert played(scenario).calls == [[0], [1, 13, 2], [1], [13], [2]]


def test_one_that_cannot_be_finished_has_no_other_done_again() -> None:
    async def scenario(doubling: Doubling, run: Run) -> None:
        first = await begun(doubling, run("a", 0))
        others = [asyncio.ensure_future(run("a", job)) for job in (1, 7, 2)]
        await asyncio.sleep(0)
        doubling.gate.set()
        one, failed, two = await asyncio.gather(*others, return_exceptions=True)
        assert (await first, one, two) == (0, 2, 4)
        assert isinstance(failed, KeyError)

    assert played(scenario).calls == [[0], [1, 7, 2]]


def test_what_waits_when_the_threads_close_is_cancelled() -> None:
    async def play() -> list[int | BaseException]:
        doubling, threads = Doubling(), Threads("search", 1)
        together = Together(threads, doubling, MOST)
        first = await begun(doubling, together.run("a", 1, checked, Timings()))
        waiting = asyncio.ensure_future(together.run("b", 2, checked, Timings()))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(asyncio.to_thread(threads.close))
        await asyncio.wait([waiting], timeout=10)
        doubling.gate.set()
        await closing
        return await asyncio.gather(first, waiting, return_exceptions=True)

    done, cancelled = asyncio.run(play())
    assert done == 2
    assert isinstance(cancelled, asyncio.CancelledError)


def test_a_job_is_let_go_of_when_it_is_done_or_was_cancelled() -> None:
    class Job:
        """Can be watched."""

    begun, gate = threading.Event(), threading.Event()

    def work(jobs: Sequence[Job]) -> list[None]:
        begun.set()
        assert gate.wait(10)
        return [None] * len(jobs)

    threads = Threads("search", 1)
    together = Together(threads, work, MOST)
    jobs = [Job() for _ in range(4)]
    watched = WeakSet(jobs)

    async def play() -> None:
        first, *others = [asyncio.ensure_future(together.run("a", each, lambda *_: None, Timings())) for each in jobs]
        await asyncio.to_thread(begun.wait, 10)
        others[0].cancel()
        gate.set()
        await asyncio.gather(first, *others, return_exceptions=True)

    asyncio.run(play())
    threads.close()
    jobs.clear()
    gc.collect()
    assert not watched


def test_what_is_cancelled_is_not_done() -> None:
    async def scenario(doubling: Doubling, run: Run) -> None:
        first = await begun(doubling, run("a", 0))
        left, kept = asyncio.ensure_future(run("a", 1)), asyncio.ensure_future(run("a", 2))
        await asyncio.sleep(0)
        left.cancel()
        with suppress(asyncio.CancelledError):
            await left
        doubling.gate.set()
        assert (await first, await kept) == (0, 4)

    assert played(scenario).calls == [[0], [2]]


def test_waiting_counts_as_queueing() -> None:
    doubling, threads, timings = Doubling(), Threads("search", 1), Timings()
    doubling.gate.set()
    try:
        assert asyncio.run(Together(threads, doubling, MOST).run("a", 1, checked, timings)) == 2
    finally:
        threads.close()
    assert timings.seconds["queue"] > 0
    assert timings.total() == pytest.approx(timings.seconds["queue"])


def test_work_that_begins_at_once_makes_no_queueing_below_zero() -> None:
    begun = threading.Event()

    class Interrupted(Threads):
        """Its caller goes on only in the middle of the work."""

        def submit(self, work: Callable[[], T]) -> "Future[T]":
            future = super().submit(work)
            assert begun.wait(10)
            time.sleep(0.02)
            return future

    def work(jobs: Sequence[Timings]) -> list[None]:
        with jobs[0].timed("retrieve"):
            begun.set()
            time.sleep(0.04)
        return [None]

    threads, timings = Interrupted("search", 1), Timings()
    together = Together(threads, work, MOST)
    try:
        asyncio.run(together.run("a", timings, lambda *_: None, timings))
    finally:
        threads.close()
    assert timings.seconds["retrieve"] > 0
    assert timings.seconds["queue"] >= 0


def test_waiting_for_the_others_counts_as_queueing() -> None:
    def work(jobs: Sequence[Timings]) -> list[None]:
        for timings in jobs:
            with timings.timed("score"):
                time.sleep(0.02)
        return [None] * len(jobs)

    threads, own = Threads("search", 1), [Timings() for _ in range(3)]
    gate = threading.Event()

    async def play() -> float:
        together = Together(threads, work, MOST)
        busy = asyncio.ensure_future(threads.run(lambda: gate.wait(10), Timings()))
        began = time.perf_counter()
        waiting = asyncio.gather(*(together.run("a", timings, lambda _, nothing: nothing, timings) for timings in own))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(waiting, busy)
        return time.perf_counter() - began

    try:
        took = asyncio.run(play())
    finally:
        threads.close()
    for timings in own:
        assert sum(each.seconds["score"] for each in own) <= timings.total() <= took
