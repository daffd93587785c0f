"""Bootstrap intervals of known width; whole dialogues are drawn, and columns share the draws."""

import numpy as np
import pytest

from polyrank.model.metrics import RESAMPLES, group_numbers, intervals, resampled_means


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
    monkeypatch.setattr("polyrank.model.metrics._DRAWN_AT_ONCE", 1)
    np.testing.assert_allclose(resampled_means(values, groups), at_once)
