"""Figures of rankings against brute force, where scores tie too."""

import math
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrank.model.measures import Ties, judged_values, ndcg_at_k, rank_values

pytestmark = pytest.mark.quick

Gains = list[int]
grades = st.lists(st.integers(0, 3), min_size=1, max_size=15)
depths = st.integers(1, 20)


def ndcg(gains: Gains, judged: Gains, k: int) -> float:
    return ndcg_at_k(Ties.of(-np.arange(len(gains)), gains), np.array(judged, np.float64), k)


def by_hand(gains: Gains, judged: Gains, k: int) -> float:
    def dcg(order: Gains) -> float:
        return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(order[:k], 1))

    best = dcg(sorted(judged, reverse=True))
    return dcg(gains) / best if best else 0.0


@given(grades.flatmap(lambda judged: st.tuples(st.just(judged), st.permutations(judged))), st.integers(0, 5), depths)
def test_it_is_as_the_formula_and_within_its_bounds(drawn: tuple[Gains, Gains], unjudged: int, k: int) -> None:
    judged, order = drawn
    retrieved = [0] * unjudged + order
    found = ndcg(retrieved, judged, k)
    assert found == pytest.approx(by_hand(retrieved, judged, k), abs=1e-12)
    assert 0 <= found <= 1 + 1e-12


Candidates = list[tuple[float, int]]
"""Score and gain of each."""

lists = st.lists(st.tuples(st.sampled_from([-1.5, 0.0, 2.0]), st.integers(0, 3)), min_size=1, max_size=6)
few = st.integers(1, 8)


def rankings(candidates: Candidates) -> list[list[int]]:
    """Return the gains in every order by which the scores may be sorted."""
    orders = [[candidates[at] for at in order] for order in permutations(range(len(candidates)))]
    return [
        [gain for _, gain in order] for order in orders if all(one >= other for (one, _), (other, _) in pairwise(order))
    ]


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def first(gains: list[int]) -> float:
    return next((rank for rank, gain in enumerate(gains, 1) if gain), math.inf)


def dcg(gains: list[int], k: int) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains[:k], 1))


def ties(candidates: Candidates) -> Ties:
    return Ties.of(*zip(*candidates, strict=True))


@given(lists, few)
def test_every_value_is_the_mean_over_all_orders(candidates: Candidates, k: int) -> None:
    orders, found = rankings(candidates), ties(candidates)
    assert found.recall_at(k) == pytest.approx(mean([first(each) <= k for each in orders]))
    assert found.reciprocal() == pytest.approx(mean([1 / first(each) for each in orders]))
    assert found.reciprocal(k) == pytest.approx(mean([1 / first(each) if first(each) <= k else 0.0 for each in orders]))
    assert found.gain(k) == pytest.approx(mean([dcg(each, k) for each in orders]))
    assert found.right_among(k) == pytest.approx(mean([sum(gain > 0 for gain in each[:k]) for each in orders]))


@given(lists, st.randoms())
def test_figures_are_equal_to_the_last_bit_in_any_order_of_the_file(candidates: Candidates, draw: object) -> None:
    shuffled = list(candidates)
    draw.shuffle(shuffled)
    judged = np.array([float(gain) for _, gain in candidates])
    one, other = (
        {**rank_values([found]), **judged_values([found], [judged])} for found in (ties(candidates), ties(shuffled))
    )
    assert {name: each.tolist() for name, each in one.items()} == {name: each.tolist() for name, each in other.items()}


@given(lists, lists, st.integers(0, 5), st.lists(st.integers(1, 3), max_size=3))
def test_parts_make_the_whole(head: Candidates, tail: Candidates, more: int, right: list[int]) -> None:
    """A tail is ranked behind; what was cut off where it ends is added to its last group."""
    last = min(score for score, _ in tail)
    beyond = [(last, gain) for gain in right] + [(last, 0)] * more
    whole = [(score + 10, gain) for score, gain in head] + tail + beyond
    found = ties(head).then(ties(tail)).widened(len(beyond), right)
    assert [each.tolist() for each in found] == [each.tolist() for each in ties(whole)]


@given(st.integers(1, 30), st.data())
def test_a_model_that_knows_nothing_finds_as_much_as_chance(count: int, data: st.DataObject) -> None:
    gold = data.draw(st.integers(0, count - 1))
    found = Ties.of(np.zeros(count), np.arange(count) == gold)
    for k in (1, 2, 5, 10):
        assert found.recall_at(k) == min(1.0, k / count)
    assert found.reciprocal() == pytest.approx(sum(1 / rank for rank in range(1, count + 1)) / count)
    assert found.tie_at_first == (count > 1)
