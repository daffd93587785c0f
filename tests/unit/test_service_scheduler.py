"""The model's thread: batches that grow with the load, nobody starved, no failure but one's own."""

import asyncio
import gc
import math
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
import pytest
from waiting import until

from polyrank.service.errors import DeadlineExceeded, InferenceFailed, TimeTooShort
from polyrank.service.observe.labels import LANES, Lane
from polyrank.service.observe.metrics import Metrics
from polyrank.service.scheduling import scheduler as module
from polyrank.service.scheduling.forwards import is_finite
from polyrank.service.scheduling.scheduler import Scheduler, Work, WorkOutputs


class Doubler:
    """A model that notes its batches, and is held back until the test lets it go on."""

    def __init__(self) -> None:
        self.batches: list[list[float]] = []
        self.entered, self.opened = threading.Event(), threading.Event()
        self.opened.set()

    def __call__(self, sequences: list[float]) -> list[float]:
        self.batches.append(list(sequences))
        self.entered.set()
        assert self.opened.wait(10)
        if any(each < 0 for each in sequences):
            raise ValueError("a negative one")
        return [2 * each for each in sequences]


class Bench:
    """A scheduler, its clock and a model in one test."""

    def __init__(self, budget: int = 100) -> None:
        self.now = 100.0
        self.metrics = Metrics()
        self.scheduler = Scheduler("model", LANES, budget, self.metrics, is_sound=is_finite, clock=lambda: self.now)
        self.model = Doubler()

    def takes(self, seconds: float) -> Callable[[list[Any]], list[Any]]:
        """A model that takes so long for each sequence."""

        def run(sequences: list[Any]) -> list[Any]:
            self.now += seconds * len(sequences)
            return list(np.zeros(len(sequences)))

        return run

    def waited(self) -> float:
        """Seconds of all waits for contexts."""
        value = self.metrics.registry.get_sample_value("polyrank_queue_wait_seconds_sum", {"lane": "context"})
        return value or 0.0

    def ask(self, *values: float, **given: Any) -> "asyncio.Task[WorkOutputs]":
        return asyncio.create_task(self.run(values, **given))

    async def run(
        self,
        values: Sequence[float],
        lengths: Sequence[int] | None = None,
        lane: Lane = "context",
        deadline: float = math.inf,
        key: Any = None,
        forward: Any = None,
        **given: Any,
    ) -> WorkOutputs:
        work = Work(forward or self.model, values, lengths or [10] * len(values), key, **given)
        return await self.scheduler.run(lane, work, deadline)

    async def hold(self, work: Work | None = None) -> "asyncio.Task[WorkOutputs]":
        """Let a first batch begin that does not end until `release`."""
        self.model.opened.clear()
        self.model.entered.clear()
        work = work or Work(self.model, [0.5], [10])
        held = asyncio.create_task(self.scheduler.run("context", work, math.inf))
        assert await asyncio.to_thread(self.model.entered.wait, 10)
        return held

    def release(self) -> None:
        self.model.opened.set()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.release()
    made.scheduler.close()


@asynccontextmanager
async def behind_a_batch(bench: Bench) -> AsyncIterator[None]:
    """What is asked for here waits while a batch runs, until `bench.release()`, or the end."""
    held = await bench.hold()
    yield
    bench.release()
    await held


async def settled(*tasks: "asyncio.Task[WorkOutputs]") -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


async def a_moment() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def queued(bench: Bench, ask: Callable[[], "list[asyncio.Task[WorkOutputs]]"], later: float = 0.0) -> list[Any]:
    """What comes of works that wait while a batch runs; it ends so many seconds later."""
    async with behind_a_batch(bench):
        tasks = ask()
        await a_moment()
        bench.now += later
        bench.release()
        return await settled(*tasks)


async def test_outputs_come_back_in_the_order_of_the_sequences(bench: Bench) -> None:
    assert (await bench.run([3, 1, 2], lengths=[5, 50, 20])).outputs == [6, 2, 4]
    assert (await bench.run([])).outputs == []


async def test_what_comes_while_a_batch_runs_is_the_next_batch_and_no_timer_delays_the_first(bench: Bench) -> None:
    found = await queued(bench, lambda: [bench.ask(n) for n in range(1, 6)])
    assert [done.outputs for done in found] == [[2], [4], [6], [8], [10]]
    assert [sorted(each) for each in bench.model.batches] == [[0.5], [1, 2, 3, 4, 5]]


async def test_a_batch_stays_within_the_budget_and_what_is_longer_goes_alone(bench: Bench) -> None:
    found = await queued(bench, lambda: [bench.ask(n, lengths=[1000 if n == 1 else 40]) for n in range(1, 6)])
    assert [done.outputs for done in found] == [[2], [4], [6], [8], [10]]
    assert [sorted(each) for each in bench.model.batches[1:]] == [[1], [2, 3], [4, 5]]


async def test_without_a_budget_each_sequence_goes_alone() -> None:
    bench = Bench(budget=0)
    assert (await bench.run([1, 2, 3])).outputs == [2, 4, 6]
    assert sorted(map(len, bench.model.batches)) == [1, 1, 1]
    bench.scheduler.close()


async def test_a_prediction_counts_what_is_before_and_others_turns(bench: Bench) -> None:
    await bench.run([0] * 10, lane="pair", forward=bench.takes(0.0164))  # a millisecond a token, with overhead

    async with behind_a_batch(bench):
        alone = bench.scheduler.predict("pair", [10] * 10)
        updating = bench.ask(*range(1000), lane="candidate")
        await a_moment()
        beside = bench.scheduler.predict("pair", [10] * 10)
        pairs = bench.ask(*range(50), lane="pair")
        await a_moment()
        behind = bench.scheduler.predict("pair", [10] * 10)
        for each in (updating, pairs):
            each.cancel()
        await a_moment()
        again = bench.scheduler.predict("pair", [10] * 10)
    assert alone == again
    assert alone < beside < 3 * alone
    assert behind > beside + 0.4


async def test_the_wait_of_those_who_leave_is_counted_too(bench: Bench) -> None:
    async with behind_a_batch(bench):
        gone, late = bench.ask(1), bench.ask(2, deadline=bench.now + 0.05)
        await a_moment()
        bench.now += 0.06
        gone.cancel()
        bench.release()
        await settled(gone, late)
    assert bench.waited() == pytest.approx(0.12)


async def test_a_cross_encoder_that_fails_leaves_the_rest_ready(bench: Bench) -> None:
    for _ in range(2 * module.MOST_FAILURES):
        with pytest.raises(InferenceFailed):
            await bench.run([-1], lane="pair")
    assert bench.scheduler.failed is None


async def test_a_model_that_gives_nothing_but_nonsense_has_failed(bench: Bench) -> None:
    for _ in range(module.MOST_FAILURES):
        with pytest.raises(InferenceFailed):
            await bench.run([math.nan], lane="candidate")
        assert (await bench.run([1])).outputs == [2], "the other lane works"
    assert bench.scheduler.failed is not None


async def test_an_old_model_is_let_go_of(bench: Bench) -> None:
    await bench.run([1], forward=(short_lived := Doubler()))
    gone = weakref.ref(short_lived)
    del short_lived
    until(lambda: gone() is None)


async def test_what_failed_is_let_go_of_at_once(bench: Bench) -> None:
    """Its error holds the frames that it came through, so it must not be held by one of them."""

    class Text(float):
        """Can be watched."""

    gc.disable()
    try:
        text = Text(math.nan)
        gone = weakref.ref(text)
        with suppress(InferenceFailed):
            await bench.run([text])
        bench.model.batches.clear()
        del text
        await asyncio.to_thread(until, lambda: gone() is None)
    finally:
        gc.enable()


async def test_lanes_take_turns(bench: Bench) -> None:
    """A context does not wait for all the pairs that came before it."""

    await queued(bench, lambda: [
        bench.ask(*range(1, 31), lane="pair"),
        bench.ask(*range(101, 121), lane="candidate"),
        bench.ask(999),
    ])  # fmt: skip
    firsts = [each[0] for each in bench.model.batches[1:]]
    assert firsts.index(999) <= 2, firsts
    kinds = ["pair" if each < 100 else "candidate" for each in firsts if each != 999]
    assert kinds == ["candidate", "pair"] * 2 + ["pair"]


# Also where a long request's texts are much longer than a short one's: no batch that begins with them takes both.
@pytest.mark.parametrize(("large", "length", "small", "within"), [(1, 10, 10, 3), (1, 50, 2, 3), (10, 10, 10, 1)])
async def test_a_small_request_passes_large_ones(
    bench: Bench, large: int, length: int, small: int, within: int
) -> None:
    async with behind_a_batch(bench):
        tasks = [bench.ask(*range(1, 41), lengths=[length] * 40) for _ in range(large)]
        await a_moment()
        tasks.append(bench.ask(100, 101, lengths=[small, small]))
        await a_moment()
    await settled(*tasks)
    assert {100, 101} <= {each for batch in bench.model.batches[1 : 1 + within] for each in batch}


async def test_large_requests_get_a_batch_of_four_however_many_small_ones_wait(bench: Bench) -> None:
    await queued(bench, lambda: [
        *(bench.ask(n, lengths=[100]) for n in range(101, 121)),
        bench.ask(*range(1, 41), lengths=[50] * 40),
    ])  # fmt: skip
    is_large = ["L" if each[0] <= 40 else "S" for each in bench.model.batches[1:]]
    assert "SSSLSSSLSSSLSSSL" in "".join(is_large), is_large


async def test_what_is_asked_for_twice_at_the_same_time_is_done_once(bench: Bench) -> None:
    async with behind_a_batch(bench):
        tasks = [bench.ask(7, key="seven"), bench.ask(7, key="seven"), bench.ask(8, key="eight")]
        await a_moment()
        tasks[0].cancel()  # the other one still waits
        await a_moment()
    first, second, third = await settled(*tasks)
    assert isinstance(first, asyncio.CancelledError)
    assert (second.outputs, third.outputs) == ([14], [16])
    assert sorted(bench.model.batches[1]) == [7, 8]
    assert (await bench.run([7], key="seven")).outputs == [14], "what is done is not remembered"
    assert len(bench.model.batches) == 3


async def test_what_nobody_waits_for_any_more_costs_nothing(bench: Bench) -> None:
    await bench.run([0], forward=bench.takes(0.1))
    alone = bench.scheduler.predict("context", [10])
    async with behind_a_batch(bench):
        shared = [bench.ask(7, key="seven"), bench.ask(7, key="seven")]
        gone, stays = bench.ask(*range(1, 50)), bench.ask(100)
        await a_moment()
        for each in (*shared, gone):
            each.cancel()
        await a_moment()
    assert (await stays).outputs == [200]
    assert bench.model.batches[1:] == [[100]]
    for _ in range(4):  # by the clock of the test the other batches took no time
        await bench.run([0], forward=bench.takes(0.1))
    assert bench.scheduler.predict("context", [10]) == pytest.approx(alone), "nothing is before it"


async def test_what_is_out_of_time_does_not_begin(bench: Bench) -> None:
    late, in_time = await queued(bench, lambda: [bench.ask(1, deadline=bench.now + 0.02), bench.ask(2)], later=0.05)
    assert isinstance(late, DeadlineExceeded)
    assert in_time.outputs == [4]
    assert bench.model.batches[1:] == [[2]]


async def test_outputs_are_handed_over_as_they_are_made(bench: Bench) -> None:
    made: dict[int, float] = {}

    def take(positions: list[int], outputs: list[float]) -> None:
        made.update(zip(positions, outputs, strict=True))

    failing: list[int] = []
    await queued(bench, lambda: [
        bench.ask(1, 2, on_batch=take),
        bench.ask(3, math.nan, on_batch=lambda at, _: failing.extend(at)),
    ])  # fmt: skip
    assert (made, failing) == ({0: 2.0, 1: 4.0}, [0]), "what fails is not handed over"


async def test_outputs_are_handed_over_even_if_everybody_left_while_they_were_made(bench: Bench) -> None:
    made: list[int] = []
    collects = Work(bench.model, range(30), [10] * 30, on_batch=lambda positions, _: made.extend(positions))
    left = await bench.hold(collects)
    left.cancel()
    await a_moment()
    bench.release()
    await settled(left)
    await bench.run([1])
    assert sorted(made) == list(range(10)), "the batch that ran, and no other"


SECONDS = 0.01  # of a sequence of 10 tokens: ten of them fill a batch


async def measured(bench: Bench, lane: Lane = "candidate", sequences: int = 80) -> None:
    """Let full batches run, so that the speed of a lane is known."""
    await bench.run([0] * sequences, lane=lane, forward=bench.takes(SECONDS))


async def outcome(bench: Bench, sequences: int, seconds: float, lane: Lane = "candidate", **given: Any) -> Any:
    """What comes of a work that has so much time."""
    given |= {"lane": lane, "deadline": bench.now + seconds, "forward": bench.takes(SECONDS)}
    [told] = await settled(bench.ask(*[0] * sequences, **given))
    return told


@pytest.mark.parametrize("lane", ["candidate", "pair"])
async def test_what_cannot_be_done_in_time_is_refused_at_once_and_told_what_fits(bench: Bench, lane: Lane) -> None:
    await measured(bench, lane)
    before = bench.now
    refused = await outcome(bench, 1000, seconds=2.0, lane=lane)
    assert isinstance(refused, TimeTooShort)
    assert bench.now == before, "nothing of it was run"
    assert 90 < refused.fitting < 110, "half of what fits: others come in between"
    assert str(refused.fitting) in str(refused)
    assert isinstance(await outcome(bench, refused.fitting, seconds=2.0, lane=lane), WorkOutputs)


async def test_each_refusal_in_a_row_tells_the_same_number(bench: Bench) -> None:
    await measured(bench)
    told = [await outcome(bench, 10_000, seconds=2.0) for _ in range(6)]
    assert [type(each) for each in told] == [TimeTooShort] * 6
    assert len({each.fitting for each in told}) == 1, "doubts say what is tried, not what fits"
    assert isinstance(await outcome(bench, told[-1].fitting, seconds=2.0), WorkOutputs)


async def test_nothing_is_refused_before_the_speed_is_known_but_hopeless_work_ends_early(bench: Bench) -> None:
    before = bench.now
    assert isinstance(await outcome(bench, 1000, seconds=2.0), TimeTooShort)
    assert bench.now - before == pytest.approx(0.8), "after the batches that are needed to tell"


async def test_small_batches_do_not_tell_how_long_large_work_takes(bench: Bench) -> None:
    for _ in range(50):
        await bench.run([0], lane="candidate", forward=bench.takes(1.0))
    assert isinstance(await outcome(bench, 150, seconds=2.0), WorkOutputs)


async def test_a_prediction_that_was_wrong_heals(bench: Bench) -> None:
    await bench.run([0] * 200, lane="candidate", forward=bench.takes(1.0))  # a hundred times too slow
    told = [await outcome(bench, 150, seconds=2.0) for _ in range(12)]
    refusals = sum(isinstance(each, TimeTooShort) for each in told)
    assert 0 < refusals < 12
    assert [type(each) for each in told] == [TimeTooShort] * refusals + [WorkOutputs] * (12 - refusals)


async def test_what_only_waited_too_long_is_not_told_to_send_less(bench: Bench) -> None:
    await measured(bench)
    [late] = await queued(bench, lambda: [bench.ask(*[0] * 80, lane="candidate", deadline=bench.now + 2.0)], later=1.9)
    assert isinstance(late, DeadlineExceeded)
    assert len(bench.model.batches) == 1, "it did not begin"


async def test_one_that_fails_fails_alone(bench: Bench) -> None:
    one, negative, nan, three = await queued(
        bench, lambda: [bench.ask(1), bench.ask(-1), bench.ask(2, math.nan), bench.ask(3)]
    )
    assert (one.outputs, three.outputs) == ([2], [6])
    assert isinstance(negative, InferenceFailed)
    assert isinstance(nan, InferenceFailed)
    assert "not finite" in str(nan)
    assert bench.scheduler.failed is None


async def test_after_many_failures_it_says_so_until_something_succeeds(bench: Bench) -> None:
    for n in range(module.MOST_FAILURES):
        assert bench.scheduler.failed is None, n
        with pytest.raises(InferenceFailed):
            await bench.run([-1, -2])
    assert bench.scheduler.failed is not None
    assert not bench.scheduler.stuck
    assert (await bench.run([1])).outputs == [2]
    assert bench.scheduler.failed is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_when_the_thread_ends_everybody_is_told(bench: Bench) -> None:
    def end(_: list[Any]) -> list[Any]:
        raise SystemExit("out of luck")

    found = await queued(bench, lambda: [bench.ask(1, forward=end, lane="candidate"), bench.ask(2, lane="pair")])
    assert [type(each) for each in found] == [InferenceFailed] * 2
    until(lambda: bench.scheduler.stuck)
    assert "out of luck" in (bench.scheduler.failed or "")
    with pytest.raises(InferenceFailed, match="out of luck"):
        await bench.run([1])


async def test_a_thread_that_is_silent_for_too_long_is_stuck(bench: Bench) -> None:
    told = []
    async with behind_a_batch(bench):
        for seconds in (module.STUCK_SECONDS - 1, 2):
            bench.now += seconds
            told.append(bench.scheduler.stuck)
    assert told == [False, True]


async def test_sequences_of_two_models_never_meet(bench: Bench) -> None:
    other = Doubler()

    found = await queued(bench, lambda: [
        bench.ask(1), bench.ask(2, forward=other), bench.ask(3), bench.ask(1, key="x", forward=other),
        bench.ask(1, key="x"),
    ])  # fmt: skip
    assert [done.outputs for done in found] == [[2], [4], [6], [2], [2]]
    assert sorted(each for batch in other.batches for each in batch) == [1, 2]
    assert sorted(each for batch in bench.model.batches for each in batch) == [0.5, 1, 1, 3]


async def test_closing_finishes_what_runs_and_tells_what_waits(bench: Bench) -> None:
    held, waiting = await bench.hold(), bench.ask(1)
    await a_moment()
    closing = asyncio.create_task(asyncio.to_thread(bench.scheduler.close))
    late = bench.ask(2)
    await a_moment()
    while not late.done():  # it is let in until the closing has begun
        late.cancel()
        await a_moment()
        late = bench.ask(2)
        await a_moment()
    assert isinstance(late.exception(), InferenceFailed)
    bench.release()
    await closing
    held, waiting = await settled(held, waiting)
    assert held.outputs == [1.0]
    assert isinstance(waiting, InferenceFailed)


async def test_the_wait_is_told_and_counted(bench: Bench) -> None:
    [done] = await queued(bench, lambda: [bench.ask(1)], later=0.05)
    assert done.waited == pytest.approx(0.05)
    assert bench.waited() == pytest.approx(0.05)
    registry = bench.metrics.registry
    assert registry.get_sample_value("polyrank_batch_size_count", {"lane": "context"}) == 2


@pytest.mark.parametrize(("seconds", "of_the_other"), [(0.2, 0.0), (0.5, 0.5)])
async def test_who_is_cancelled_is_told_how_long_the_thread_has_worked_for_it(
    bench: Bench, seconds: float, of_the_other: float
) -> None:
    """And not how long it worked for others, unless it hung there."""
    runs, waits = Work(bench.model, [1.0], [10]), Work(bench.model, [2.0], [10])
    running = await bench.hold(runs)
    waiting = asyncio.create_task(bench.scheduler.run("context", waits, math.inf))
    await a_moment()
    bench.now += seconds
    for each in (running, waiting):
        each.cancel()
    assert [type(each) for each in await settled(running, waiting)] == [asyncio.CancelledError] * 2
    assert [runs.had, waits.had] == [pytest.approx(seconds), pytest.approx(of_the_other)]


async def test_who_is_cancelled_while_its_batch_ends_is_cancelled(bench: Bench) -> None:
    class Ending(Work):
        """Its batch ends when somebody has looked whether it runs."""

        @property
        def runs_since(self) -> float | None:
            found, self._since = self._since, None
            return found

        @runs_since.setter
        def runs_since(self, since: float | None) -> None:
            self._since = since

    running = await bench.hold(Ending(bench.model, [1.0], [10]))
    running.cancel()
    assert [type(each) for each in await settled(running)] == [asyncio.CancelledError]


async def test_a_batch_that_fails_at_once_does_not_make_work_look_cheap(bench: Bench) -> None:
    await bench.run(range(200), lane="pair", forward=bench.takes(0.001))
    before = bench.scheduler.predict("pair", [10] * 200)

    def fail(_: list[Any]) -> list[Any]:
        bench.now += 1e-6
        raise ValueError("no")

    with pytest.raises(InferenceFailed):
        await bench.run(range(10), lane="pair", forward=fail)
    assert bench.scheduler.predict("pair", [10] * 200) == before


async def test_what_work_costs_is_learnt(bench: Bench) -> None:
    assert bench.scheduler.predict("pair", [10]) == 0, "nothing is known yet"
    await bench.run(range(200), lane="pair", forward=bench.takes(0.001))
    few, many = bench.scheduler.predict("pair", [10]), bench.scheduler.predict("pair", [10] * 200)
    assert few < many
    assert 0.1 < many < 2
    for _ in range(100):
        bench.scheduler.doubt("pair")
    assert bench.scheduler.predict("pair", [10] * 200) < 0.1 * many
