"""Which replica is asked, and what if it is slow or gone. Time passes only while all wait."""

import asyncio
import math
from typing import Any

import pytest
from simulated_time import SimulatedTime

from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking.parts import PartMissing
from polyrank.service.scale import replica_choice as module
from polyrank.service.scale.calls import LATE, ReplicaLost, Reply
from polyrank.service.scale.replica_choice import ReplicaChoice


class Shard:
    """Answers with its own name after so many seconds; or fails, where there is an error or it is lost."""

    def __init__(self, name: str, seconds: float = 0.0, error: Reply | None = None, lost: bool = False) -> None:
        self.name, self.seconds, self.error, self.lost = name, seconds, error, lost
        self.asked: list[tuple[Any, ...]] = []
        self.meets: asyncio.Barrier | None = None  # answers when all others that wait there do

    async def ask(self, method: str, arguments: tuple[Any, ...], left_s: float) -> Reply:
        self.asked.append((method, arguments, left_s))
        if self.lost:
            raise ReplicaLost("the process ended")
        await asyncio.sleep(self.seconds)
        if self.meets is not None:
            await self.meets.wait()
        return self.error or Reply(self.name)

    def control(self, method: str, arguments: tuple[Any, ...], within_s: float) -> Reply:
        raise NotImplementedError


class Watched(Metrics):
    def __init__(self) -> None:
        super().__init__()
        self.results: list[str] = []
        self.hedges: list[bool] = []
        self.struck: dict[str, int] = {}

    def observe_shard(self, part: str, seconds: float) -> None:
        pass

    def count_shard_call(self, part: str, result: str) -> None:
        self.results.append(result)

    def count_hedge(self, won: bool) -> None:
        self.hedges.append(won)

    def show_struck(self, part: str, replicas: int) -> None:
        self.struck[part] = replicas


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": SimulatedTime().loop}


def now() -> float:
    return asyncio.get_running_loop().time()


def choice(watched: Watched, *shards: Shard, hedge_s: float = 0.02) -> ReplicaChoice:
    made = ReplicaChoice(watched, hedge_s, now)
    made.serve_with({"p": shards})
    return made


async def ask(made: ReplicaChoice, seconds: float = math.inf, value: int = 7) -> Any:
    return await made.ask("p", "search", lambda: (value,), now() + seconds)


async def test_the_method_its_arguments_and_the_time_left_are_passed_on(watched: Watched) -> None:
    shard = Shard("a")
    assert await ask(choice(watched, shard), 5.0) == "a"
    assert shard.asked == [("search", (7,), 5.0)]
    assert (watched.results, watched.hedges) == (["ok"], [])


async def test_who_has_fewest_calls_is_asked(watched: Watched) -> None:
    shards = [Shard("a", 0.01), Shard("b", 0.01)]
    made = choice(watched, *shards, hedge_s=5.0)
    await asyncio.gather(*(ask(made) for _ in range(6)))
    assert [len(each.asked) for each in shards] == [3, 3]


async def test_hedges_that_cross_do_not_leave_a_part_without_replicas(watched: Watched) -> None:
    """Each of two replicas is slow once, and overtaken by the other one."""
    shards = [Shard("a"), Shard("b")]
    made = choice(watched, *shards)
    for _ in range(20):  # so that two hedges may come
        await ask(made)
    for each in shards:
        each.seconds = 0.1
    calls = [asyncio.ensure_future(ask(made)), asyncio.ensure_future(ask(made))]
    await asyncio.sleep(0.01)
    for each in shards:
        each.seconds = 0.0  # the hedges are fast
    assert [*await asyncio.gather(*calls), await ask(made)][:2] == ["b", "a"]
    assert watched.hedges == [True, True]
    assert watched.struck == {"p": 1}


async def test_calls_one_after_the_other_go_round(watched: Watched) -> None:
    shards = [Shard("a"), Shard("b"), Shard("c")]
    made = choice(watched, *shards)
    assert [await ask(made) for _ in range(6)] == ["a", "b", "c"] * 2


@pytest.mark.parametrize(("bad", "result"), [
    (Shard("bad", lost=True), "lost"),
    (Shard("bad", error=Reply(None, "not here", "gone")), "gone"),
    (Shard("bad", error=Reply(None, "broken", "damaged")), "damaged"),
])  # fmt: skip
async def test_another_replica_answers_for_one_that_fails_which_is_left_alone_then(
    watched: Watched, bad: Shard, result: str
) -> None:
    bad.asked.clear()
    made = choice(watched, bad, Shard("good"))
    assert [await ask(made), await ask(made)] == ["good", "good"]
    assert len(bad.asked) == 1
    assert watched.results == [result, "ok", "ok"]
    assert watched.struck == {"p": 1}


async def test_a_slow_replica_answers_where_the_other_one_fails(watched: Watched) -> None:
    """Until it does not answer in time: then nobody waits for it any more."""
    shards = [Shard("slow", 0.1), Shard("quick")]
    made = choice(watched, *shards)
    answers = [await ask(made)]
    assert watched.struck == {"p": 1}
    shards[1].lost = True
    answers += [await ask(made), *await asyncio.gather(ask(made), ask(made))]
    shards[0].seconds = 5.0
    with pytest.raises(PartMissing, match="in time"):
        await ask(made, module.LATE_SECONDS + 0.01)
    before = len(shards[0].asked)
    with pytest.raises(PartMissing, match="ended"):  # of the other one, which is tried again
        await ask(made)
    assert len(shards[0].asked) == before
    await made.close()
    assert answers == ["quick", "slow", "slow", "slow"]


async def test_a_slow_replica_answers_where_the_other_one_hangs(watched: Watched) -> None:
    shards = [Shard("slow", 0.1), Shard("quick")]
    made = choice(watched, *shards)
    answers = [await ask(made)]
    for _ in range(10):  # so that another hedge may come
        await ask(made)
    assert watched.struck == {"p": 1}
    shards[1].seconds = 5.0
    answers.append(await ask(made, 1.0))
    await made.close()
    assert answers == ["quick", "slow"]


async def test_where_all_are_struck_nobody_waits_and_one_call_tries_it_later(watched: Watched, monkeypatch) -> None:
    monkeypatch.setattr(module, "STRIKE_SECONDS", 0.05)
    shard = Shard("a", lost=True)
    made = choice(watched, shard)
    for _ in range(5):
        with pytest.raises(PartMissing):
            await ask(made)
    assert len(shard.asked) == 1
    await asyncio.sleep(0.06)
    shard.lost, shard.seconds = False, 0.03
    answers = await asyncio.gather(*(ask(made) for _ in range(4)), return_exceptions=True)
    assert [each for each in answers if isinstance(each, str)] == ["a"], "one call tries it"
    assert len(shard.asked) == 2
    shard.seconds = 0.0
    assert await ask(made) == "a"
    assert watched.struck == {"p": 0}


async def test_strikes_double(watched: Watched) -> None:
    shard = Shard("a", lost=True)
    made = choice(watched, shard, hedge_s=1.0)

    async def tried() -> int:
        before = len(shard.asked)
        with pytest.raises(PartMissing):
            await made.ask("p", "search", lambda: (), math.inf)
        return len(shard.asked) - before

    for wait in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        assert await tried() == 1
        await asyncio.sleep(wait - 0.01)
        assert await tried() == 0
        await asyncio.sleep(0.02)


async def test_calls_that_fail_together_are_one_strike(watched: Watched) -> None:
    shard = Shard("a", lost=True)
    made = choice(watched, shard, hedge_s=1.0)

    async def ask_many() -> int:
        before = len(shard.asked)
        calls = (made.ask("p", "search", lambda: (), math.inf) for _ in range(8))
        assert all(isinstance(each, PartMissing) for each in await asyncio.gather(*calls, return_exceptions=True))
        return len(shard.asked) - before

    async def fails_later(*_: Any) -> Reply:
        shard.asked.append(())
        await asyncio.sleep(0.001)
        raise ReplicaLost("the process ended")

    shard.ask = fails_later
    assert await ask_many() == 8
    await asyncio.sleep(module.STRIKE_SECONDS)
    assert await ask_many() == 1, "after one strike it is tried"


async def test_an_answer_that_comes_after_its_strike_does_not_lift_it(watched: Watched, monkeypatch) -> None:
    monkeypatch.setattr(module, "STRIKE_SECONDS", 0.02)
    made = choice(watched, Shard("slow", 0.15), Shard("quick"))
    assert await ask(made) == "quick"
    await asyncio.sleep(0.2)  # the strike and the slow call are over by then
    assert watched.results == ["ok", "ok"]
    assert watched.struck == {"p": 1}


async def test_a_slow_replica_is_hedged_and_struck(watched: Watched) -> None:
    slow = Shard("slow", 0.3)
    made = choice(watched, slow, Shard("quick"))
    began = now()
    assert await ask(made) == "quick"
    assert now() - began == pytest.approx(0.02), "when the other one was asked, too"
    assert [await ask(made) for _ in range(3)] == ["quick"] * 3
    await made.close()
    assert watched.hedges == [True]
    assert len(slow.asked) == 1


async def test_who_tries_a_replica_that_is_still_slow_does_not_wait_for_it(watched: Watched, monkeypatch) -> None:
    monkeypatch.setattr(module, "STRIKE_SECONDS", 0.01)
    slow = Shard("slow", 0.15)
    made = choice(watched, slow, Shard("quick"))
    for _ in range(3):  # one hedge is saved at the start
        assert await ask(made) == "quick"
        await asyncio.sleep(0.2)  # the slow call ends
    await made.close()
    assert len(slow.asked) == 3


async def test_a_hedge_that_loses_strikes_nobody(watched: Watched) -> None:
    made = choice(watched, Shard("first", 0.05), Shard("second", 0.5))
    assert await ask(made) == "first"
    await made.close()
    assert watched.hedges == [False]
    assert watched.struck == {}


async def test_who_answers_at_the_same_moment_as_its_hedge_was_not_overtaken(watched: Watched) -> None:
    for _ in range(16):
        both = asyncio.Barrier(2)
        shards = [Shard("first"), Shard("second")]
        for each in shards:
            each.meets = both
        made = choice(watched, *shards, hedge_s=0.001)
        assert await ask(made) == "first"
        await made.close()
    assert watched.hedges == [False] * 16
    assert watched.struck == {}


async def test_hedges_are_a_tenth_of_all_calls_at_most(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STRIKE_SECONDS", 0.0)  # the slow ones are asked again at once
    made = choice(watched, Shard("a", 0.01), Shard("b", 0.01), hedge_s=0.001)
    for _ in range(60):
        await ask(made)
    await made.close()
    assert 4 <= len(watched.hedges) <= 7


async def test_without_a_given_delay_the_slowest_twentieth_is_hedged(watched: Watched) -> None:
    shards = [Shard("a"), Shard("b")]
    made = choice(watched, *shards, hedge_s=0.0)
    for milliseconds in range(40, 0, -1):
        shards[0].seconds = shards[1].seconds = milliseconds / 1000
        await ask(made)
    assert made._delay() == pytest.approx(0.039)
    shards[0].seconds = shards[1].seconds = 0.2
    before = len(shards[0].asked) + len(shards[1].asked)
    await ask(made)
    assert len(shards[0].asked) + len(shards[1].asked) == before + 2
    await made.close()


async def test_a_part_that_is_late_is_missing_in_time(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LATE_SECONDS", 0.05)
    made = choice(watched, Shard("a", 5.0), hedge_s=0.01)
    began = now()
    with pytest.raises(PartMissing, match="in time"):
        await ask(made, 0.5)
    assert now() - began == pytest.approx(0.5)
    with pytest.raises(PartMissing, match="struck"):
        await ask(made)
    await made.close()
    assert watched.results == ["late"]


@pytest.mark.parametrize("late", [Shard("a", 0.2), Shard("a", error=Reply(None, "the time was over", LATE))])
async def test_a_caller_in_a_hurry_makes_no_shard_look_slow_to_others(watched: Watched, late: Shard) -> None:
    made = choice(watched, late, hedge_s=5.0)
    with pytest.raises(PartMissing):
        await ask(made, 0.01)
    late.error = None
    assert await ask(made) == "a"
    await made.close()
    assert watched.results[0] == LATE
    assert watched.struck.get("p", 0) == 0


async def test_an_unknown_part_is_missing_and_known_replicas_stay_known(watched: Watched) -> None:
    bad, good = Shard("bad", lost=True), Shard("good")
    made = choice(watched, bad)
    with pytest.raises(PartMissing):
        await made.ask("q", "search", lambda: (), math.inf)
    with pytest.raises(PartMissing):
        await ask(made)
    made.serve_with({"p": [bad, good]})
    assert (made.replicas("p"), made.replicas("q")) == (2, 0)
    assert await ask(made) == "good"
    assert len(bad.asked) == 1, "its strike was kept"
