"""Waiting for what another thread or process is to do."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(holds: Callable[[], T], seconds: float = 60) -> T:
    """The first value that counts as true; fails where none has come in time."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"it has not come about within {seconds} s"
        time.sleep(0.005)
    return found
