"""Errors that tell of a shortage of the system."""

import pytest

from polyrank.model.errors import shortage_in


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), MemoryError(), OSError(24, "Too many open files")]
)
def test_a_shortage_is_recognised(error: Exception) -> None:
    assert shortage_in(error) is not None


@pytest.mark.parametrize("error", [None, ValueError("a wrong value"), OSError(2, "No such file")])
def test_other_errors_are_none(error: Exception | None) -> None:
    assert shortage_in(error) is None
