"""An event loop whose clock stands still while anything is done, and moves on at once when all wait.

Tests of timeouts then take no time, and a machine that is busy changes nothing. Not for work on threads: the loop would
not wait for them.
"""

import asyncio
import selectors
from typing import Any


class SimulatedTime:
    """The clock, `now` in seconds; it can take the place of the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """Return the seconds."""
        return self.now

    perf_counter = monotonic

    def loop(self) -> asyncio.AbstractEventLoop:
        """Make an event loop by this clock."""
        return _Loop(self)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: SimulatedTime) -> None:
        self._simulated = clock
        super().__init__(_Selector(clock))

    def time(self) -> float:
        return self._simulated.now


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: SimulatedTime) -> None:
        super().__init__()
        self._simulated = clock

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout > 0:
            self._simulated.now += timeout
            timeout = 0
        return super().select(timeout)
