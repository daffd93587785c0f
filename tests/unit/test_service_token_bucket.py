"""A token bucket, by a clock of the test's own."""

import pytest

from polyrank.service.auth.token_bucket import TokenBucket


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_burst_then_the_rate() -> None:
    clock = Clock()
    bucket = TokenBucket(2.0, 3, clock)
    assert [bucket.take() for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    clock.now += 0.25
    assert bucket.take() == 0.25
    clock.now += 0.25
    assert bucket.take() == 0.0
    assert bucket.take() == 0.5


def test_a_pause_fills_it_to_the_burst_and_no_further() -> None:
    clock = Clock()
    bucket = TokenBucket(10.0, 2, clock)
    clock.now += 3600
    assert [bucket.take() > 0 for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(("rate", "seconds"), [(1.0, 60), (7.0, 13), (0.1, 300)])
def test_over_time_it_is_the_rate(rate: float, seconds: int) -> None:
    clock = Clock()
    bucket = TokenBucket(rate, 2, clock)
    taken = 0
    for _ in range(seconds * 100):
        clock.now += 0.01
        taken += not bucket.take()
    assert taken == pytest.approx(rate * seconds, abs=2.5)


def test_waiting_as_long_as_it_says_is_enough() -> None:
    clock = Clock()
    bucket = TokenBucket(3.0, 1, clock)
    bucket.take()
    for _ in range(50):
        clock.now += bucket.take() + 1e-9
        assert bucket.take() == 0.0
