"""A circuit breaker: a server that keeps failing is not asked for a while, then asked once, to see."""

import random
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from threading import Lock

FAILURES_IN_A_ROW = 5
WINDOW_CALLS = 20
OPEN_SECONDS = 1.0
LONGEST_OPEN_SECONDS = 30.0
JITTER = 0.2  # share of the time open, up or down, so that many processes do not come back at one moment


class State(IntEnum):
    """What a breaker does with calls; the values are those of `polyrank_redis_breaker_state`."""

    CLOSED = 0  # every call goes through
    HALF_OPEN = 1  # one call is under way, to see; all others are refused
    OPEN = 2  # every call is refused


class Breaker:
    """Decides whether a server is asked. Safe to use from several threads.

    It opens after FAILURES_IN_A_ROW, or when more than half of the last WINDOW_CALLS failed. Each time the one call of
    HALF_OPEN fails, the time until the next one doubles. `on_change` is called with every new state, while the breaker
    is locked.
    """

    def __init__(
        self,
        on_change: Callable[[State], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._on_change, self._clock, self._chance = on_change, clock, chance
        self._lock = Lock()
        self._state = State.CLOSED
        self._changes = 0
        self._failed: deque[bool] = deque(maxlen=WINDOW_CALLS)  # since it was closed
        self._in_a_row = 0
        self._opened_in_a_row = 0
        self._ask_at = 0.0

    @property
    def state(self) -> State:
        """The state; OPEN lasts until the first call after its time."""
        return self._state

    def admit(self) -> int | None:
        """Return a ticket for a call, to be given to `report` with its outcome; None: the server must not be asked."""
        with self._lock:
            if self._state is State.OPEN and self._clock() >= self._ask_at:
                self._change(State.HALF_OPEN)
                return self._changes
            return self._changes if self._state is State.CLOSED else None

    def report(self, ticket: int, *, ok: bool) -> None:
        """Report the outcome of a call; it counts only if the state has not changed since the call was admitted."""
        with self._lock:
            if ticket != self._changes:
                return
            if self._state is State.HALF_OPEN:
                self._close() if ok else self._open()
                return
            self._failed.append(not ok)
            self._in_a_row = 0 if ok else self._in_a_row + 1
            full = len(self._failed) == WINDOW_CALLS
            if self._in_a_row >= FAILURES_IN_A_ROW or (full and 2 * sum(self._failed) > WINDOW_CALLS):
                self._open()

    def _open(self) -> None:
        seconds = min(OPEN_SECONDS * 2**self._opened_in_a_row, LONGEST_OPEN_SECONDS)
        self._opened_in_a_row = min(self._opened_in_a_row + 1, 16)
        self._ask_at = self._clock() + seconds * (1 + JITTER * (2 * self._chance() - 1))
        self._change(State.OPEN)

    def _close(self) -> None:
        self._failed.clear()
        self._in_a_row = self._opened_in_a_row = 0
        self._change(State.CLOSED)

    def _change(self, state: State) -> None:
        self._state = state
        self._changes += 1
        self._on_change(state)
