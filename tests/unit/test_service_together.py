"""Jobs of equal keys are done together, fail alone and can be taken back."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest

from polyrank.service.ranking.threads import Threads
from polyrank.service.ranking.together import Together
from polyrank.service.ranking.values import Stages

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


Run = Callable[[str, int], Awaitable[int]]


def played(scenario: Callable[[Doubling, Run], Awaitable[None]]) -> Doubling:
    """Play a scenario while one thread works."""
    doubling, threads = Doubling(), Threads("search", 1)
    together = Together(threads, doubling, MOST)

    async def play() -> None:
        await asyncio.wait_for(scenario(doubling, lambda key, job: together.run(key, job, Stages())), 20)
        assert not together._waiting

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
    doubling, threads, stages = Doubling(), Threads("search", 1), Stages()
    doubling.gate.set()
    try:
        assert asyncio.run(Together(threads, doubling, MOST).run("a", 1, stages)) == 2
    finally:
        threads.close()
    assert stages.seconds["queue"] > 0
    assert stages.total() == pytest.approx(stages.seconds["queue"])


def test_waiting_for_the_others_counts_as_queueing() -> None:
    def work(jobs: Sequence[Stages]) -> list[None]:
        for stages in jobs:
            with stages.timed("score"):
                time.sleep(0.02)
        return [None] * len(jobs)

    threads, own = Threads("search", 1), [Stages() for _ in range(3)]
    gate = threading.Event()

    async def play() -> float:
        together = Together(threads, work, MOST)
        busy = asyncio.ensure_future(threads.run(lambda: gate.wait(10)))
        began = time.perf_counter()
        waiting = asyncio.gather(*(together.run("a", stages, stages) for stages in own))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(waiting, busy)
        return time.perf_counter() - began

    try:
        took = asyncio.run(play())
    finally:
        threads.close()
    for stages in own:
        assert sum(each.seconds["score"] for each in own) <= stages.total() <= took
