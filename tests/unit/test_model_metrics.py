"""Metrics of rankings against values computed by hand."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from polyrank.model.evaluation.metrics import (
    first_relevant,
    judged_values,
    ndcg_at_k,
    rank_values,
    recall_at_k,
    reciprocal_rank,
)


def array(*numbers: float) -> NDArray[np.float64]:
    return np.array(numbers, np.float64)


def test_a_reply_that_was_not_retrieved_is_in_no_list_and_counts_nothing() -> None:
    ranks = np.array([1, 2, 0, 10, 11])
    assert recall_at_k(ranks, 1).tolist() == [1, 0, 0, 0, 0]
    assert recall_at_k(ranks, 10).tolist() == [1, 1, 0, 1, 0]
    assert reciprocal_rank(ranks).tolist() == [1, 1 / 2, 0, 1 / 10, 1 / 11]


def test_figures_of_ranks_are_named_after_their_depth() -> None:
    values = rank_values(np.array([1, 2, 0, 100]), (1, 100))
    assert list(values) == ["recall@1", "recall@100", "mrr"]
    assert values["recall@100"].tolist() == [1, 1, 0, 1]
    assert list(rank_values(np.array([1]))) == ["recall@1", "recall@2", "recall@5", "recall@10", "mrr"]


def test_figures_of_ranks_by_hand() -> None:
    means = {name: each.mean() for name, each in rank_values(np.array([1, 2, 3, 5, 6, 10, 11, 1])).items()}
    recalls = {"recall@1": 2 / 8, "recall@2": 3 / 8, "recall@5": 5 / 8, "recall@10": 7 / 8}
    assert means == recalls | {"mrr": pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 5 + 1 / 6 + 1 / 10 + 1 / 11 + 1) / 8)}


def test_ndcg_by_hand_has_a_linear_gain() -> None:
    gains, judged = array(0, 3, 1), array(1, 2, 3)
    ideal = 3 + 2 / math.log2(3) + 1 / 2
    assert ndcg_at_k(gains, judged, 10) == pytest.approx((3 / math.log2(3) + 1 / 2) / ideal)
    assert ndcg_at_k(gains, judged, 2) == pytest.approx((3 / math.log2(3)) / (3 + 2 / math.log2(3)))
    assert ndcg_at_k(gains, judged, 1) == 0


def test_ndcg_without_anything_relevant_is_nothing() -> None:
    assert ndcg_at_k(array(0, 0), array(0), 10) == 0
    assert ndcg_at_k(array(), array(1), 10) == 0


def test_figures_of_judged_queries() -> None:
    eleventh = array(*[0] * 10, 1)
    hundred_first = array(1, *[0] * 99, 1)
    values = judged_values([eleventh, hundred_first, array(0, 2)], [array(1), array(1, 1, 0), array(2, 1, 1, 1)])
    assert list(values) == ["ndcg@10", "mrr@10", "recall@100"]
    assert values["mrr@10"].tolist() == [0, 1, 1 / 2]
    assert values["recall@100"].tolist() == [1, 1 / 2, 1 / 4]
    ideal = 2 + 1 / math.log2(3) + 1 / 2 + 1 / math.log2(5)
    assert values["ndcg@10"] == pytest.approx([0, 1 / (1 + 1 / math.log2(3)), 2 / math.log2(3) / ideal])


def test_a_query_whose_judgements_are_all_zero_counts_nothing() -> None:
    values = judged_values([array(0, 0)], [array(0)])
    assert {name: each.tolist() for name, each in values.items()} == {"ndcg@10": [0], "mrr@10": [0], "recall@100": [0]}


def test_the_first_relevant() -> None:
    assert [first_relevant(array(*gains)) for gains in ([2, 1], [0, 0, 1], [0], [])] == [1, 3, 0, 0]
