"""Who runs next on a thread, and with whom: one scheduler for the models, another one for searches of the pool.

A step takes one batch of what waits and runs it. What comes meanwhile is the next batch: nobody waits for a batch to
fill, and batches grow with the load by themselves. Works wait in lanes, which take turns, so a context waits for one
batch of long pairs, never for all of them. In a lane, works of one batch at most are first come, first served. Longer
ones are passed by these and take turns of two batches among themselves; while short ones wait, one batch of four is
theirs.
"""

import asyncio
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numpy.typing import NDArray
from opentelemetry.trace import SpanContext, get_current_span

from polyrank.model.architectures.batching import FORWARD_TOKENS
from polyrank.service.errors import DeadlineExceeded, InferenceFailed, TimeTooShort
from polyrank.service.observe.metrics import Metrics
from polyrank.service.observe.tracing import OFF, Tracing
from polyrank.service.scheduling.admission import Rate

PADDING_SHARE = 0.25  # of a batch that others wait for may be padding, where that saves a forward pass
WINDOW_BATCHES = 2  # a batch is chosen from as many sequences as fill so many
TURN_BATCHES = 2  # after so many batches' worth of one long work those behind it come first
MOST_SHORT_BATCHES = 3  # so many may follow each other while a long work waits
# Batches with this share of their budget show how fast long works go, as soon as there are so many. Small ones do not:
# on a GPU a batch of one text takes as long as one of many.
FULL_SHARE, FEWEST_FULL = 0.5, 8
HOPELESS = 1.5  # a long work ends early when it is predicted to take so many times the time left; predictions err
FITTING_SHARE = 0.5  # its error names as many sequences as fit into this share of its time, beside what else is done
NEEDED, MOST_FAILURES = ("context", "candidate"), 5  # after so many failures in a row in these lanes nothing is ready
IDLE_SECONDS = 1.0  # while there is nothing to do the thread shows so often that it is alive
STUCK_SECONDS = 30.0  # a forward pass takes seconds at most
LONG_SECONDS = 0.25  # a batch that takes longer holds up the others by its model, not by their number
CLOSE_SECONDS = 10.0

# Takes the sequences of a batch, gives an output or an error for each. Sequences of unequal runs never mix.
RunBatch = Callable[[list[Any]], Sequence[Any] | NDArray[Any]]
# Takes what a batch made of one work: positions of its sequences, and their outputs. Called on the scheduler's thread.
OnBatch = Callable[[list[int], list[Any]], None]

log = logging.getLogger(__name__)


class WorkOutputs(NamedTuple):
    """An output for each sequence, and the seconds before the first of them began."""

    outputs: list[Any]
    waited: float


class _Waiter(NamedTuple):
    """One who waits for a work: since when, until when, and for which request."""

    future: asyncio.Future[WorkOutputs]
    since: float
    deadline: float
    request: SpanContext


@dataclass(eq=False)
class Work:
    """The sequences of one request, or of several that ask for the same.

    `lengths` are in tokens. Works with the same `run` and key, other than None, ask for the same. `on_batch` gets
    outputs as they are made, also those of a batch that ends after everybody has left.
    """

    run: RunBatch
    sequences: Sequence[Any]
    lengths: Sequence[int]
    key: Hashable = None
    on_batch: OnBatch | None = None

    # What the scheduler knows of it.
    lane: "_Lane" = field(init=False, repr=False)
    pending: dict[int, None] = field(init=False, repr=False)  # positions of those that have not begun, longest first
    tokens: int = 0  # of these
    turn: int = 0  # tokens taken since its turn began
    outputs: dict[int, Any] = field(default_factory=dict)
    waiters: list[_Waiter] = field(default_factory=list)  # all who want the outputs; without any it is dropped
    began: float | None = None  # when the first sequence was taken
    runs_since: float | None = None  # when the batch began that is run with some of it; None: none is
    ran: float = 0.0  # seconds that such batches have taken before
    had: float = 0.0  # those seconds when whoever ran it ended without its outputs

    @property
    def deadline(self) -> float:
        """When the last of its waiters will be out of time."""
        return max(waiter.deadline for waiter in self.waiters)


Batch = list[tuple[Work, int]]  # sequences by their works and positions


class _Lane:
    """Works of one kind in the order in which their turns come; True: of more than one batch. `tokens` are pending."""

    def __init__(self, name: str, budget: int) -> None:
        self.name, self.tokens, self._budget = name, 0, budget
        self.rate, self.full_rate = Rate(), Rate(FEWEST_FULL)
        self.works: dict[Work, bool] = {}
        self._short_batches = 0  # since the last batch that began with a long work

    def add(self, work: Work) -> None:
        lengths = work.lengths
        work.pending = dict.fromkeys(sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True))
        work.lane, work.tokens = self, sum(lengths)
        self.tokens += work.tokens
        self.works[work] = work.tokens > self._budget and len(work.sequences) > 1

    def drop(self, work: Work) -> None:
        self.tokens, work.tokens = self.tokens - work.tokens, 0
        work.pending.clear()
        self.works.pop(work, None)

    def take(self, now: float) -> Batch:
        """Take the next batch, with the first in turn always in it; empty where nothing waits."""
        if not (window := self._window()):
            return []
        self._short_batches = 0 if self.works[window[0][0]] else self._short_batches + 1
        batch = [window[at] for at in pack([work.lengths[at] for work, at in window], self._budget)]
        for work, at in batch:
            work.began = now if work.began is None else work.began
            del work.pending[at]
            length = work.lengths[at]
            work.turn, work.tokens, self.tokens = work.turn + length, work.tokens - length, self.tokens - length
        for work in {work: None for work, _ in batch if work.turn >= TURN_BATCHES * self._budget}:
            work.turn = 0
            self.works[work] = self.works.pop(work)
        return batch

    def _window(self) -> Batch:
        """Return a few batches' worth of what waits for the same run as the first, in order of turns."""
        window, tokens, long_first = Batch(), 0, self._short_batches >= MOST_SHORT_BATCHES
        for work in sorted(self.works, key=lambda work: self.works[work] != long_first):
            if not window or work.run == window[0][0].run:
                for at in work.pending:
                    window.append((work, at))
                    tokens += work.lengths[at]
                    if tokens >= WINDOW_BATCHES * self._budget:
                        return window
        return window


class Scheduler:
    """Runs the works of all requests on one thread of this name, batch by batch.

    The budget bounds the tokens of a batch, padding included; 0: every sequence runs alone, so that its output does not
    depend on others. An output that is not sound is a failure of the model.
    """

    def __init__(
        self,
        name: str,
        lanes: Sequence[str],
        budget: int,
        metrics: Metrics | None = None,
        tracing: Tracing = OFF,
        is_sound: Callable[[Any], bool] = lambda _: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failed: str | None = None  # why no outputs can be expected at the moment
        self.done_tokens = 0  # that have gone through, ever
        self._name, self._budget, self._metrics, self._tracing = name, budget, metrics, tracing
        self._is_sound, self._clock = is_sound, clock
        self._lanes = {lane: _Lane(lane, budget) for lane in lanes}
        self._turns = deque(self._lanes.values())
        self._shared: dict[Hashable, Work] = {}
        self._failures: Counter[str] = Counter()  # in a row
        self._changed, self._closing, self._beat = threading.Condition(), False, clock()
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    async def run(self, lane: str, work: Work, deadline: float) -> WorkOutputs:
        """Run sequences; cancelling this drops those that have not begun.

        Callers that ask for the same at the same time (`work.key`) share one answer. Where this raises, `work.had` says
        how long the thread has worked on it, or hung in a batch of others.

        Raises:
            DeadlineExceeded: it did not begin by the deadline, which is on the monotonic clock.
            TimeTooShort: it is too long to be done by the deadline.
            InferenceFailed: the model failed on one of these sequences.
        """
        if not work.sequences:
            return WorkOutputs([], 0.0)
        request = get_current_span().get_span_context()
        waiter = _Waiter(asyncio.get_running_loop().create_future(), self._clock(), deadline, request)
        with self._changed:
            if self._closing or not self._thread.is_alive():
                raise InferenceFailed(self.failed or f"the {self._name} thread has ended")
            same = work if work.key is None else self._shared.setdefault((work.run, work.key), work)
            if same is work:
                self._lanes[lane].add(work)
            same.waiters.append(waiter)
            self._changed.notify()
        try:
            return await waiter.future
        except BaseException as error:
            now, ran, since = self._clock(), same.ran, same.runs_since  # which the thread may end meanwhile
            if since is not None:
                ran += now - since
            elif now - self._beat > LONG_SECONDS:
                ran += now - self._beat
            work.had = min(ran, now - waiter.since)
            if isinstance(error, asyncio.CancelledError):
                self._leave(same, waiter)
            raise
        finally:
            del waiter  # it holds an error, which holds this frame: in a circle, all would stay for long

    def predict(self, lane: str, lengths: Sequence[int]) -> float:
        """Predict the seconds until sequences of these lengths will have gone through a lane, behind what waits now.

        Other lanes have their turns meanwhile: a batch for each of its batches, if they have so much to do.
        """
        most = self._lanes[lane].tokens + sum(lengths)
        before = most + sum(min(most, other.tokens) for name, other in self._lanes.items() if name != lane)
        return self._lanes[lane].rate.predict(self._units(before, len(lengths)))

    def doubt(self, lane: str) -> None:
        """Lower the prediction a little, because nothing was run that could correct it."""
        self._lanes[lane].rate.doubt()

    @property
    def stuck(self) -> bool:
        """Whether the thread has ended, or has been silent for too long."""
        return not self._thread.is_alive() or self._clock() - self._beat > STUCK_SECONDS

    def close(self) -> None:
        """Finish the batch that runs, drop what waits; a thread that is stuck is left behind."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_SECONDS)

    def _live(self) -> None:
        why = "the server is stopping"
        try:
            while self._step():
                pass
        except BaseException as error:
            log.exception("the %s thread has ended", self._name)
            why = self.failed = f"the {self._name} thread has ended: {error!r}"
        finally:
            with self._changed:
                self._closing = True
                for work in [work for lane in self._turns for work in lane.works]:
                    self._answer(work, InferenceFailed(why))

    def _step(self) -> bool:
        """Wait for work, run one batch of it, and answer those who have all of theirs; False when it is closed."""
        with self._changed:
            while not (batch := self._next()) and not self._closing:
                self._changed.wait(IDLE_SECONDS)
        if not batch:
            return False
        began, works = self._clock(), {work: None for work, _ in batch}
        for work in works:
            work.runs_since = began
        outputs = self._outputs(batch)
        seconds = self._clock() - began
        for work in works:
            work.runs_since, work.ran = None, work.ran + seconds
        self._learn(batch, outputs, seconds)
        _hand_over(batch, outputs)
        with self._changed:
            for (work, at), output in zip(batch, outputs, strict=True):
                if isinstance(output, BaseException):
                    self._answer(work, output)
                    continue
                work.outputs[at] = output
                if len(work.outputs) == len(work.sequences):
                    self._answer(work, None)
        return True

    def _next(self) -> Batch:
        """Take a batch from the lane in turn, or from the next one that has work; empty where none has."""
        self._beat = now = self._clock()
        for _ in range(0 if self._closing else len(self._turns)):
            lane = self._turns[0]
            self._turns.rotate(-1)
            for work in [*lane.works]:
                if refusal := self._refusal(work, now):
                    self._answer(work, refusal)
            if batch := lane.take(now):
                return batch
        return []

    def _refusal(self, work: Work, now: float) -> DeadlineExceeded | TimeTooShort | None:
        """Return why a work goes no further: its time is over, or it is long and will come to nothing."""
        if now > work.deadline:
            return DeadlineExceeded(f"waiting for the {self._name}")
        if work.tokens <= TURN_BATCHES * self._budget:
            return None
        rate, count = work.lane.full_rate, len(work.lengths)
        if rate.predict(self._units(work.tokens, len(work.pending))) <= HOPELESS * (work.deadline - now):
            return None
        allowance = work.deadline - min(waiter.since for waiter in work.waiters)
        fitting = max(1, int(count * FITTING_SHARE * allowance / rate.measured(self._units(sum(work.lengths), count))))
        rate.doubt()
        # Where all of it would fit, only its wait was long.
        return TimeTooShort(count, fitting) if fitting < count else DeadlineExceeded("the model would take longer")

    def _units(self, tokens: int, sequences: int) -> int:
        """Return what so many tokens cost in full batches, without padding: those of the forward passes included."""
        forwards = 1 + tokens // self._budget if self._budget else sequences
        return tokens + forwards * FORWARD_TOKENS

    def _outputs(self, batch: Batch) -> list[Any]:
        """Return an output or an error for each sequence; a batch that fails is tried one by one, once."""
        outputs = self._attempt(batch)
        if len(batch) > 1 and isinstance(outputs[0], InferenceFailed):
            outputs = [self._attempt([one])[0] for one in batch]
        for at, output in enumerate(outputs):
            if not isinstance(output, BaseException) and not self._is_sound(output):
                outputs[at] = InferenceFailed("the model gave something that is not finite")
        failed, lane = all(isinstance(output, InferenceFailed) for output in outputs), batch[0][0].lane.name
        self._failures[lane] = self._failures[lane] + 1 if failed else 0
        most = max(self._failures[needed] for needed in NEEDED)
        self.failed = f"the model failed {most} times in a row" if most >= MOST_FAILURES else None
        return outputs

    def _attempt(self, batch: Batch) -> list[Any]:
        self._beat, first = self._clock(), batch[0][0]
        try:
            return list(first.run([work.sequences[at] for work, at in batch]))
        except Exception as error:
            log.exception("the model failed", extra={"fields": {"lane": first.lane.name, "sequences": len(batch)}})
            return [InferenceFailed(f"the model failed: {error!r}")] * len(batch)

    def _learn(self, batch: Batch, outputs: list[Any], seconds: float) -> None:
        """Take in what a batch has taken, and tell metrics and traces."""
        lane, lengths = batch[0][0].lane, [work.lengths[at] for work, at in batch]
        padded = max(lengths) * len(lengths)
        self.done_tokens += sum(lengths)
        if not any(isinstance(output, BaseException) for output in outputs):  # failing takes less time
            lane.rate.learn(FORWARD_TOKENS + padded, seconds)
            if sum(lengths) >= FULL_SHARE * self._budget:
                lane.full_rate.learn(FORWARD_TOKENS + padded, seconds)
        if self._metrics:
            self._metrics.batch_size.labels(lane.name).observe(len(lengths))
            self._metrics.batch_tokens.labels(lane.name).observe(padded)
            self._metrics.batch_padding.labels(lane.name).observe(1 - sum(lengths) / max(1, padded))
            requests = [waiter.request for work, _ in batch for waiter in work.waiters]
            self._tracing.batch(lane.name, lengths, requests, seconds)

    def _leave(self, work: Work, waiter: _Waiter) -> None:
        with self._changed:
            if waiter in work.waiters:  # else it was answered at this moment
                work.waiters.remove(waiter)
                self._waited(work, waiter)
                if not work.waiters:
                    self._drop(work)

    def _drop(self, work: Work) -> None:
        work.lane.drop(work)
        if self._shared.get((work.run, work.key)) is work:
            del self._shared[work.run, work.key]

    def _answer(self, work: Work, error: BaseException | None) -> None:
        """Give everybody who waits for a work the error, or its outputs; nobody may wait any more."""
        waiters, work.waiters = work.waiters, []
        self._drop(work)
        for waiter in waiters:
            waited = self._waited(work, waiter)
            answer = error or WorkOutputs([work.outputs[at] for at in range(len(work.sequences))], waited)
            with suppress(RuntimeError):  # its event loop has ended
                waiter.future.get_loop().call_soon_threadsafe(_settle, waiter.future, answer)

    def _waited(self, work: Work, waiter: _Waiter) -> float:
        """Return the seconds until its first sequence was taken, or until now, and count them."""
        waited = max(0.0, (self._clock() if work.began is None else work.began) - waiter.since)
        if self._metrics:
            self._metrics.queue_wait.labels(work.lane.name).observe(waited)
        return waited


def pack(lengths: Sequence[int], budget: int) -> list[int]:
    """Choose one batch of lengths in tokens: always the first, and others that waste little padding; returns positions.

    The batch grows by the sequence that adds the least padding, within the budget, as long as all padding is worth less
    than another forward pass. A first sequence longer than the budget goes alone.

    >>> pack([30, 100, 29, 31], budget=512)
    [0, 2, 3]
    """
    order = sorted(range(len(lengths)), key=lambda at: (lengths[at], at))
    low = order.index(0)
    high, width, tokens = low + 1, lengths[0], lengths[0]  # the batch is order[low:high]
    while low > 0 or high < len(order):
        # A longer one pads all that are in the batch; a shorter one is padded itself.
        above = (lengths[order[high]] - width) * (high - low) if high < len(order) else math.inf
        below = width - lengths[order[low - 1]] if low > 0 else math.inf
        length = lengths[order[high] if above <= below else order[low - 1]]
        wide, tokens = max(width, length), tokens + length
        padded = wide * (high - low + 1)
        if padded > budget or padded - tokens > max(FORWARD_TOKENS, PADDING_SHARE * padded):
            break
        width, low, high = (wide, low, high + 1) if above <= below else (wide, low - 1, high)
    return [0, *(at for at in order[low:high] if at)]


def _settle(future: asyncio.Future[WorkOutputs], answer: WorkOutputs | BaseException) -> None:
    if future.done():  # cancelled
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def _hand_over(batch: Batch, outputs: list[Any]) -> None:
    """Give each work that wants its outputs at once those that succeeded."""
    by_work: dict[Work, dict[int, Any]] = {}
    for (work, at), output in zip(batch, outputs, strict=True):
        if not isinstance(output, BaseException):
            by_work.setdefault(work, {})[at] = output
    for work, own in by_work.items():
        if work.on_batch is not None:
            with suppress(RuntimeError):  # the threads that would keep them have ended
                work.on_batch([*own], [*own.values()])
