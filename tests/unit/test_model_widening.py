"""Stored rows in float32: every number of float16."""

import numpy as np
import pytest

from polyrank.model.search.widening import widen, widened

ALL = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(256, 256)


def test_every_float16_is_converted_exactly() -> None:
    expected = ALL.astype(np.float32)
    np.testing.assert_array_equal(widened(ALL).view(np.int32), expected.view(np.int32))
    finite = ALL[np.isfinite(ALL)][None]
    into = np.empty(finite.shape, np.float32)
    widen(finite, into)
    np.testing.assert_array_equal(into.view(np.int32), finite.astype(np.float32).view(np.int32))  # zeros have signs


def test_what_is_not_finite_is_large_where_it_is_not_looked_for() -> None:
    bad = ALL[~np.isfinite(ALL)][None]
    into = np.empty(bad.shape, np.float32)
    widen(bad, into)
    assert np.abs(into).min() >= 2**16


FINITE = ALL[np.isfinite(ALL).all(axis=1)]


@pytest.mark.parametrize(
    "rows", [np.empty((0, 3), np.float16), FINITE[:, :100], FINITE[::2, ::-3], ALL[:, :100], ALL.astype(np.float32)]
)
def test_rows_may_lie_anywhere(rows: np.ndarray) -> None:
    np.testing.assert_array_equal(widened(rows), rows.astype(np.float32))


def test_rows_in_float32_are_not_copied() -> None:
    rows = np.ones((2, 3), np.float32)
    assert widened(rows) is rows
