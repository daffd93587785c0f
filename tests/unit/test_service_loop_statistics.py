"""Verdicts of the gate by hand, and the interval of a canary by its formula and over many simulated runs."""

from dataclasses import replace
from math import log, sqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from polyrank.model import measures
from polyrank.service.loop.statistics import Compared, Difference, Effect, compared, effect, judged

BETTER = Difference(mean=0.05, low=0.03, high=0.07, sure=0.02)
EQUAL = Difference(mean=0.0, low=-0.015, high=0.015, sure=-0.02)


def a_set(conversations: int = 1000, slices: dict[str, Any] | None = None, **figures: Difference) -> Compared:
    given = {"recall@1": figures.get("recall", EQUAL), "mrr": figures.get("mrr", EQUAL)}
    return Compared(conversations, given, slices or {})


@pytest.mark.parametrize(
    ("sets", "verdict", "why"),
    [
        ({"golden": a_set(mrr=BETTER), "later": a_set()}, "passed", "mrr on golden +0.050 [+0.030, +0.070]"),
        ({"golden": a_set(), "later": a_set()}, "refused", "no figure is surely better: recall@1 on golden"),
        ({"golden": a_set(mrr=replace(EQUAL, high=-0.001))}, "refused", "it is worse: mrr on golden +0.000"),
        (
            {"golden": a_set(mrr=BETTER, slices={"group is de": {"recall@1": 0.0, "mrr": -0.06}})},
            "refused",
            "on golden it loses 0.060 where group is de",
        ),
        ({"golden": a_set(mrr=BETTER, slices={"group is de": {"recall@1": -0.04, "mrr": 0.0}})}, "passed", "mrr"),
        ({"golden": a_set(99, mrr=BETTER)}, "not enough evidence", "golden has 99 conversations of at least 100"),
        (
            {"golden": a_set(mrr=BETTER), "later": a_set(400, recall=Difference(0.0, -0.04, 0.04, -0.06))},
            "not enough evidence",
            "recall@1 on later +0.000 [-0.040, +0.040], over 400 conversations of about 1600",
        ),
        (
            {"golden": a_set(mrr=BETTER, recall=Difference(-0.01, -0.021, 0.001, -0.03))},
            "refused",
            "it may lose too much: recall@1 on golden -0.010 [-0.021, +0.001]",
        ),
        ({"golden": a_set(mrr=replace(BETTER, sure=0.0))}, "refused", "no figure is surely better: mrr on golden"),
    ],
)
def test_verdicts(sets: dict[str, Compared], verdict: str, why: str) -> None:
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
    assert (found.conversations, found.slices) == (20, {})


def test_slices_of_200_conversations_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "RESAMPLES", 100)
    new, old = {"recall@1": np.ones(401), "mrr": np.ones(401)}, {"recall@1": np.zeros(401), "mrr": np.ones(401)}
    names = ["few"] * 199 + ["many"] * 202
    found = compared(new, old, np.arange(401), names, 2)
    assert found.slices == {"many": {"recall@1": 1.0, "mrr": 0.0}}


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
    above = sum(any(each.low > 0 for each in run) for run in runs)
    assert below + above <= 0.05 * len(runs)


@pytest.mark.slow
def test_a_canary_sees_what_is_worse_soon() -> None:
    draw = np.random.default_rng(3)
    for new in (0.5, 0.7):
        runs = [canary(draw, 5000, new, 0.8, (1100, 1700)) for _ in range(50)]
        assert all(any(each.high < 0 for each in run) for run in runs)
