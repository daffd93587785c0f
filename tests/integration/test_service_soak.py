"""A server that is busy for minutes fails nobody and holds no more memory at the end."""

import os

import pytest
from benchmarks.load.soak import parser, soak

MINUTES = float(os.environ.get("SOAK_MINUTES", "5"))


@pytest.mark.soak
@pytest.mark.timeout(MINUTES * 60 + 600)
def test_nobody_is_failed_and_memory_does_not_grow() -> None:
    found = soak(parser().parse_args(["--minutes", str(MINUTES)]))
    assert set(found["statuses"]) == {"200"}, found
    assert found["p99_ms"] <= 2000, found
    assert found["resident_drift"] < 0.05, found
