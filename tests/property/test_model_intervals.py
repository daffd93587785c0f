"""Properties of every bootstrap interval, and of the difference of two models."""

import numpy as np
import pytest
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from polyrank.model.measures import group_numbers, intervals, resampled_means

Floats = NDArray[np.float64]
seeds = st.integers(0, 2**32 - 1)


@st.composite
def examples(draw: st.DrawFn) -> tuple[Floats, NDArray[np.int64]]:
    """Draw figures between 0 and 1 of up to 60 examples, in few or many dialogues."""
    rng = np.random.default_rng(draw(seeds))
    n, dialogues = draw(st.integers(1, 60)), draw(st.integers(1, 60))
    values = draw(st.sampled_from([rng.random(n), rng.integers(0, 2, n), 1 / rng.integers(1, 21, n)]))
    return values.astype(np.float64), group_numbers(rng.integers(0, dialogues, n).tolist())


@settings(max_examples=cases(40))
@given(examples())
def test_an_interval_holds_its_estimate_and_stays_among_the_values(drawn: tuple[Floats, NDArray[np.int64]]) -> None:
    values, groups = drawn
    low, high = intervals(values[:, None], groups)[:, 0]
    assert values.min() - 1e-12 <= low <= values.mean() + 1e-12
    assert values.mean() - 1e-12 <= high <= values.max() + 1e-12


@settings(max_examples=cases(20))
@given(examples())
def test_a_model_differs_from_itself_by_nothing_for_certain(drawn: tuple[Floats, NDArray[np.int64]]) -> None:
    values, groups = drawn
    columns = np.column_stack([values, values, values - values])
    assert intervals(columns, groups)[:, 2].tolist() == [0, 0]


@settings(max_examples=cases(20))
@given(seeds, st.sampled_from([0.05, 0.1, 0.2]))
def test_pairing_narrows_the_difference_of_models_that_agree(seed: int, disagree: float) -> None:
    """Two models fail on mostly the same examples; pairing removes the common part."""
    rng = np.random.default_rng(seed)
    one = (rng.random(400) < 0.6).astype(np.float64)
    other = np.where(rng.random(400) < disagree, 1 - one, one)
    groups = np.arange(400) // 2
    paired = np.ptp(intervals((one - other)[:, None], groups))
    unpaired_means = resampled_means(one[:, None], groups) - resampled_means(other[:, None], groups, seed=1)
    assert paired < 0.85 * np.ptp(np.quantile(unpaired_means, [0.025, 0.975]))


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_nineteen_of_twenty_intervals_hold_the_truth(share: float) -> None:
    """Dialogues of unequal length whose examples succeed or fail together."""
    held = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        groups = np.repeat(np.arange(120), rng.integers(1, 6, 120))
        values = (rng.random(120) < share).astype(np.float64)[groups]
        low, high = intervals(values[:, None], groups)[:, 0]
        held += low <= share <= high
    assert held >= 88
