"""Batches: the oldest is in, the budget is kept, and padding is worth its cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrank.model.architectures.batching import FORWARD_TOKENS
from polyrank.service.ranking.batching.packing import (
    FEWEST_SPEEDS,
    MOST_DOUBTS,
    PADDING_SHARE,
    SPEEDS,
    UNUSUAL,
    Rate,
    Speed,
    cost,
    pack,
)

LENGTHS = st.lists(st.integers(0, 600), min_size=1, max_size=60)
BUDGETS = st.integers(0, 2000)


@given(lengths=LENGTHS, budget=BUDGETS)
def test_a_batch_holds_the_oldest_keeps_the_budget_and_wastes_little(lengths: list[int], budget: int) -> None:
    batch = pack(lengths, budget)
    assert batch[0] == 0
    assert len(set(batch)) == len(batch)
    chosen = [lengths[at] for at in batch]
    padded = max(chosen) * len(chosen)
    assert len(batch) == 1 or padded <= budget
    assert padded - sum(chosen) <= max(FORWARD_TOKENS, PADDING_SHARE * padded)


@given(lengths=LENGTHS, budget=BUDGETS)
def test_what_is_left_out_is_longer_or_shorter_than_all_that_is_in(lengths: list[int], budget: int) -> None:
    batch = set(pack(lengths, budget))
    low, high = min(lengths[at] for at in batch), max(lengths[at] for at in batch)
    assert all(not low < lengths[at] < high for at in range(len(lengths)) if at not in batch)


@given(length=st.integers(1, 300), count=st.integers(1, 60), budget=st.integers(0, 2000))
def test_equal_lengths_fill_the_budget(length: int, count: int, budget: int) -> None:
    assert len(pack([length] * count, budget)) == max(1, min(count, budget // length))


@given(lengths=LENGTHS)
def test_a_batch_costs_more_than_its_tokens(lengths: list[int]) -> None:
    assert cost(lengths) >= sum(lengths) + FORWARD_TOKENS


def test_a_speed_is_unknown_until_enough_batches_were_measured() -> None:
    speed = Speed()
    for _ in range(FEWEST_SPEEDS - 1):
        speed.learn(100, 1.0)
        assert speed.predict(1000) == 0.0
    speed.learn(100, 1.0)
    assert speed.predict(1000) == pytest.approx(10.0)


def test_a_few_slow_batches_do_not_move_a_speed_and_many_do() -> None:
    speed = Speed()
    for number in range(2 * SPEEDS):
        speed.learn(100, 60.0 if number < FEWEST_SPEEDS // 2 - 1 else 1.0)
        assert speed.predict(100) in (0.0, pytest.approx(1.0)), "a slow start is no speed"
    for _ in range(SPEEDS):
        speed.learn(100, 3.0)
    assert speed.predict(100) == pytest.approx(3.0)


def test_a_speed_that_is_doubted_often_is_measured_anew() -> None:
    speed = Speed()
    for _ in range(SPEEDS):
        speed.learn(100, 9.0)
    for _ in range(MOST_DOUBTS - 1):
        speed.doubt()
    speed.learn(100, 9.0)
    for _ in range(MOST_DOUBTS):
        assert speed.predict(100) == pytest.approx(9.0), "what was measured again is trusted again"
        speed.doubt()
    assert speed.predict(100) == 0.0
    for _ in range(SPEEDS):
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
    assert learnt(stall, 1.0).predict(100) <= UNUSUAL
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
    assert rate.predict(100) <= UNUSUAL


def test_work_that_is_as_slow_as_was_thought_is_priced_so_again_after_it_was_tried() -> None:
    rate = learnt(*[9.0] * 5)
    for _ in range(12):
        rate.doubt()
    assert rate.predict(100) < 1
    rate.learn(100, 9.0)
    assert rate.predict(100) == pytest.approx(9.0, rel=0.01)
