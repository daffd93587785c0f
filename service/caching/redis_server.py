"""One Redis as this process uses it: a read takes no longer than its request may wait, and no request waits for writes.

Callers say what is read or written (vector_cache.py, result_cache.py). A circuit breaker
keeps them from a server that keeps failing: it is not asked for a while, then asked once, to see.
"""

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from enum import IntEnum
from threading import BoundedSemaphore, Lock
from typing import Generic, NamedTuple, TypeVar

from polyrank.index_builder.errors import StoreUnavailable
from polyrank.index_builder.redis_client import SERVING_TIMEOUT_SECONDS, Seal, connect, disconnect, translated

BUDGET_SECONDS = 0.045  # with what it takes to notice, 50 ms
READERS = 8  # requests that may read at one moment; each has a connection
MAX_PENDING_WRITES = 8
FREE_WITHIN_SECONDS = 0.02  # wait for a connection, where the server takes no more of them
LEAST_SECONDS = 0.005  # with less left of its budget, a request does not ask

FAILURES_IN_A_ROW = 5
WINDOW_CALLS = 20
OPEN_SECONDS = 1.0
LONGEST_OPEN_SECONDS = 30.0
JITTER = 0.2  # share of the time open, up or down, so that many processes do not come back at one moment

T = TypeVar("T")

log = logging.getLogger(__name__)


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


class Budget:
    """How long one request may wait for Redis, in all its reads together: caches are there to save time.

    `left`: seconds; negative where it has overspent.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.left = BUDGET_SECONDS if seconds is None else seconds

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Take the block's time from what is left."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.left -= time.monotonic() - began


class Answer(NamedTuple, Generic[T]):
    """What the first steps of a read gave, whether Redis answered at all, and whether it was asked."""

    parts: list[T]
    available: bool
    was_asked: bool = True


class RedisServer:
    """Reads within a budget, and writes in the background. Safe to use from several threads.

    The client's timeout bounds each answer, not the sum of many slow ones. So another thread reads, and the caller
    waits for it as long as its budget allows. After each read (with the time its caller waited) and write `observe` is
    called: what, seconds. `show` is called with every new state of the breaker for reads.
    """

    def __init__(
        self,
        url: str,
        observe: Callable[[str, float], None] = lambda *_: None,
        show: Callable[[State], None] = lambda _: None,
    ) -> None:
        self.client = connect(url, SERVING_TIMEOUT_SECONDS, READERS + 1, FREE_WITHIN_SECONDS)
        self.seal = Seal(url)
        self._observe, self._show = observe, show
        self._readers = ThreadPoolExecutor(READERS, "redis-read")
        self._writer = ThreadPoolExecutor(1, "redis-write")
        self._pending = BoundedSemaphore(MAX_PENDING_WRITES)
        # Two breakers, because a full Redis refuses writes and still answers reads.
        self._reads, self._writes = Breaker(self._changed), Breaker()
        self._writer.submit(self._greet)

    def _greet(self) -> None:
        """Say at the start if Redis does not answer: nothing else would before the first request that needs it."""
        try:
            with translated():
                self.client.ping()
        except StoreUnavailable as error:
            log.warning(
                "redis does not answer; the server does without until it does", extra={"fields": {"why": error}}
            )

    def _changed(self, state: State) -> None:
        self._show(state)
        if state is not State.HALF_OPEN:
            log.warning("redis answers again" if state is State.CLOSED else "redis is left alone for a while")

    def read(self, what: str, steps: Sequence[Callable[[], T]], budget: Budget) -> Answer[T]:
        """Take the steps one after the other, as many as the budget allows; an outage is no error."""
        if budget.left < LEAST_SECONDS or (ticket := self._reads.admit()) is None:
            return Answer([], available=False, was_asked=False)
        parts: list[T] = []
        why: StoreUnavailable | None = None
        began, until = time.monotonic(), time.monotonic() + budget.left
        try:
            reading = self._readers.submit(_take, steps, parts, until)
            with budget.spending():
                reading.result(budget.left)
        except StoreUnavailable as error:
            why = error
        except TimeoutError:
            reading.cancel()
        finally:
            waited = time.monotonic() - began
            if not parts:  # not even the first step was in time
                why = why or StoreUnavailable(f"no answer within {1000 * waited:.0f} ms")
            self._reads.report(ticket, ok=why is None)
            self._observe(what, waited)
        if why is not None:
            log.warning("redis is unavailable", extra={"fields": {"read": what, "why": why}})
        return Answer(list(parts), why is None)

    def write(self, what: str, work: Callable[[], None], on_failure: Callable[[], None]) -> None:
        """Write in the background; not at all where Redis cannot keep up, or fails."""
        if not self._pending.acquire(blocking=False):
            return
        ticket = self._writes.admit()
        if ticket is None:
            self._pending.release()
            return
        self._writer.submit(self._put, what, work, on_failure, ticket)

    def _put(self, what: str, work: Callable[[], None], on_failure: Callable[[], None], ticket: int) -> None:
        began, ok = time.monotonic(), False
        try:
            work()
            ok = True
        except StoreUnavailable as error:
            on_failure()
            log.warning("redis takes no values", extra={"fields": {"write": what, "why": error}})
        finally:
            self._writes.report(ticket, ok=ok)
            self._observe(what, time.monotonic() - began)
            self._pending.release()

    def close(self) -> None:
        """Write what waits, then close the connections; returns at once."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._writer.submit(disconnect, self.client)
        self._writer.shutdown(wait=False)


def _take(steps: Sequence[Callable[[], T]], parts: list[T], until: float) -> None:
    """Take step after step until the reader no longer waits."""
    for step in steps:
        if time.monotonic() > until:
            return
        parts.append(step())
