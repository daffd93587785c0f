"""What waits for the model in one lane: who is next, and with whom in a batch."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from numpy.typing import NDArray
from opentelemetry.trace import SpanContext

from polyrank.service.ranking.batching.packing import pack

# A batch is chosen from as many sequences as fill so many batches.
WINDOW_BATCHES = 2
# After so many batches' worth of one long work those behind it come first.
TURN_BATCHES = 2
# So many batches of short works may follow each other while a long one waits.
MOST_SHORT_BATCHES = 3

# Takes the sequences of one batch, gives an output for each. Bound to a model, so sequences of two models never mix.
RunBatch = Callable[[list[Any]], Sequence[Any] | NDArray[Any]]
# Takes what a batch made of one work: positions of its sequences, and their outputs. Called on the model's thread.
OnBatch = Callable[[list[int], list[Any]], None]


class Done(NamedTuple):
    """An output for each sequence, and the seconds before the first of them began."""

    outputs: list[Any]
    waited: float


class Waiter(NamedTuple):
    """One who waits for a work: since when, until when, and for which request."""

    future: "asyncio.Future[Done]"
    loop: asyncio.AbstractEventLoop
    since: float
    deadline: float
    request: SpanContext


class Work:
    """The sequences of one request, or of several that ask for the same.

    Attributes:
        run: the model's function.
        lengths: of the sequences, in tokens.
        key: works with the same `run` and key, other than None, ask for the same.
        on_batch: gets outputs as they are made, also those of a batch that ends after everybody has left.
        resumes: what was made counts even if the rest is never made: somebody keeps it.
        pending: positions of the sequences that have not begun, longest first.
        left: how many are not done.
        tokens: of the sequences that have not begun.
        turn: tokens taken since its turn began.
        began: when the first sequence was taken; None: not yet.
        waiters: all who want the outputs; without any it is dropped.
    """

    def __init__(
        self,
        run: RunBatch,
        sequences: Sequence[Any],
        lengths: Sequence[int],
        key: Hashable = None,
        on_batch: OnBatch | None = None,
        resumes: bool = False,
    ) -> None:
        self.run, self.sequences, self.lengths, self.key = run, sequences, lengths, key
        self.on_batch, self.resumes = on_batch, resumes
        self.outputs: list[Any] = [None] * len(sequences)
        self.pending = dict.fromkeys(sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True))
        self.left = len(sequences)
        self.tokens = sum(lengths)
        self.turn = 0
        self.began: float | None = None
        self.waiters: list[Waiter] = []

    @property
    def deadline(self) -> float:
        """When the last of its waiters will be out of time."""
        return max(waiter.deadline for waiter in self.waiters)


class Entry(NamedTuple):
    """One sequence of a work."""

    work: Work
    at: int

    @property
    def length(self) -> int:
        """Its length in tokens."""
        return self.work.lengths[self.at]


class LaneQueue:
    """Works in the order of their turns.

    Short works, of one batch at most, are first come, first served. They pass long ones, which take turns of two
    batches among themselves, and one batch of four while short ones wait.

    Attributes:
        tokens: of all sequences that have not begun.
    """

    def __init__(self, budget: int) -> None:
        self.tokens = 0
        self._budget = budget
        self._short: dict[Work, None] = {}
        self._long: dict[Work, None] = {}
        self._short_batches = 0  # since the last batch that began with a long work

    def add(self, work: Work) -> None:
        """Put a work behind all others of its kind."""
        is_short = work.tokens <= self._budget or len(work.sequences) == 1
        (self._short if is_short else self._long)[work] = None
        self.tokens += work.tokens

    def drop(self, work: Work) -> None:
        """Forget what has not begun of a work."""
        self.tokens -= work.tokens
        work.tokens = 0
        work.pending.clear()
        self._short.pop(work, None)
        self._long.pop(work, None)

    def all(self) -> list[Work]:
        """Return every work that is not done."""
        return [*self._short, *self._long]

    def expired(self, now: float) -> list[Work]:
        """Return the works whose waiters are all out of time."""
        return [work for work in self.all() if now > work.deadline]

    def take(self, now: float) -> list[Entry]:
        """Take the next batch, with the first in turn always in it; empty where nothing waits."""
        window = self._window()
        if not window:
            return []
        batch = [window[at] for at in pack([entry.length for entry in window], self._budget)]
        for work, at in batch:
            if work.began is None:
                work.began = now
            del work.pending[at]
            work.turn += work.lengths[at]
            work.tokens -= work.lengths[at]
            self.tokens -= work.lengths[at]
        self._short_batches = 0 if window[0].work in self._long else self._short_batches + 1
        for work in {work: None for work, _ in batch if work.turn >= TURN_BATCHES * self._budget}:
            work.turn = 0
            if work in self._long:
                self._long[work] = self._long.pop(work)
        return batch

    def _window(self) -> list[Entry]:
        """Return a few batches' worth of what waits for the same model as the first, in order of turns."""
        window: list[Entry] = []
        tokens = 0
        first, then = self._short, self._long
        if self._short_batches >= MOST_SHORT_BATCHES:
            first, then = then, first
        for work in chain(first, then):
            if not work.pending or (window and work.run != window[0].work.run):
                continue
            for at in work.pending:
                window.append(Entry(work, at))
                tokens += work.lengths[at]
                if tokens >= WINDOW_BATCHES * self._budget:
                    return window
        return window
