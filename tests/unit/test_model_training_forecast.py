"""The time that a run says is left: looks and what follows them counted, and steady from the third step on."""

import random
from collections.abc import Iterator

import pytest

from polyrank.model.training.loop import Forecast

LOOK, AFTER = 20.0, 45.0


def told(
    steps: list[float], look_every: int, look_seconds: float = LOOK, done: int = 0
) -> Iterator[tuple[float, float]]:
    """Yield after each step the seconds that a forecast says are left, if it does, and those that are.

    steps: the seconds of all steps of the run, of which so many were done before it was resumed.
    """
    forecast = Forecast(len(steps), look_every, lambda seconds: seconds + AFTER - LOOK)
    forecast.look_seconds = look_seconds
    for step, seconds in enumerate(steps[done:], done + 1):
        forecast.step_took(seconds)
        looks = sum(at % look_every == 0 or at == len(steps) for at in range(step, len(steps) + 1))
        for left in forecast.figures(step).values():
            yield left, sum(steps[step:]) + looks * LOOK + AFTER
        if step % look_every == 0 or step == len(steps):
            forecast.look_seconds = LOOK


@pytest.mark.parametrize(("steps", "look_every"), [(40, 10), (41, 10), (39, 10), (3, 1), (40, 40), (7, 100)])
def test_equal_steps_are_told_exactly(steps: int, look_every: int) -> None:
    found = list(told([9.0, *[2.0] * (steps - 1)], look_every))
    assert len(found) == steps - 2, "the first two steps tell nothing"
    assert all(left == pytest.approx(right) for left, right in found)


@pytest.mark.parametrize("seed", range(5))
def test_the_end_does_not_move_from_the_third_step_on(seed: int) -> None:
    draw = random.Random(seed)
    steps = [12.0, *(draw.gauss(1.0, 0.1) for _ in range(299))]  # batches of 32 contexts differ by a tenth
    whole = sum(steps) + 3 * LOOK + AFTER
    found = list(told(steps, 100))
    off = [abs(left - right) / whole for left, right in found]
    assert max(off) < 0.15
    assert max(off[30:]) < 0.05


def test_a_machine_that_gets_slower_is_followed() -> None:
    steps = [1.0] * 200 + [3.0] * 400
    left, right = list(told(steps, 300))[398]
    assert left == pytest.approx(right, rel=0.2)


def test_a_resumed_run_knows_its_looks() -> None:
    found = list(told([2.0] * 40, 10, LOOK, done=15))
    assert len(found) == 40 - 15 - 2
    assert all(left == pytest.approx(right) for left, right in found)
    unknown, _ = next(told([2.0] * 40, 10, 0.0, done=15))
    assert unknown < found[0][0]
