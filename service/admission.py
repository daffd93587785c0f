"""Who may come in: no more work than can be waited for, told before any of it is done."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from service.errors import DeadlineExceeded, Overloaded
from service.metrics import Metrics

# The speed is that of the last few seconds in which there was anything to do...
MEMORY_SECONDS = 5.0
# ...and, while little is known, that of a CPU: a few short requests say nothing about long ones.
FIRST_SECONDS = 0.1
FIRST_TOKENS = 1000.0
# A request is let in when those before it, and itself, take this share of its time at most.
SHARE_OF_TIME = 0.8
MOST_RETRY_SECONDS = 30


class Ticket:
    """A request that was let in.

    Attributes:
        tokens: what it adds to the work.
    """

    def __init__(self, admission: "Admission", tokens: int) -> None:
        self._admission = admission
        self.tokens = tokens

    def amend(self, tokens: int) -> None:
        """Say what it adds after all."""
        self._admission.tokens += tokens - self.tokens
        self.tokens = tokens


class Admission:
    """Counts the tokens of all requests in the house, and how fast they get done; for the event loop's thread.

    Args:
        most_tokens: with so many in the house nobody else is let in. One request may hold more, if it finds less.
        metrics: told of the queue.
        clock: monotonic seconds.

    Attributes:
        tokens: in the house.
    """

    def __init__(self, most_tokens: int, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self.tokens = 0
        self._most, self._metrics, self._clock = most_tokens, metrics, clock
        self._requests = 0
        self._since = 0.0  # when the house was last looked at, while somebody is in it
        self._busy_seconds = 0.0  # both of the last few seconds
        self._done_tokens = 0.0

    @contextmanager
    def admitted(self, tokens: int, deadline: float) -> Iterator[Ticket]:
        """Let a request in for the block.

        Args:
            tokens: of all its texts, as far as can be told.
            deadline: its own, on the monotonic clock.

        Raises:
            DeadlineExceeded: its time is over already.
            Overloaded: there is too much before it; says when to come again.
        """
        now = self._clock()
        if now >= deadline:
            raise DeadlineExceeded("before it began")
        self._count_time(now)
        wait = self._seconds(self.tokens)
        # Alone it may take all its time: nobody else could use it.
        late = self._requests > 0 and wait + self._seconds(tokens) > SHARE_OF_TIME * (deadline - now)
        if self.tokens >= self._most or late:
            raise Overloaded(self._requests, max(1, min(MOST_RETRY_SECONDS, math.ceil(wait))))
        ticket = Ticket(self, tokens)
        self._requests += 1
        self.tokens += tokens
        self._show()
        done = 0
        try:
            yield ticket
            done = ticket.tokens
        finally:
            self._count_time(self._clock())
            self._done_tokens += done
            self._requests -= 1
            self.tokens -= ticket.tokens
            self._show()

    def _count_time(self, now: float) -> None:
        if self._requests:
            kept = math.exp((self._since - now) / MEMORY_SECONDS)
            self._busy_seconds = kept * self._busy_seconds + (1 - kept) * MEMORY_SECONDS
            self._done_tokens *= kept
        self._since = now

    def _seconds(self, tokens: int) -> float:
        """How long so many take to be done, at the speed of late."""
        return tokens * (FIRST_SECONDS + self._busy_seconds) / (FIRST_TOKENS + self._done_tokens)

    def _show(self) -> None:
        self._metrics.show_queue(self._requests, self.tokens)
