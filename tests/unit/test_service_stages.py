"""The thread that does steps of many works: whose turn it is, and what becomes of those that nobody waits for."""

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
from service_fakes import running

from polyrank.model.search.scan import Status
from polyrank.service.ranking import retrieval
from polyrank.service.ranking.engine import Pool
from polyrank.service.ranking.runtime import Runtime
from polyrank.service.ranking.values import PoolQuery
from polyrank.service.scheduling import stages
from polyrank.service.scheduling.stages import OLDEST_EVERY, FairThread, Journey, lower_priority


class Text:
    """Can be watched."""


class Steps:
    """A thread that is busy until the gate opens, and the names of the steps that it did then."""

    def __init__(self, thread: FairThread) -> None:
        self.thread = thread
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.done: list[str] = []

    async def busy(self) -> "asyncio.Future[None]":
        def wait() -> None:
            self.begun.set()
            assert self.gate.wait(10)

        first = asyncio.ensure_future(self.thread.run(0, 0, wait, Journey()))
        await asyncio.to_thread(self.begun.wait, 10)
        return first

    async def queue(self, name: str, had: int, letters: int) -> "asyncio.Future[None]":
        step = partial(self.done.append, name)
        waiting = asyncio.ensure_future(self.thread.run(had, letters, step, Journey()))
        await asyncio.sleep(0)
        return waiting


@pytest.fixture
def steps() -> Iterator[Steps]:
    made = Steps(FairThread("steps"))
    yield made
    made.gate.set()
    made.thread.close()


async def test_who_had_the_fewest_steps_goes_first_then_who_has_the_fewest_letters_then_who_came_first(
    steps: Steps,
) -> None:
    first = await steps.busy()
    places = [("late", 2, 5), ("long", 0, 90), ("had one", 1, 5), ("few", 0, 30), ("few, too", 0, 30)]
    waiting = [await steps.queue(*place) for place in places]
    steps.gate.set()
    await asyncio.gather(first, *waiting)
    assert steps.done == ["few", "few, too", "long", "had one", "late"]


async def test_no_number_of_small_ones_starves_a_large_one(steps: Steps) -> None:
    first = await steps.busy()
    waiting = [await steps.queue("large", 0, 10**6)]
    waiting += [await steps.queue("small", 0, 1) for _ in range(5 * OLDEST_EVERY)]
    steps.gate.set()
    await asyncio.gather(first, *waiting)
    assert steps.done.index("large") < OLDEST_EVERY


async def test_what_is_cancelled_is_not_done_and_no_other_is_left_for_it(steps: Steps) -> None:
    first = await steps.busy()
    left, kept = await steps.queue("left", 0, 1), await steps.queue("kept", 0, 2)
    left.cancel()
    with suppress(asyncio.CancelledError):
        await left
    steps.gate.set()
    await asyncio.gather(first, kept)
    assert steps.done == ["kept"]


async def test_what_is_cancelled_is_let_go_of_at_once(steps: Steps) -> None:
    first, text = await steps.busy(), Text()
    watched, step = WeakSet([text]), partial(id, text)
    left = asyncio.ensure_future(steps.thread.run(9, 9, step, Journey()))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait([left])
    del text, step, left
    gc.collect()
    assert not watched, "others may go before it for ever"
    steps.gate.set()
    await first


async def test_what_waits_when_the_thread_closes_is_cancelled(steps: Steps) -> None:
    first = await steps.busy()
    waiting = [await steps.queue(f"{had}", had, 1) for had in (3, 2)]
    closing = asyncio.ensure_future(asyncio.to_thread(steps.thread.close))
    await asyncio.sleep(0.01)
    steps.gate.set()
    await asyncio.gather(closing, first)
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in ended] == [asyncio.CancelledError] * 2
    assert steps.done == []


async def test_an_error_is_its_step_s_alone(steps: Steps) -> None:
    with pytest.raises(ZeroDivisionError):
        await steps.thread.run(0, 0, lambda: 1 // 0, Journey())
    await (await steps.queue("next", 0, 0))
    assert steps.done == ["next"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives threads priorities of their own")
def test_a_thread_of_lower_priority_lowers_no_other() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    async def told(thread: FairThread) -> int:
        return await thread.run(0, 0, niceness, Journey())

    lower, usual = FairThread("lower", lower_priority), FairThread("usual")
    try:
        assert asyncio.run(told(lower)) == min(19, niceness() + 10)
        assert asyncio.run(told(usual)) == niceness()
    finally:
        lower.close()
        usual.close()


def test_where_no_priority_can_be_set_the_thread_works_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    with closing(FairThread("lower", lower_priority)) as thread:
        assert asyncio.run(thread.run(0, 0, lambda: 7, Journey())) == 7


async def _failing(*_: Any) -> None:
    raise ZeroDivisionError


async def _side_by_side() -> None:
    async def other(_: Journey) -> None:
        await asyncio.sleep(60)

    await Journey().side_by_side(_failing, other)


async def _parts() -> None:
    parts = [SimpleNamespace(is_here=True, read=_failing) for _ in range(2)]
    await Pool(None, SimpleNamespace(parts=parts), Journey()).texts(["a text"])


async def _on_a_thread() -> None:
    def fails() -> None:
        raise ZeroDivisionError

    with closing(stages.Threads("test", 1)) as threads:
        await threads.run(fails, Journey())


async def _in_a_batch() -> None:
    held = Text()
    _BATCHES.add(held)
    part = SimpleNamespace(vectors=SimpleNamespace(are_here=True), held=held)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retrieval, "search", lambda searches, _threads: [SimpleNamespace() for _ in searches])
        patch.setattr(retrieval, "part_hits", lambda _search, _found: 1 / 0)
        search = SimpleNamespace(part=part)
        del held, part
        raise retrieval.SearchBatch("a")([search])[0]  # without a name here


_BATCHES: WeakSet[Text] = WeakSet()


@pytest.mark.parametrize("work", [_side_by_side, _parts, _on_a_thread, _in_a_batch])
def test_what_failed_lets_go_of_its_request_before_the_collector_runs(work: Callable[[], Awaitable[None]]) -> None:
    watched: WeakSet[Text] = WeakSet()

    async def request() -> None:
        text = Text()
        watched.add(text)
        await work()

    async def play() -> None:
        with suppress(ZeroDivisionError):
            await request()
        for _ in range(5):  # until those are over that were cancelled
            await asyncio.sleep(0)
        assert not watched
        assert not _BATCHES

    gc.disable()
    try:
        asyncio.run(play())
    finally:
        gc.enable()


def test_what_is_no_stage_counts_as_queueing(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(stages, "time", SimpleNamespace(perf_counter=lambda: now))
    journey = Journey()
    with journey.queued():
        now += 2.0
        with journey.timed("score"):
            now += 3.0
    assert (journey.seconds["queue"], journey.seconds["score"], journey.total()) == (2.0, 3.0, 5.0)
    others = [journey.beside() for _ in range(2)]
    for seconds, other in enumerate(others, 1):
        other.seconds["fetch"] += seconds
    journey.add_longest(others)
    assert (journey.seconds["fetch"], journey.total()) == (2.0, 7.0), "the longest of those at the same time"


class Built:
    """A generation, of which only its identity counts."""

    words = None


BUILT = Built()


async def sought(runtime: Runtime, journey: Journey) -> None:
    """Search a part, together with others that do; of what it finds only times count."""
    part: Any = SimpleNamespace(
        snapshot=SimpleNamespace(generation=BUILT), scan=SimpleNamespace(status=Status("gpu", "it is a test")),
        scans_all=True, vectors=SimpleNamespace(are_here=True),
    )  # fmt: skip

    async def encoded(_: Journey) -> Any:
        return SimpleNamespace(encoding=SimpleNamespace(codes=np.zeros((1, 2), np.float32)))

    context: Any = SimpleNamespace(encoded=encoded)
    await retrieval.LocalPart.search(part, runtime, PoolQuery(needed=10, retrieve_k=200), context, journey)


def test_waiting_for_the_other_searches_of_a_batch_counts_as_queueing(monkeypatch: pytest.MonkeyPatch) -> None:
    own, begun, gate, batches = [Journey() for _ in range(3)], threading.Event(), threading.Event(), list[int]()

    def search(searches: Sequence[Any], _threads: int | None) -> list[None]:
        begun.set()
        assert gate.wait(10)
        batches.append(len(searches))
        for each in searches:
            with each.journey.timed("score"):
                time.sleep(0.02)
        return [None] * len(searches)

    async def play() -> float:
        with running() as runtime:
            busy = asyncio.ensure_future(sought(runtime, Journey()))
            await asyncio.to_thread(begun.wait, 10)
            began = time.perf_counter()
            waiting = asyncio.gather(*(sought(runtime, each) for each in own))
            await asyncio.sleep(0)
            gate.set()
            await asyncio.gather(busy, waiting)
            return time.perf_counter() - began

    monkeypatch.setattr(retrieval, "search", search)
    monkeypatch.setattr(retrieval, "part_hits", lambda *_: SimpleNamespace(plan="scan"))
    took = asyncio.run(play())
    assert batches == [1, 3]
    for each in own:
        assert sum(other.seconds["score"] for other in own) <= each.total() <= took
