"""Verdicts of the gate by hand, and the interval of a canary by its formula and over many simulated runs."""

from dataclasses import replace
from math import log, sqrt

import numpy as np
import pytest
from numpy.typing import NDArray

from polyrank.model import measures
from polyrank.service.loop.statistics import LATELY, Comparison, Difference, Effect, compared, effect, judged

BETTER = Difference(mean=0.05, low=0.03, high=0.07, sure=0.02)
EQUAL = Difference(mean=0.0, low=-0.015, high=0.015, sure=-0.02)
WORSE = Difference(mean=-0.02, low=-0.04, high=-0.001, sure=-0.06)
UNSURE = Difference(mean=0.0, low=-0.04, high=0.04, sure=-0.06)


def a_set(conversations: int = 1000, lost: dict[str, float] | None = None, **figures: Difference) -> Comparison:
    given = {"recall@1": figures.get("recall", EQUAL), "mrr": figures.get("mrr", EQUAL)}
    return Comparison(conversations, given, lost or {})


@pytest.mark.parametrize(("sets", "verdict", "why"), [
    ({"golden": a_set(mrr=BETTER), "later": a_set()}, "passed", "mrr on golden +0.050 [+0.030, +0.070]"),
    ({"golden": a_set(), "later": a_set()}, "refused", "no figure is surely better: recall@1 on golden"),
    ({"golden": a_set(mrr=replace(EQUAL, high=-0.001))}, "refused", "it is worse: mrr on golden +0.000"),
    (
        {"golden": a_set(mrr=BETTER, lost={"group is de": 0.06})},
        "refused",
        "on golden it loses 0.060 where group is de",
    ),
    ({"golden": a_set(99, mrr=BETTER)}, "not enough evidence", "golden is too small: 99 conversations of at least"),
    (
        {"golden": a_set(mrr=BETTER), "other": a_set(400, recall=UNSURE)},
        "not enough evidence",
        "other is too small: recall@1 +0.000 [-0.040, +0.040] over 400 conversations of about 1600",
    ),
    (
        {LATELY: a_set(400, mrr=UNSURE)},
        "not enough evidence",
        "what came later is too small: mrr +0.000 [-0.040, +0.040] over 400 conversations of about 1600",
    ),
    (
        {"golden": a_set(mrr=BETTER), LATELY: a_set(30, mrr=replace(BETTER, sure=0.04))},
        "passed",
        "mrr on golden +0.050 [+0.030, +0.070]; "
        "what came later did not count, it is too small: 30 conversations of at least 100",
    ),
    (
        {"golden": a_set(), LATELY: a_set(30, mrr=BETTER)},
        "not enough evidence",
        "no figure is surely better: recall@1 on golden +0.000 [-0.015, +0.015]; what came later did not count",
    ),
    ({"golden": a_set(mrr=BETTER), LATELY: a_set(100, mrr=WORSE)}, "refused", "it is worse: mrr on what came later"),
    ({"golden": a_set(mrr=BETTER), LATELY: a_set(99, mrr=WORSE)}, "passed", "mrr on golden"),
    ({"golden": a_set(99, mrr=WORSE)}, "not enough evidence", "golden is too small: 99 conversations of at least"),
    (
        {"golden": a_set(mrr=BETTER, recall=Difference(-0.01, -0.021, 0.001, -0.03))},
        "refused",
        "it may lose too much: recall@1 on golden -0.010 [-0.021, +0.001]",
    ),
    ({"golden": a_set(mrr=replace(BETTER, sure=0.0))}, "refused", "no figure is surely better: mrr on golden"),
])  # fmt: skip
def test_verdicts(sets: dict[str, Comparison], verdict: str, why: str) -> None:
    found, reason = judged(sets)
    assert found == verdict
    assert reason.startswith(why)


def test_differences_are_paired_and_of_whole_conversations() -> None:
    """Two models that differ by the same everywhere differ by that surely, however hard the examples are."""
    old = {name: np.random.default_rng(0).random(60) for name in ("recall@1", "mrr")}
    new = {name: values + 0.1 for name, values in old.items()}
    found = compared(new, old, np.repeat(np.arange(20), 3), ["all"] * 60, 1)
    for each in found.figures.values():
        assert (each.mean, each.low, each.high, each.sure) == pytest.approx((0.1,) * 4)
    assert (found.conversations, found.lost) == (20, {})


@pytest.mark.parametrize(("mean", "spread", "falls"), [(-0.06, 0.0, True), (-0.04, 0.0, False), (-0.06, 1.0, False)])
def test_slices_of_200_conversations_fall_by_what_they_surely_lose(
    monkeypatch: pytest.MonkeyPatch, mean: float, spread: float, falls: bool
) -> None:
    monkeypatch.setattr(measures, "RESAMPLES", 100)
    names = ["few"] * 198 + ["many"] * 202 + ["good"] * 202
    values = np.repeat([-1.0, mean, 0.0], [198, 202, 202]) + np.tile([spread, -spread], 301)
    none = np.zeros(len(names))
    found = compared({"recall@1": none, "mrr": values}, {"recall@1": none, "mrr": none}, np.arange(602), names, 2)
    assert found.lost == ({"many": pytest.approx(0.06)} if falls else {})


def lost(draw: np.random.Generator, conversations: int, lists: int, loss: float = 0.0, slices: int = 10) -> bool:
    """Whether a new model falls by slices of so many conversations of so many lists, of which a fifth change.

    The reply that is right falls from rank 1, or rises to it, in all lists of a conversation that change alike. Where
    `loss` is 0 both come as often; else R@1 falls by it in the first slice.
    """
    count = conversations * slices
    falls = np.where(np.arange(count) < conversations, 0.5 + loss / 0.4, 0.5)
    signs = np.repeat(np.where(draw.random(count) < falls, -1.0, 1.0), lists) * (draw.random(count * lists) < 0.2)
    values = {"recall@1": signs, "mrr": signs * (1 - 1 / draw.integers(2, 11, count * lists))}
    names = [f"slice {number // (conversations * lists)}" for number in range(count * lists)]
    nothing = dict.fromkeys(values, np.zeros(count * lists))
    return bool(compared(values, nothing, np.repeat(np.arange(count), lists), names, 1).lost)


@pytest.mark.slow
@pytest.mark.parametrize(("conversations", "lists"), [(300, 1), (200, 1), (200, 4)])
def test_by_slices_fall_models_that_are_worse_there_and_hardly_any_equal_one(
    monkeypatch: pytest.MonkeyPatch, conversations: int, lists: int
) -> None:
    """By means alone 22 of 60 equal models fell."""
    monkeypatch.setattr(measures, "RESAMPLES", 10)
    draw = np.random.default_rng(4)
    assert sum(lost(draw, conversations, lists) for _ in range(1000)) <= 0.02 * 1000
    assert sum(lost(draw, conversations, lists, loss=0.15) for _ in range(100)) >= 95


def test_an_effect_is_that_of_the_formula_at_equal_shares() -> None:
    draw = np.random.default_rng(1)
    sides, outcomes = draw.random(5000) < 0.5, (draw.random(5000) < 0.8).astype(float)
    found = effect(sides, np.full(5000, 0.5), outcomes)
    assert found.mean == pytest.approx(outcomes[sides].mean() - outcomes[~sides].mean(), abs=5e-3)
    wide = 5000 * 0.045**2
    deviation = 2 * sqrt(0.8 * 0.2)
    half = deviation * sqrt(2 * (wide + 1) / (5000**2 * 0.045**2) * log(sqrt(wide + 1) / 0.05))
    assert found.high - found.mean == pytest.approx(half, rel=0.05)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    assert found.new + found.old == 5000


def test_few_conversations_say_nothing() -> None:
    sides = np.arange(1052) % 20 == 0
    shares, outcomes = np.full(1052, 0.05), np.ones(1052)
    assert (
        str(effect(sides, shares, outcomes))
        == "53 conversations of the new model and 999 of the old one are too few yet"
    )
    none = effect(sides[:0], shares[:0], outcomes[:0])
    assert (none.new, none.old, none.low, none.high) == (0, 0, -np.inf, np.inf)
    more = np.concatenate
    known = effect(more([sides, [True]]), more([shares, [0.5]]), more([outcomes, [1.0]]))
    assert np.isfinite([known.low, known.high]).all()


def canary(draw: np.random.Generator, count: int, new: float, old: float, rises: tuple[int, int]) -> list[Effect]:
    """What is seen at 100 looks at conversations of which such shares end well; the trial's share rises twice."""
    number = np.arange(count)
    shares = np.select([number < rises[0], number < rises[1]], [0.05, 0.2], 0.5)
    sides = draw.random(count) < shares
    outcomes: NDArray[np.float64] = (draw.random(count) < np.where(sides, new, old)).astype(float)
    looks = np.unique(np.geomspace(200, count, 100).astype(int))
    return [effect(sides[:end], shares[:end], outcomes[:end]) for end in looks]


@pytest.mark.slow
@pytest.mark.parametrize("rises", [(1100, 1700), (3000, 6000)])
@pytest.mark.parametrize("rate", [0.5, 0.8, 0.95, 0.99])
def test_at_no_look_does_chance_alone_leave_the_interval(rate: float, rises: tuple[int, int]) -> None:
    draw = np.random.default_rng(2)
    runs = [canary(draw, 10_000, rate, rate, rises) for _ in range(300)]
    below = sum(any(each.high < 0 for each in run) for run in runs)
    assert below + sum(any(each.low > 0 for each in run) for run in runs) <= 0.05 * len(runs)


@pytest.mark.slow
def test_a_canary_sees_what_is_worse_soon() -> None:
    draw = np.random.default_rng(3)
    for new in (0.5, 0.7):
        runs = [canary(draw, 5000, new, 0.8, (1100, 1700)) for _ in range(50)]
        assert all(any(each.high < 0 for each in run) for run in runs)
