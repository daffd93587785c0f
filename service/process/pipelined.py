"""Turns for pipelined requests: those that came before the answer to the one before, on the same connection.

A few bytes ask for many answers, which their client may not even read. So they begin one after the other over all
connections. A client that waits for its answers never needs a turn.
"""

import asyncio
from typing import Final, Protocol

# The next one begins after so long even if this one is not answered: it may wait for its body, or for a model.
TURN_SECONDS: Final = 0.1


class Pipelined(Protocol):
    """A connection on which a request waits for its turn."""

    def begin_next(self) -> None:
        """Begin the request that waits; called once in a turn."""


class Turns:
    """Gives turns in the order in which they were asked for; use it in the event loop only."""

    def __init__(self) -> None:
        self._waiting: dict[Pipelined, None] = {}  # an ordered set
        self._present: Pipelined | None = None
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, connection: Pipelined) -> None:
        """Wait for a turn; asking again changes nothing."""
        self._waiting[connection] = None
        if self._present is None:
            self._next()

    def end(self, connection: Pipelined) -> None:
        """Let the next one begin if it is this one's turn."""
        if connection is self._present:
            self._next()

    def leave(self, connection: Pipelined) -> None:
        """Wait no longer, and end the turn."""
        self._waiting.pop(connection, None)
        self.end(connection)

    def _next(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._present = next(iter(self._waiting), None)
        if self._present is not None:
            del self._waiting[self._present]
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(TURN_SECONDS, self.end, self._present)
            loop.call_soon(self._present.begin_next)  # others come between
