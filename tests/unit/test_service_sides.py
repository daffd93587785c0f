"""The side of a ranking: what the trial answers, and that the live generation stands behind it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from polyrank.index_builder.store.pointer import Trial
from polyrank.model.errors import RankingError, Shortage
from polyrank.service.errors import (
    DeadlineExceeded,
    InferenceFailed,
    NotCalibrated,
    Overloaded,
    TimeTooShort,
    UnknownCandidates,
)
from polyrank.service.http.native.sides import NO_SIDE, Sided, by_share
from polyrank.service.live.canary import Canary
from polyrank.service.observe.labels import Account
from polyrank.service.observe.metrics import Metrics
from polyrank.service.scheduling.stages import Journey, Ticket


class Answer(NamedTuple):
    by: str
    account: Account = Account()


class Asked:
    """A canary of a half, and what its sides do: `live` and `trial` return, raise or wait.

    Attributes:
        new: tokens that each side encodes of the texts sent along; None: the answer was kept.
    """

    def __init__(self, **does: Callable[[Journey], Awaitable[None]]) -> None:
        self.canary = Canary(Trial("20200101T000000000000-00000000", 0.5), fresh_at=time.monotonic())
        self.metrics = Metrics()
        self.does, self.asked, self.degraded = does, [""][:0], [""][:0]
        self.new: dict[str, int | None] = {"live": 0, "trial": 0}

    async def answer(self, by: Any, journey: Journey) -> Answer:
        self.asked.append(by)
        if (new := self.new[by]) is not None:
            journey.ticket = Ticket(100 + new, new)
        if by in self.does:
            await self.does[by](journey)
        return Answer(by, Account(by, self.degraded if by == "trial" else []))

    def at(self, place: float, seconds: float = 30.0) -> tuple[str, Sided]:
        return asyncio.run(self.asking(place, seconds))

    async def asking(self, place: float, seconds: float = 30.0) -> tuple[str, Sided]:
        trial: Any = "trial"
        live: Any = "live"
        journey = Journey(time.monotonic() + seconds)
        answer, sided = await by_share(self.canary, trial, live, place, journey, self.answer, self.metrics)
        return answer.by, sided

    def counted(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"polyrank_canary_{name}_total", labels)


def raising(error: Exception) -> Callable[[Journey], Awaitable[None]]:
    async def raise_(_: Journey) -> None:
        raise error

    return raise_


async def hang(_: Journey) -> None:
    await asyncio.sleep(60)


def test_the_place_of_a_conversation_decides() -> None:
    asked = Asked()
    assert asked.at(0.49) == ("trial", Sided("trial"))
    assert asked.at(0.5) == ("live", Sided("live"))
    assert asked.asked == ["trial", "live"]
    assert [asked.counted("rankings", side=side) for side in ("live", "trial")] == [1, 1]
    assert (asked.canary.answers, asked.canary.replaced) == (1, 0)


@pytest.mark.parametrize(("error", "why"), [
    (InferenceFailed("a score is not finite"), "inference-failed"),
    (NotCalibrated("the model", "build again"), "not-calibrated"),
    (RuntimeError("CUDA error"), "unexpected"),
    (TimeTooShort(400, 9), "time-too-short"),
    (TimeoutError(), "slow"),
])  # fmt: skip
def test_what_fails_is_answered_by_the_live_one_and_counted(error: Exception, why: str) -> None:
    asked = Asked(trial=raising(error))
    for _ in range(5):
        assert asked.canary.withdrawn is None
        assert asked.at(0.1) == ("live", Sided("trial", why))
    assert asked.counted("replaced", why=why) == asked.counted("rankings", side="trial") == 5
    assert f"the last one: {why}" in str(asked.canary.withdrawn)
    assert asked.at(0.1) == ("live", Sided("live")), "it is asked no more"
    assert asked.asked.count("trial") == 5


def test_half_of_the_time_is_the_trial_s_and_all_that_is_left_the_live_one_s() -> None:
    left: list[float] = []

    async def note(journey: Journey) -> None:
        left.append(journey.left)

    assert Asked(trial=hang, live=note).at(0.1, seconds=0.4) == ("live", Sided("trial", "slow"))
    [seconds] = left
    assert 0.0 < seconds < 0.21


def test_a_request_that_fails_on_both_sides_is_not_the_canary_s_fault() -> None:
    asked = Asked(trial=raising(UnknownCandidates(["c1"])), live=raising(UnknownCandidates(["c1"])))
    for _ in range(9):
        with pytest.raises(UnknownCandidates):
            asked.at(0.1)
    assert (asked.canary.answers, asked.canary.withdrawn) == (0, None)


def test_a_trial_that_takes_twice_as_long_as_the_live_one_is_slow() -> None:
    asked = Asked(trial=hang)
    for _ in range(5):
        assert asked.at(0.1, seconds=0.3) == ("live", Sided("trial", "slow"))
    assert (asked.canary.replaced, asked.counted("replaced", why="slow")) == (5, 5)
    assert "the last one: slow" in str(asked.canary.withdrawn)


def waiting(seconds: float) -> Callable[[Journey], Awaitable[None]]:
    async def wait(_: Journey) -> None:
        await asyncio.sleep(seconds)

    return wait


@pytest.mark.parametrize("trial", [hang, raising(TimeTooShort(400, 9))])
def test_a_request_for_which_the_live_one_needs_the_time_as_well_ends_no_canary(
    trial: Callable[[Journey], Awaitable[None]],
) -> None:
    """Else whoever sends 400 new texts with little time would end any."""
    asked = Asked(trial=trial, live=waiting(0.2))
    for _ in range(6):
        assert asked.at(0.1, seconds=0.5)[0] == "live"
    asked.does["live"] = raising(DeadlineExceeded("late"))
    for _ in range(6):
        with pytest.raises(DeadlineExceeded):
            asked.at(0.1, seconds=0.2)
    assert (asked.canary.replaced, asked.canary.withdrawn) == (0, None)


@pytest.mark.parametrize("new", [{"live": 0, "trial": 50}, {"live": None, "trial": 0}, {"live": None, "trial": None}])
def test_what_a_cache_spares_the_live_one_ends_no_canary(new: dict[str, int | None]) -> None:
    asked = Asked(trial=hang)
    asked.new = new
    for _ in range(6):
        assert asked.at(0.1, seconds=0.12) == ("live", Sided("trial", "slow"))
    assert (asked.canary.answers, asked.canary.replaced) == (6, 0)


def test_time_in_which_the_trial_waited_for_others_is_not_its_fault() -> None:
    async def wait(journey: Journey) -> None:
        with journey.queued():
            await hang(journey)

    asked = Asked(trial=wait)
    for _ in range(6):
        assert asked.at(0.1, seconds=0.12) == ("live", Sided("trial", "slow"))
    assert (asked.canary.answers, asked.canary.replaced) == (6, 0)


@pytest.mark.parametrize("place", [0.1, 0.9])
def test_a_caller_in_a_hurry_is_on_neither_side_and_ends_no_canary(place: float) -> None:
    asked = Asked(trial=hang)
    for _ in range(9):
        assert asked.at(place, seconds=0.05) == ("live", NO_SIDE)
    assert (asked.canary.answers, asked.asked) == (0, ["live"] * 9)


@pytest.mark.parametrize("error", [Overloaded(9), Shortage("no memory"), UnknownCandidates(["just added"])])
def test_what_is_nobody_s_fault_ends_no_canary(error: RankingError) -> None:
    asked = Asked(trial=raising(error))
    for _ in range(9):
        assert asked.at(0.1) == ("live", Sided("trial", error.slug))
    assert (asked.canary.replaced, asked.canary.withdrawn) == (0, None)


def test_an_answer_without_its_second_stage_is_none() -> None:
    asked = Asked()
    asked.degraded = ["late_failed"]
    assert asked.at(0.1) == ("live", Sided("trial", "late_failed"))


@pytest.mark.parametrize("by", ["trial", "live"])
async def test_whoever_hangs_up_ends_both_and_is_counted_nowhere(by: str) -> None:
    asked = Asked(**({"trial": raising(RankingError("no"))} if by == "live" else {}), **{by: hang})
    asking = asyncio.ensure_future(asked.asking(0.1))
    await asyncio.sleep(0.01)
    assert asked.asked[-1] == by
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert asked.canary.answers == 0
