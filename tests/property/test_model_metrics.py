"""nDCG: its bounds, when they are reached, and its invariances."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrank.model.metrics import Ties, ndcg_at_k, rank_values

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


@given(grades, depths, st.integers(0, 5))
def test_the_best_order_reaches_one_and_what_follows_it_is_no_harm(judged: Gains, k: int, unjudged: int) -> None:
    found = ndcg(sorted(judged, reverse=True) + [0] * unjudged, judged, k)
    assert found == pytest.approx(1.0 if any(judged) else 0.0)


@given(grades, depths, st.data())
def test_moving_a_better_document_up_never_lowers_it(judged: Gains, k: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(judged))
    at = data.draw(st.integers(0, max(0, len(order) - 2)))
    better = [*order[:at], *sorted(order[at : at + 2], reverse=True), *order[at + 2 :]]
    assert ndcg(better, judged, k) >= ndcg(order, judged, k) - 1e-12


@given(st.lists(st.integers(0, 120), min_size=1))
def test_recall_grows_with_depth_and_bounds_the_reciprocal_rank(ranks: list[int]) -> None:
    values = rank_values([Ties.of(-np.arange(120), np.arange(1, 121) == rank) for rank in ranks], (1, 2, 5, 10, 100))
    recalls = [values[f"recall@{k}"] for k in (1, 2, 5, 10, 100)]
    assert all((less <= more).all() for less, more in pairwise(recalls))
    assert (recalls[0] <= values["mrr"]).all()
