"""Who may come in: no more work than can be waited for, told before any of it is done."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from polyrank.service.errors import DeadlineExceeded, Overloaded
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking.estimates import TOKENS_A_REQUEST

# The speed is that of the last few seconds in which there was anything to do...
MEMORY_SECONDS = 5.0
# ...and, while little is known, that of a CPU: a few short requests say nothing about long ones.
FIRST_SECONDS = 0.1
FIRST_TOKENS = 1000.0
# A request is let in when those before it, and itself, take this share of its time at most:
# what is left is for those that are quicker than it, and for chance.
SHARE_OF_TIME = 0.5
MOST_RETRY_SECONDS = 30


class Ticket:
    """A request that was let in.

    Attributes:
        tokens: what it adds to the work; may be put right when more is known.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens


class Admission:
    """Counts the work of all requests in the house, and how fast it gets done; for the event loop's thread.

    Args:
        most_tokens: with so many in the house nobody else is let in. One request may hold more, if it finds less.
        turn_tokens: so many of a long request are done at a time, before others have their turn.
        metrics: told of the queue.
        progress: how many tokens were done, ever.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        most_tokens: int,
        turn_tokens: int,
        metrics: Metrics,
        progress: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._turn, self._metrics = most_tokens, turn_tokens, metrics
        self._progress, self._clock = progress, clock
        self._inside: dict[Ticket, None] = {}
        self._looked_at, self._seen = clock(), progress()
        self._busy_seconds = 0.0  # both of the last few seconds in which somebody was inside
        self._done_tokens = 0.0

    @property
    def tokens(self) -> int:
        """In the house."""
        return sum(ticket.tokens for ticket in self._inside)

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
        self._look(now)
        before = self._before(tokens)
        wait = self._seconds(before)
        # Alone it may take all its time: nobody else could use it.
        late = bool(self._inside) and self._seconds(before + tokens) > SHARE_OF_TIME * (deadline - now)
        full = before >= self._most or (tokens > self._turn and self.tokens >= self._most)
        if late or full:
            raise Overloaded(len(self._inside), max(1, min(MOST_RETRY_SECONDS, math.ceil(wait))))
        ticket = Ticket(tokens)
        self._inside[ticket] = None
        self._show()
        try:
            yield ticket
            self._done_tokens += TOKENS_A_REQUEST
        finally:
            self._look(self._clock())
            del self._inside[ticket]
            self._show()

    def _before(self, tokens: int) -> int:
        """What is done before a request of so many tokens: of longer ones only as much as turns allow."""
        most = max(tokens, self._turn)
        return sum(min(ticket.tokens, most) for ticket in self._inside)

    def _look(self, now: float) -> None:
        """Take in what was done since the last look, and how long it took."""
        progress = self._progress()
        if self._inside:
            kept = math.exp((self._looked_at - now) / MEMORY_SECONDS)
            self._busy_seconds = kept * self._busy_seconds + (1 - kept) * MEMORY_SECONDS
            self._done_tokens = kept * self._done_tokens + progress - self._seen
        self._looked_at, self._seen = now, progress

    def _seconds(self, tokens: int) -> float:
        """How long so many take to be done, at the speed of late."""
        return tokens * (FIRST_SECONDS + self._busy_seconds) / (FIRST_TOKENS + self._done_tokens)

    def _show(self) -> None:
        self._metrics.show_queue(len(self._inside), self.tokens)
