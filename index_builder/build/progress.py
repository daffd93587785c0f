"""How far a build is: what its caller is told, and how long each stage took."""

import time
from collections.abc import Callable

# From the first of these on a build is seen by others, and can no longer be taken back.
PUBLISHING = ("rename", "CURRENT")

# (stage, done, total); the total is None while it is unknown.
OnProgress = Callable[[str, int, int | None], None]


def no_progress(_stage: str, _done: int, _total: int | None) -> None:
    """Nobody watches."""


class StageClock:
    """Passes progress on, and adds up each stage's seconds."""

    def __init__(self, progress: OnProgress) -> None:
        self._progress = progress
        self._start = self._since = time.monotonic()
        self._stage = "read"
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Announce what is about to be done, and charge the time since the last call to what was announced then."""
        now = time.monotonic()
        self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now
        self._progress(stage, done, total)

    def finish(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._start
