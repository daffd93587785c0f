"""The model's thread: one at a time, a bounded queue, nothing done for nobody."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from service.errors import ClientGone, DeadlineExceeded, Overloaded
from service.worker import ModelThread


@pytest.fixture
def thread() -> Iterator[ModelThread]:
    made = ModelThread(max_queue=3)
    yield made
    made.close()


async def never() -> None:
    await asyncio.Event().wait()


def later(seconds: float) -> float:
    return time.monotonic() + seconds


class Gate:
    """Work that holds the thread until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.entered.set()
        assert self.opened.wait(10)
        return "through"


async def hold(thread: ModelThread, gate: Gate) -> "asyncio.Task[tuple[str, float]]":
    task = asyncio.create_task(thread.run(gate, later(60), never))
    await asyncio.to_thread(gate.entered.wait, 10)
    return task


def in_queue_behind(
    thread: ModelThread, deadline: float, gone: Callable[[], Awaitable[None]]
) -> tuple[BaseException | None, list[str]]:
    """What becomes of work that waits behind other work that does not end meanwhile."""
    done: list[str] = []

    async def main() -> BaseException | None:
        gate = Gate()
        first = await hold(thread, gate)
        try:
            await thread.run(lambda: done.append("worked"), deadline, gone)
        except (DeadlineExceeded, ClientGone) as error:
            return error
        finally:
            gate.opened.set()
            assert (await first)[0] == "through"
            await thread.run(lambda: None, later(60), never)  # whatever was still queued has had its turn
        return None

    return asyncio.run(main()), done


def test_results_and_errors_come_back(thread: ModelThread) -> None:
    async def main() -> None:
        result, waited = await thread.run(lambda: 7, later(5), never)
        assert (result, waited < 5) == (7, True)
        with pytest.raises(ZeroDivisionError):
            await thread.run(lambda: 1 // 0, later(5), never)
        assert (await thread.run(lambda: 8, later(5), never))[0] == 8

    asyncio.run(main())


def test_the_wait_is_measured(thread: ModelThread) -> None:
    async def main() -> None:
        runs = [thread.run(work, later(5), never) for work in (lambda: time.sleep(0.05), lambda: None)]
        first, second = await asyncio.gather(*runs)
        assert first[1] < 0.04 <= second[1]

    asyncio.run(main())


def test_a_deadline_in_the_queue_is_kept_at_once_and_costs_no_work(thread: ModelThread) -> None:
    error, done = in_queue_behind(thread, later(0.05), never)
    assert isinstance(error, DeadlineExceeded)
    assert done == []


def test_a_deadline_that_is_over_on_arrival_costs_no_work(thread: ModelThread) -> None:
    error, done = in_queue_behind(thread, later(-1), never)
    assert isinstance(error, DeadlineExceeded)
    assert done == []


def test_a_caller_who_hangs_up_in_the_queue_is_forgotten(thread: ModelThread) -> None:
    async def soon() -> None:
        await asyncio.sleep(0.02)

    error, done = in_queue_behind(thread, later(60), soon)
    assert isinstance(error, ClientGone)
    assert done == []


def test_work_that_has_begun_is_answered_even_after_the_deadline(thread: ModelThread) -> None:
    async def main() -> str:
        gate = Gate()
        task = asyncio.create_task(thread.run(gate, later(0.05), never))
        await asyncio.sleep(0.1)
        gate.opened.set()
        return (await task)[0]

    assert asyncio.run(main()) == "through"


def test_a_full_queue_is_refused_and_recovers(thread: ModelThread) -> None:
    async def main() -> None:
        gate = Gate()
        tasks = [await hold(thread, gate)]
        tasks += [asyncio.create_task(thread.run(lambda: "later", later(60), never)) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks), "one runs, and three may wait"
        with pytest.raises(Overloaded, match="3 requests are waiting already"):
            await thread.run(lambda: "never", later(60), never)
        gate.opened.set()
        assert [result for result, _ in await asyncio.gather(*tasks)] == ["through", "later", "later", "later"]
        assert (await thread.run(lambda: "again", later(60), never))[0] == "again"

    asyncio.run(main())


def test_a_cancelled_caller_leaves_no_work_behind(thread: ModelThread) -> None:
    done: list[str] = []

    async def main() -> None:
        gate = Gate()
        first = await hold(thread, gate)
        waiting = asyncio.create_task(thread.run(lambda: done.append("worked"), later(60), never))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.opened.set()
        await first
        await thread.run(lambda: None, later(60), never)

    asyncio.run(main())
    assert done == []
