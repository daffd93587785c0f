"""Answers of many parts, computed from the times of one."""

import numpy as np
import pytest
from benchmarks.shards import PARTS, Figures, many_parts

SECONDS = np.concatenate([np.full(97, 0.010), np.full(3, 0.500)])


def test_one_part_takes_what_was_measured_and_more_parts_take_longer() -> None:
    found = {each["parts"]: each for each in many_parts(SECONDS, seed=0)}
    assert list(found) == list(PARTS)
    assert found[1]["unhedged"] == Figures(10.0, 10.0, 500.0)
    assert found[64]["unhedged"].p50 == 500, "of 64 one is slow in 86 % of the answers"
    p99 = [found[parts]["unhedged"].p99 for parts in PARTS]
    assert p99 == sorted(p99)


def test_a_hedge_takes_the_faster_of_two() -> None:
    for each in many_parts(SECONDS, seed=0):
        assert each["hedged"].p50 <= 20, "the delay, and a fast answer"
        assert each["hedged"].p99 <= each["unhedged"].p99
    assert many_parts(SECONDS, seed=0) == many_parts(SECONDS, seed=0)


def test_figures_are_milliseconds() -> None:
    assert Figures.of(np.linspace(0, 1, 101)).p90 == pytest.approx(900)
