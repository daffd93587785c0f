"""Learning rates: warm-up, the schedules, and what a resumed run needs of them."""

import math
from typing import get_args

import pytest

from polyrank.model.training.loop import PLATEAU_FACTOR, LearningRate, Schedule

WARMUP, STEPS = 4, 20


def rate(schedule: Schedule) -> LearningRate:
    return LearningRate(schedule, WARMUP, STEPS)


@pytest.mark.parametrize("schedule", get_args(Schedule))
def test_all_warm_up_to_the_whole_rate(schedule: Schedule) -> None:
    assert [rate(schedule).factor(step) for step in range(WARMUP + 1)] == [0.25, 0.5, 0.75, 1.0, 1.0]


@pytest.mark.parametrize("schedule", get_args(Schedule))
def test_without_warm_up_the_first_step_has_the_whole_rate(schedule: Schedule) -> None:
    assert LearningRate(schedule, 0, STEPS).factor(0) == 1.0


def test_linear_falls_by_equal_parts_to_zero() -> None:
    found = [rate("linear").factor(step) for step in range(WARMUP, STEPS + 1)]
    assert found == pytest.approx([1 - n / 16 for n in range(17)])


def test_cosine_falls_along_half_a_wave_to_zero() -> None:
    found = [rate("cosine").factor(step) for step in range(WARMUP, STEPS + 1)]
    assert found == pytest.approx([0.5 + 0.5 * math.cos(math.pi * n / 16) for n in range(17)])
    assert found[8] == pytest.approx(0.5)


def test_the_inverse_square_root_falls_from_the_last_step_of_the_warm_up_on() -> None:
    """`rate * sqrt(warm-up / step)`, whatever the number of steps (Humeau et al. 4.1, after Lample and Conneau)."""
    found = [rate("inverse-sqrt").factor(step) for step in range(WARMUP, 10 * STEPS)]
    assert found == pytest.approx([(WARMUP / step) ** 0.5 for step in range(WARMUP, 10 * STEPS)])
    assert rate("inverse-sqrt").factor(4 * WARMUP) == 0.5
    without = LearningRate("inverse-sqrt", 0, STEPS)
    assert [without.factor(step) for step in (0, 1, 4, 16)] == [1, 1, 0.5, 0.25]


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "inverse-sqrt"])
def test_only_the_plateau_listens_to_the_selection_loss(schedule: Schedule) -> None:
    told = rate(schedule)
    for loss in (1.0, 2.0, 3.0):
        told.observe(STEPS, loss)
    assert [told.factor(step) for step in range(STEPS)] == [rate(schedule).factor(step) for step in range(STEPS)]


def test_the_plateau_is_left_by_the_papers_factor_each_time_nothing_improves() -> None:
    told, factors = rate("plateau"), []
    for loss in (3.0, 2.0, 2.0, 2.5, 1.9, 1.95, float("nan")):
        told.observe(STEPS, loss)
        factors.append(told.factor(STEPS))
    once, twice, thrice = PLATEAU_FACTOR, PLATEAU_FACTOR**2, PLATEAU_FACTOR**3
    assert PLATEAU_FACTOR == 0.4
    assert factors == pytest.approx([1, 1, once, twice, twice, thrice, thrice])


def test_what_is_seen_while_the_rate_still_rises_does_not_reduce_it() -> None:
    told = rate("plateau")
    for step in (0, WARMUP // 2, WARMUP):
        told.observe(step, 2.0)
    assert told.factor(STEPS) == 1.0
    told.observe(WARMUP + 1, 2.0)
    assert told.factor(STEPS) == PLATEAU_FACTOR


def test_a_restored_schedule_goes_on_as_the_first_one() -> None:
    first, again = rate("plateau"), rate("plateau")
    for loss in (2.0, 1.0, 1.5):
        first.observe(STEPS, loss)
    again.restore(first.state())
    for told in (first, again):
        told.observe(STEPS, 1.2)  # better than the last, not than the best
    assert again.factor(STEPS) == first.factor(STEPS) == pytest.approx(0.16)


def test_a_run_shorter_than_its_warm_up_only_rises() -> None:
    short = LearningRate("linear", 10, 5)
    assert [short.factor(step) for step in range(5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
