"""Which requests are let in: those that get done in time, by what they cost and how fast such work is done."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from polyrank.service.errors import DeadlineExceeded, Overloaded
from polyrank.service.observe.metrics import Metrics
from polyrank.service.scheduling.stages import SHARE_OF_TIME, Journey, Ticket

TOKENS_A_REQUEST = 128  # what any request costs, however short: forward passes and search
# So many measurements are remembered.
MEASUREMENTS = 16
# The n-th refusal in a row lowers a prediction by the n-th power of this; after so many all is measured anew.
DOUBT, MOST_DOUBTS = 0.92, 8


class Rate:
    """Seconds a unit of work: the median of the last measurements, each as heavy as its work.

    A moment in which the machine stood still, or a model's slow first batches, do not move it. It decides what is
    refused, and refused work teaches nothing: each refusal in a row lowers it more, so that some work is soon tried.
    """

    def __init__(self, fewest: int = 1) -> None:
        self._fewest, self._median, self._doubts = fewest, 0.0, 0
        self._measured: deque[tuple[float, float]] = deque(maxlen=MEASUREMENTS)  # seconds a unit, and units

    def learn(self, units: float, seconds: float) -> None:
        """Take in a measurement."""
        if self._doubts >= MOST_DOUBTS:
            self._measured.clear()
        self._measured.append((seconds / units, units))
        self._doubts, half = 0, sum(weight for _, weight in self._measured) / 2
        for seconds_a_unit, weight in sorted(self._measured):
            half -= weight
            if half <= 0:
                self._median = seconds_a_unit
                break

    def doubt(self) -> None:
        """Count a refusal."""
        self._doubts += 1

    def predict(self, units: float) -> float:
        """Return the seconds that so many units will take, lowered by refusals."""
        doubted: float = DOUBT ** (self._doubts * (self._doubts + 1) / 2)
        return self.measured(units) * doubted

    def measured(self, units: float) -> float:
        """Return the seconds by measurements alone; 0 before there are the `fewest`."""
        return units * self._median if len(self._measured) >= self._fewest else 0.0


# The speed is that of the last seconds in which there was anything to do. While little is known, that of a CPU is
# assumed, because a few short requests say nothing about long ones.
MEMORY_SECONDS = 5.0
FIRST_SECONDS, FIRST_TOKENS = 0.1, 1000.0
MOST_RETRY_SECONDS = 30


class Models(Protocol):
    """What counts the tokens that went through the models, ever."""

    done_tokens: int


class Admission:
    """Counts the work of all requests in progress, and how fast it gets done; for the event loop's thread.

    With `most_tokens` in progress no other request is let in; one request may exceed that. `turn_tokens` of a long
    request are done at a time, before others have their turn.
    """

    def __init__(
        self,
        most_tokens: int,
        turn_tokens: int,
        metrics: Metrics,
        models: Models,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._turn, self._metrics = most_tokens, turn_tokens, metrics
        self._models, self._clock = models, clock
        self._inside: dict[Ticket, None] = {}
        self._last_look, self._last_tokens = clock(), models.done_tokens
        self._busy_seconds = self._done_tokens = 0.0  # of the last few seconds in which there was a request

    @property
    def tokens(self) -> int:
        """Tokens of all requests in progress."""
        return sum(ticket.tokens for ticket in self._inside)

    @contextmanager
    def admitted(self, journey: Journey, tokens: int, new: int = 0) -> Iterator[None]:
        """Let a request in for the block; its tokens are estimated, `new` ones are those of texts to encode.

        Raises:
            DeadlineExceeded: its time is already over.
            Overloaded: there is too much before it; carries when to try again.
        """
        if self._clock() >= journey.deadline:
            raise DeadlineExceeded("before it began")
        others = [*self._inside]
        if not self._has_room(others, tokens, journey.deadline):
            wait = self._seconds(self._before(others, tokens))
            raise Overloaded(len(others), max(1, min(MOST_RETRY_SECONDS, math.ceil(wait))))
        ticket = journey.ticket = Ticket(tokens, new)
        self._inside[ticket] = None
        self._metrics.queue_depth.inc()
        self._metrics.queue_tokens.inc(tokens)
        try:
            yield
            self._done_tokens += TOKENS_A_REQUEST * ticket.searches
        finally:
            self._look(self._clock())
            del self._inside[ticket]
            self._metrics.queue_depth.dec()
            self._metrics.queue_tokens.dec(ticket.tokens)

    def searches_again(self, journey: Journey, tokens: int) -> bool:
        """Let a request that is in search once more, if there is room beside the others; returns whether there is."""
        ticket = journey.ticket
        assert ticket is not None, "it is in"
        others = [each for each in self._inside if each is not ticket]
        if not self._has_room(others, tokens, journey.deadline):
            return False
        ticket.tokens, ticket.searches = ticket.tokens + tokens, ticket.searches + 1
        self._metrics.queue_tokens.inc(tokens)
        return True

    def _has_room(self, others: Sequence[Ticket], tokens: int, deadline: float) -> bool:
        """Whether so many tokens can be taken on beside other requests, and be done in time."""
        now = self._clock()
        self._look(now)
        before = self._before(others, tokens)
        # A request that is alone may take all its time, because no other could use it. Else the rest of the time is for
        # requests that overtake it, and for chance.
        late = bool(others) and self._seconds(before + tokens) > SHARE_OF_TIME * (deadline - now)
        full = before >= self._most or (tokens > self._turn and sum(each.tokens for each in others) >= self._most)
        return not (late or full)

    def _before(self, others: Sequence[Ticket], tokens: int) -> int:
        """Return what is done before a request of so many tokens: of longer ones only as much as turns allow."""
        most = max(tokens, self._turn)
        return sum(min(ticket.tokens, most) for ticket in others)

    def _look(self, now: float) -> None:
        """Take in what was done since the last look, and how long it took."""
        total = self._models.done_tokens
        if self._inside:
            decay = math.exp((self._last_look - now) / MEMORY_SECONDS)
            self._busy_seconds = decay * self._busy_seconds + (1 - decay) * MEMORY_SECONDS
            self._done_tokens = decay * self._done_tokens + total - self._last_tokens
        self._last_look, self._last_tokens = now, total

    def _seconds(self, tokens: int) -> float:
        """Return how long so many tokens take at the recent speed."""
        return tokens * (FIRST_SECONDS + self._busy_seconds) / (FIRST_TOKENS + self._done_tokens)
