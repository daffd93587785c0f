"""What work is predicted to take: a stall of the machine does not count, and what was refused is soon tried."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrank.service.scheduling.admission import MEASUREMENTS, MOST_DOUBTS, Rate
from polyrank.service.scheduling.scheduler import FEWEST_FULL


def test_a_speed_is_unknown_until_enough_batches_were_measured() -> None:
    speed = Rate(FEWEST_FULL)
    for _ in range(FEWEST_FULL - 1):
        speed.learn(100, 1.0)
        assert speed.predict(1000) == 0.0
    speed.learn(100, 1.0)
    assert speed.predict(1000) == pytest.approx(10.0)


def test_a_few_slow_batches_do_not_move_a_speed_and_many_do() -> None:
    speed = Rate(FEWEST_FULL)
    for number in range(2 * MEASUREMENTS):
        speed.learn(100, 60.0 if number < FEWEST_FULL // 2 - 1 else 1.0)
        assert speed.predict(100) in (0.0, pytest.approx(1.0)), "a slow start is no speed"
    for _ in range(MEASUREMENTS):
        speed.learn(100, 3.0)
    assert speed.predict(100) == pytest.approx(3.0)


def test_a_speed_that_is_doubted_often_is_measured_anew() -> None:
    speed = Rate(FEWEST_FULL)
    for _ in range(MEASUREMENTS):
        speed.learn(100, 9.0)
    for _ in range(MOST_DOUBTS - 1):
        speed.doubt()
    speed.learn(100, 9.0)
    assert speed.predict(100) == pytest.approx(9.0), "what was measured again is trusted again"
    told = []
    for _ in range(12):
        told.append(speed.predict(100))
        speed.doubt()
    assert told == sorted(told, reverse=True), "the longer nothing shows it, the less it is believed"
    assert speed.predict(100) < 0.02
    for _ in range(MEASUREMENTS):
        speed.learn(100, 1.0)
    assert speed.predict(100) == pytest.approx(1.0)


def learnt(*seconds: float) -> Rate:
    rate = Rate()
    for each in seconds:
        rate.learn(100, each)
    return rate


@given(stall=st.floats(2.0, 1e6))
def test_one_stall_prices_no_later_work(stall: float) -> None:
    """Weighed as it is, a stall of 30 s prices batches of 50 ms twice too high for 39 batches."""
    rate = learnt(*[1.0] * 20, stall)
    assert rate.predict(100) < 1.5
    for _ in range(10):
        rate.learn(100, 1.0)
    assert rate.predict(100) < 1.15


@given(stall=st.floats(2.0, 1e6))
def test_a_stall_in_the_first_measurement_is_mended_by_the_next_ones(stall: float) -> None:
    assert learnt(stall, 1.0).predict(100) <= 4
    assert learnt(stall, *[1.0] * 4).predict(100) < 2


def test_work_that_stays_slower_is_believed() -> None:
    assert learnt(*[1.0] * 20, *[10.0] * 20).predict(100) > 8


@given(stall=st.floats(2.0, 1000.0))
def test_work_that_was_refused_for_a_stall_is_soon_tried(stall: float) -> None:
    rate, refused = learnt(stall), 0
    while rate.predict(100) > 1.0:
        rate.doubt()
        refused += 1
    assert refused <= 17
    rate.learn(100, 1.0)
    assert rate.predict(100) <= 4


def test_work_that_is_as_slow_as_was_thought_is_priced_so_again_after_it_was_tried() -> None:
    rate = learnt(*[9.0] * 5)
    for _ in range(12):
        rate.doubt()
    assert rate.predict(100) < 1
    rate.learn(100, 9.0)
    assert rate.predict(100) == pytest.approx(9.0, rel=0.01)
