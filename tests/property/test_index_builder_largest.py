"""The largest of many numbers are those of a sorted list, with ties in row order, whatever is allowed."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from polyrank.index_builder.index.retrieval import largest_rows

# Few different numbers tie often; many rows for the number wanted are looked through in groups.
NUMBERS = st.one_of(st.sampled_from([-2.0, 0.0, 0.5, 3.0]), st.floats(-1e6, 1e6, width=32))
VALUES = st.integers(0, 300).flatmap(lambda size: arrays(np.float32, size, elements=NUMBERS, fill=st.just(0.0)))


@given(VALUES, st.integers(1, 12), st.one_of(st.none(), st.integers(0, 2**32 - 1)), st.floats(0, 1))
def test_the_largest_rows_are_the_first_of_the_sorted_ones(
    values: np.ndarray, count: int, seed: int | None, share: float
) -> None:
    allowed = None if seed is None else np.random.default_rng(seed).random(len(values)) < share
    rows = np.arange(len(values)) if allowed is None else np.flatnonzero(allowed)
    expected = sorted(rows.tolist(), key=lambda row: (-values[row], row))
    found = largest_rows(values, count, allowed)
    for most in range(count, 0, -1):
        first = found.first(most)
        assert first.rows.tolist() == expected[:most]
        assert first.values.tolist() == values[expected[:most]].tolist()
        assert first.rest == (values[expected[most]] if most < len(expected) else -np.inf)
