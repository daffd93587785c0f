"""Leaving a server alone that has just failed."""

import time
from collections.abc import Callable

BACK_OFF_SECONDS = 1.0


class BackOff:
    """Whether to ask a server again: not for a while after each failure.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._over_at = float("-inf")

    def begin(self) -> None:
        """Note a failure."""
        self._over_at = self._clock() + BACK_OFF_SECONDS

    def is_over(self) -> bool:
        """Whether the server may be asked."""
        return self._clock() >= self._over_at
