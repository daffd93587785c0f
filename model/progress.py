"""Tells what long work does: each stage when it ends, and every few seconds what goes on.

It is told by log lines of the level INFO: a server has them in its log, and a command prints those that matter to who
waits for it. Who shows something calls `end_silence`; after a while without it, one thread asks what goes on.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Final

# Nobody shall wait for five without a line, and a busy machine is late.
SILENT_SECONDS: Final = 3.0
STILL: Final = "still "  # begins what is said of a stage that goes on

log = logging.getLogger(__name__)


class _Watch:
    """Asks the innermost of those that have something to tell, when nothing was told for SILENT_SECONDS."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tellers: list[Callable[[], None]] = []
        self._runs = False
        self.silent_since = time.monotonic()

    def add(self, tell: Callable[[], None]) -> None:
        with self._changed:
            if not self._tellers:
                self.silent_since = time.monotonic()
            if not self._runs:
                threading.Thread(target=self._run, name="progress", daemon=True).start()  # it may lack the memory
                self._runs = True
            self._tellers.append(tell)

    def remove(self, tell: Callable[[], None]) -> None:
        with self._changed:
            self._tellers.remove(tell)
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while self._tellers:
                left = self.silent_since + SILENT_SECONDS - time.monotonic()
                if left > 0:
                    self._changed.wait(left)
                else:
                    self.silent_since = time.monotonic()
                    self._tellers[-1]()
            self._runs = False


_watch = _Watch()


def end_silence() -> None:
    """Say that something was shown just now."""
    _watch.silent_since = time.monotonic()


@contextmanager
def tell_in_silence(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` on another thread whenever nothing was told for a while during the block, or a block within it."""
    _watch.add(tell)
    try:
        yield
    finally:
        _watch.remove(tell)


@contextmanager
def stage(doing: str) -> Iterator[None]:
    """Tell what the block does while it lasts, and how many seconds it took at its end, unless it fails."""
    began = time.monotonic()

    def tell(what: str) -> None:
        log.info(what, extra={"fields": {"seconds": round(time.monotonic() - began, 1)}})

    context = copy_context()  # the log may add what it holds, on whatever thread
    with tell_in_silence(lambda: context.run(tell, f"{STILL}{doing}")):
        yield
    tell(doing)
