"""The progress of a build: what its caller is told, and how many seconds each stage took."""

import time
from collections.abc import Callable

# In these stages other processes begin to see the generation, so the build can no longer be cancelled.
PUBLISHING = ("rename", "CURRENT")

# Called with (stage, done, total); the total is None while it is unknown.
OnProgress = Callable[[str, int, int | None], None]


def no_progress(_stage: str, _done: int, _total: int | None) -> None:
    """Report to nobody."""


class StageClock:
    """Passes progress on and adds up the seconds of each stage.

    Args:
        on_progress: the build's caller. What it raises ends the build.

    Attributes:
        seconds: by stage, up to the latest call.
    """

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._start = self._since = time.monotonic()
        self._stage = "read"
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Announce the next step; the time since the last call belongs to the stage announced then."""
        now = time.monotonic()
        self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now
        self._on_progress(stage, done, total)

    def elapsed(self) -> float:
        """Seconds since the beginning of the build."""
        return time.monotonic() - self._start
