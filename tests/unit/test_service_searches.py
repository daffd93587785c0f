"""Searches of equal keys are done together, fail alone and can be taken back."""

import asyncio
import gc
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import pytest

from polyrank.service.errors import InferenceFailed
from polyrank.service.ranking import retrieval
from polyrank.service.ranking.retrieval import SearchBatch
from polyrank.service.ranking.scheduler import Scheduler, Work
from polyrank.service.ranking.stages import Journey

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


class Sharing:
    """Runs jobs as the engine runs searches."""

    def __init__(self) -> None:
        self.work: Callable[[Sequence[Any]], list[Any]] = list
        self.scheduler = Scheduler("search", ["search"], MOST)

    async def run(self, key: str, job: Any, finish: Callable[[Any, Any], Any], journey: Journey) -> Any:
        with journey.queued():
            done = await self.scheduler.run("search", Work(SearchBatch(key), [(job, finish)], [1]), math.inf)
        return done.outputs[0]


@pytest.fixture
def sharing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sharing]:
    made = Sharing()
    monkeypatch.setattr(retrieval, "search", lambda jobs, _threads: made.work(jobs))
    yield made
    made.scheduler.close()


Run = Callable[[str, int], Awaitable[int]]


def _nothing(_job: object, _share: object) -> None:
    """What is made where only the work counts."""


def played(sharing: Sharing, scenario: Callable[[Doubling, Run], Awaitable[None]]) -> Doubling:
    """Play a scenario while one thread works."""
    doubling = sharing.work = Doubling()

    async def play() -> None:
        await asyncio.wait_for(scenario(doubling, lambda key, job: sharing.run(key, job, checked, Journey())), 20)

    try:
        asyncio.run(play())
    finally:
        doubling.gate.set()
    return doubling


async def begun(doubling: Doubling, job: Awaitable[int]) -> "asyncio.Future[int]":
    """A job that the thread is busy with."""
    first = asyncio.ensure_future(job)
    await asyncio.to_thread(doubling.begun.wait, 10)
    return first


def test_what_waits_for_the_same_is_done_together(sharing: Sharing) -> None:
    async def scenario(doubling: Doubling, run: Run) -> None:
        first = await begun(doubling, run("a", 0))
        jobs = (("a", 1), ("b", 2), ("a", 3), ("a", 4), ("a", 5))
        others = [asyncio.ensure_future(run(*job)) for job in jobs]
        await asyncio.sleep(0)
        doubling.gate.set()
        assert await asyncio.gather(first, *others) == [0, 2, 4, 6, 8, 10]

    assert played(sharing, scenario).calls == [[0], [1, 3, 4], [2], [5]]


def test_one_that_fails_does_not_fail_the_others(sharing: Sharing) -> None:
    async def scenario(doubling: Doubling, run: Run) -> None:
        first = await begun(doubling, run("a", 0))
        others = [asyncio.ensure_future(run("a", job)) for job in (1, 13, 2)]
        await asyncio.sleep(0)
        doubling.gate.set()
        one, refused, two = await asyncio.gather(*others, return_exceptions=True)
        assert (await first, one, two) == (0, 2, 4)
        assert isinstance(refused, ValueError)

    assert played(sharing, scenario).calls == [[0], [1, 13, 2], [1], [13], [2]]


def test_one_that_cannot_be_finished_has_no_other_done_again(sharing: Sharing) -> None:
    async def scenario(doubling: Doubling, run: Run) -> None:
        first = await begun(doubling, run("a", 0))
        others = [asyncio.ensure_future(run("a", job)) for job in (1, 7, 2)]
        await asyncio.sleep(0)
        doubling.gate.set()
        one, failed, two = await asyncio.gather(*others, return_exceptions=True)
        assert (await first, one, two) == (0, 2, 4)
        assert isinstance(failed, KeyError)

    assert played(sharing, scenario).calls == [[0], [1, 7, 2]]


def begun_closing(scheduler: Scheduler) -> None:
    while not scheduler._closing:
        time.sleep(0.001)


def test_what_waits_when_the_thread_closes_is_dropped(sharing: Sharing) -> None:
    async def play() -> list[int | BaseException]:
        doubling = sharing.work = Doubling()
        first = await begun(doubling, sharing.run("a", 1, checked, Journey()))
        waiting = asyncio.ensure_future(sharing.run("b", 2, checked, Journey()))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(asyncio.to_thread(sharing.scheduler.close))
        await asyncio.to_thread(begun_closing, sharing.scheduler)
        doubling.gate.set()
        await closing
        return await asyncio.gather(first, waiting, return_exceptions=True)

    done, dropped = asyncio.run(play())
    assert done == 2
    assert isinstance(dropped, InferenceFailed)


def test_a_job_is_let_go_of_when_it_is_done_or_was_cancelled(sharing: Sharing) -> None:
    class Job:
        """Can be watched."""

    begun, gate = threading.Event(), threading.Event()

    def work(jobs: Sequence[Job]) -> list[None]:
        begun.set()
        assert gate.wait(10)
        return [None] * len(jobs)

    sharing.work = work
    jobs = [Job() for _ in range(4)]
    watched = WeakSet(jobs)

    async def play() -> None:
        first, *others = [asyncio.ensure_future(sharing.run("a", each, _nothing, Journey())) for each in jobs]
        await asyncio.to_thread(begun.wait, 10)
        others[0].cancel()
        gate.set()
        await asyncio.gather(first, *others, return_exceptions=True)

    asyncio.run(play())
    sharing.scheduler.close()
    jobs.clear()
    gc.collect()
    assert not watched


def test_what_is_cancelled_is_not_done(sharing: Sharing) -> None:
    async def scenario(doubling: Doubling, run: Run) -> None:
        first = await begun(doubling, run("a", 0))
        left, kept = asyncio.ensure_future(run("a", 1)), asyncio.ensure_future(run("a", 2))
        await asyncio.sleep(0)
        left.cancel()
        with suppress(asyncio.CancelledError):
            await left
        doubling.gate.set()
        assert (await first, await kept) == (0, 4)

    assert played(sharing, scenario).calls == [[0], [2]]


def test_waiting_counts_as_queueing(sharing: Sharing) -> None:
    journey = Journey()
    assert asyncio.run(sharing.run("a", 1, lambda _, share: share, journey)) == 1
    assert journey.seconds["queue"] > 0
    assert journey.total() == pytest.approx(journey.seconds["queue"])


def test_work_that_begins_at_once_makes_no_queueing_below_zero(
    sharing: Sharing, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    notify = sharing.scheduler._changed.notify

    def interrupted() -> None:
        """The caller goes on only in the middle of the work."""
        notify()
        sharing.scheduler._changed.release()
        assert begun.wait(10)
        time.sleep(0.02)
        sharing.scheduler._changed.acquire()

    def work(jobs: Sequence[Journey]) -> list[None]:
        with jobs[0].timed("retrieve"):
            begun.set()
            time.sleep(0.04)
        return [None]

    sharing.work, journey = work, Journey()
    with monkeypatch.context() as patched:
        patched.setattr(sharing.scheduler._changed, "notify", interrupted)
        asyncio.run(sharing.run("a", journey, _nothing, journey))
    assert journey.seconds["retrieve"] > 0
    assert journey.seconds["queue"] >= 0


def test_waiting_for_the_others_counts_as_queueing(sharing: Sharing) -> None:
    def work(jobs: Sequence[Journey]) -> list[None]:
        for journey in jobs:
            with journey.timed("score"):
                time.sleep(0.02)
        return [None] * len(jobs)

    sharing.work, own = work, [Journey() for _ in range(3)]
    gate = threading.Event()

    async def play() -> float:
        busy = asyncio.ensure_future(sharing.run("b", Journey(), lambda *_: gate.wait(10), Journey()))
        began = time.perf_counter()
        waiting = asyncio.gather(*(sharing.run("a", journey, _nothing, journey) for journey in own))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(waiting, busy)
        return time.perf_counter() - began

    took = asyncio.run(play())
    for journey in own:
        assert sum(each.seconds["score"] for each in own) <= journey.total() <= took
