"""Figures of rankings, and their intervals."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from polyrank.model.measures import (
    RESAMPLES,
    Ties,
    equal_to,
    group_numbers,
    intervals,
    judged_values,
    rank_values,
    resampled_means,
)
from polyrank.model.text.folding import text_key


def array(*numbers: float) -> NDArray[np.float64]:
    return np.array(numbers, np.float64)


def ranked(*gains: float) -> Ties:
    """Return a ranking without ties, best first."""
    return Ties.of(-np.arange(len(gains)), gains)


def at(*ranks: int) -> list[Ties]:
    """Return rankings of 120 candidates whose right one has these ranks; 0: it is not among them."""
    return [ranked(*(array(*range(1, 121)) == rank)) for rank in ranks]


def test_a_reply_that_was_not_retrieved_is_in_no_list_and_counts_nothing() -> None:
    values = rank_values(at(1, 2, 0, 10, 11), (1, 10), 10)
    assert values["recall@1"].tolist() == [1, 0, 0, 0, 0]
    assert values["recall@10"].tolist() == [1, 1, 0, 1, 0]
    assert values["mrr"].tolist() == [1, 1 / 2, 0, 1 / 10, 0]


def test_figures_of_ranks_are_named_after_their_depth() -> None:
    values = rank_values(at(1, 2, 0, 100), (1, 100))
    assert list(values) == ["recall@1", "recall@100", "mrr"]
    assert values["recall@100"].tolist() == [1, 1, 0, 1]
    assert list(rank_values(at(1))) == ["recall@1", "recall@2", "recall@5", "recall@10", "mrr"]


def test_figures_of_ranks_by_hand() -> None:
    means = {name: each.mean() for name, each in rank_values(at(1, 2, 3, 5, 6, 10, 11, 1)).items()}
    recalls = {"recall@1": 2 / 8, "recall@2": 3 / 8, "recall@5": 5 / 8, "recall@10": 7 / 8}
    assert means == recalls | {"mrr": pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 5 + 1 / 6 + 1 / 10 + 1 / 11 + 1) / 8)}


def test_the_ties_of_a_huge_pool_are_as_chance() -> None:
    everything = Ties.of(np.zeros(1_000_000), np.arange(1_000_000) < 500)
    assert rank_values([everything], (1, 100), 100)["recall@1"].tolist() == [500 / 1_000_000]
    assert everything.recall_at(100) == pytest.approx(1 - (1 - 500 / 1_000_000) ** 100, rel=1e-3)
    assert everything.right_among(100) == pytest.approx(100 * 500 / 1_000_000)


def test_figures_of_judged_queries() -> None:
    eleventh = ranked(*[0] * 10, 1)
    hundred_first = ranked(1, *[0] * 99, 1)
    values = judged_values([eleventh, hundred_first, ranked(0, 2)], [array(1), array(1, 1, 0), array(2, 1, 1, 1)])
    assert list(values) == ["ndcg@10", "mrr@10", "recall@100"]
    assert values["mrr@10"].tolist() == [0, 1, 1 / 2]
    assert values["recall@100"].tolist() == [1, 1 / 2, 1 / 4]
    ideal = 2 + 1 / math.log2(3) + 1 / 2 + 1 / math.log2(5)
    assert values["ndcg@10"] == pytest.approx([0, 1 / (1 + 1 / math.log2(3)), 2 / math.log2(3) / ideal])


def test_a_query_whose_judgements_are_all_zero_counts_nothing() -> None:
    values = judged_values([ranked(0, 0)], [array(0)])
    assert {name: each.tolist() for name, each in values.items()} == {"ndcg@10": [0], "mrr@10": [0], "recall@100": [0]}


def test_a_text_that_equals_the_right_one_is_right_and_no_negative() -> None:
    texts = ["yes,  PLEASE!", "\u00dcber C\u00ad#", "\u00fcber  c#", "U\u0308ber C#", "\u00fcber C++"]
    assert equal_to("\u00dcber C#", texts).tolist() == [False, True, True, True, False]
    assert [text_key(text) == text_key("\u00dcber C#") for text in texts] == [False, True, True, True, False]


def test_names_are_numbered_without_a_gap() -> None:
    assert group_numbers(["b", "a", "b", "c"]).tolist() == [0, 1, 0, 2]


def test_independent_examples_have_the_width_of_the_normal_approximation() -> None:
    values = (np.arange(1000) % 4 == 0).astype(np.float64)[:, None]
    low, high = intervals(values, np.arange(1000))[:, 0]
    half = 1.96 * np.sqrt(0.25 * 0.75 / 1000)
    assert (low, high) == pytest.approx((0.25 - half, 0.25 + half), abs=0.003)


def test_equal_examples_of_a_dialogue_say_no_more_than_one() -> None:
    dialogues = (np.arange(100) % 4 == 0).astype(np.float64)[:, None]
    one_each = intervals(dialogues, np.arange(100))
    ten_each = intervals(np.repeat(dialogues, 10, axis=0), np.repeat(np.arange(100), 10))
    np.testing.assert_allclose(ten_each, one_each)
    apart = intervals(np.repeat(dialogues, 10, axis=0), np.arange(1000))
    assert np.ptp(ten_each) > 2.5 * np.ptp(apart)


def test_dialogues_count_by_their_examples() -> None:
    """The mean is over the examples drawn: two dialogues, of one and of three examples."""
    means = resampled_means(np.array([[1.0], [0.0], [0.0], [0.0]]), np.array([0, 1, 1, 1]))[:, 0]
    values, counts = np.unique(means, return_counts=True)
    assert values.tolist() == [0, 1 / 4, 1]
    assert counts / RESAMPLES == pytest.approx([1 / 4, 1 / 2, 1 / 4], abs=0.02)


def test_figures_of_one_call_share_the_draws_and_every_call_draws_alike() -> None:
    first = np.random.default_rng(1).random(300)
    values, groups = np.column_stack([first, 1 - first, first]), np.arange(300) // 3
    means = resampled_means(values, groups)
    assert means.shape == (RESAMPLES, 3)
    np.testing.assert_array_equal(means[:, 0], means[:, 2])
    np.testing.assert_allclose(means[:, 0] + means[:, 1], 1)
    np.testing.assert_array_equal(resampled_means(values, groups), means)
    assert (resampled_means(values, groups, seed=1) != means).any()


def test_many_dialogues_are_drawn_some_resamples_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    values, groups = np.random.default_rng(0).random((40, 2)), np.arange(40)
    at_once = resampled_means(values, groups)
    monkeypatch.setattr("polyrank.model.measures._DRAWN_AT_ONCE", 1)
    np.testing.assert_allclose(resampled_means(values, groups), at_once)
