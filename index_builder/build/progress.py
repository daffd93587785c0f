"""The progress of a build: what its caller hears of it, and how many seconds each stage took."""

import time
from collections.abc import Callable

# In these stages other processes begin to see the generation, so the build can no longer be cancelled.
PUBLISHING = ("rename", "CURRENT")

# Called with (stage, done, total); the total is None while it is unknown.
OnProgress = Callable[[str, int, int | None], None]


def no_progress(_stage: str, _done: int, _total: int | None) -> None:
    """Report to nobody."""


def within(on_progress: OnProgress, before: int, total: int) -> OnProgress:
    """Return what passes the progress of a part on: its rows come behind `before` ones, of `total` of all parts."""
    return lambda stage, done, _: on_progress(stage, before + done, total)


class StageClock:
    """Passes progress on and adds up the seconds of each stage. What the caller's function raises ends the build.

    Attributes:
        seconds: by stage, up to the latest call.
    """

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._start = self._since = time.monotonic()
        self._latest: tuple[str, int, int | None] = ("read", 0, None)
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Announce the next step; the time since the last call belongs to the stage announced then."""
        now, before = time.monotonic(), self._latest[0]
        self.seconds[before] = self.seconds.get(before, 0.0) + now - self._since
        self._latest, self._since = (stage, done, total), now
        self._on_progress(stage, done, total)

    def advance(self, rows: int) -> None:
        """Announce that so many more rows of the current stage are done."""
        stage, done, total = self._latest
        self(stage, done + rows, total)

    def elapsed(self) -> float:
        """Seconds since the beginning of the build."""
        return time.monotonic() - self._start
