"""What waits for the model in one lane: who is next, and with whom in a batch."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray
from opentelemetry.trace import SpanContext

from polyrank.service.ranking.packing import pack

# A batch is chosen from so many batches' worth of what is next.
WINDOW_BATCHES = 2
# After so many batches' worth of one request those behind it come first.
TURN_BATCHES = 2

# Sequences in, an output each; bound to a model, so that sequences of two models never meet in a batch.
Forward = Callable[[list[Any]], Sequence[Any] | NDArray[Any]]


class Done(NamedTuple):
    """An output for each sequence, and the seconds that passed before the first of them began."""

    outputs: list[Any]
    waited: float


class Waiter(NamedTuple):
    """Somebody who waits for a work, since when and until when, and the request it is for."""

    future: "asyncio.Future[Done]"
    loop: asyncio.AbstractEventLoop
    since: float
    deadline: float
    request: SpanContext


class Work:
    """The sequences of one request, or of several that ask for the same.

    Attributes:
        pending: places of the sequences that have not begun, longest first.
        left: how many are not done.
        turn: tokens taken since it was last its turn.
        began: when the first sequence was taken; None: not yet.
        waiters: whoever wants it; nobody: it is dropped.
    """

    def __init__(self, forward: Forward, sequences: Sequence[Any], lengths: Sequence[int], key: Hashable) -> None:
        self.forward, self.sequences, self.lengths, self.key = forward, sequences, lengths, key
        self.outputs: list[Any] = [None] * len(sequences)
        self.pending = dict.fromkeys(sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True))
        self.left = len(sequences)
        self.turn = 0
        self.began: float | None = None
        self.waiters: list[Waiter] = []


class Piece(NamedTuple):
    """One sequence of a work."""

    work: Work
    at: int

    @property
    def length(self) -> int:
        """In tokens."""
        return self.work.lengths[self.at]


class Waiting:
    """Works in the order of their turns: first come, first served, but a long one lets others pass now and then.

    Args:
        budget: tokens a batch, padding included; 0: each sequence alone.

    Attributes:
        tokens: of all sequences that have not begun.
    """

    def __init__(self, budget: int) -> None:
        self.tokens = 0
        self._budget = budget
        self._works: dict[Work, None] = {}

    def add(self, work: Work) -> None:
        """Put a work behind all others."""
        self._works[work] = None
        self.tokens += sum(work.lengths)

    def drop(self, work: Work) -> None:
        """Forget what has not begun of a work."""
        self.tokens -= sum(work.lengths[at] for at in work.pending)
        work.pending.clear()
        self._works.pop(work, None)

    def all(self) -> list[Work]:
        """Every work that is not done."""
        return list(self._works)

    def expired(self, now: float) -> list[Work]:
        """Works that everybody has waited for in vain."""
        return [work for work in self._works if now > max(waiter.deadline for waiter in work.waiters)]

    def take(self, now: float) -> list[Piece]:
        """Take the next batch; nothing where nothing waits. The first in turn is always in it."""
        window = self._window()
        if not window:
            return []
        batch = [window[at] for at in pack([piece.length for piece in window], self._budget)]
        for work, at in batch:
            if work.began is None:
                work.began = now
            del work.pending[at]
            work.turn += work.lengths[at]
            self.tokens -= work.lengths[at]
        for work in {work: None for work, _ in batch if work.turn >= TURN_BATCHES * self._budget}:
            work.turn = 0
            self._works[work] = self._works.pop(work)
        return batch

    def _window(self) -> list[Piece]:
        """A few batches' worth, in turn, of what waits for the same model as the first."""
        window: list[Piece] = []
        tokens = 0
        for work in self._works:
            if not work.pending or (window and work.forward != window[0].work.forward):
                continue
            for at in work.pending:
                window.append(Piece(work, at))
                tokens += work.lengths[at]
                if tokens >= WINDOW_BATCHES * self._budget:
                    return window
        return window
