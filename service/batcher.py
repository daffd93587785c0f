"""The one thread that owns the models: it takes what waits, in batches, and never waits for more.

While a batch runs the next one gathers, so batches grow with the load by themselves. Contexts, candidates and pairs
wait in lanes of their own, and the lanes take turns: a context waits for one batch of long pairs, never for all of
them. In a lane the requests take turns, too; the oldest one is in every batch.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.trace import SpanContext

from service.errors import DeadlineExceeded, InferenceFailed
from service.metrics import Metrics
from service.packing import FORWARD_TOKENS, cost, pack
from service.rates import Rate
from service.tracing import OFF, Tracing, current
from service.values import LANES, Lane

# A batch is chosen from so many batches' worth of what waits, of which one request may be so many.
WINDOW_BATCHES = 2
WORK_SHARE = 0.5
# After so many batches that failed one after the other the service is not ready any more.
MOST_FAILURES = 5
# The thread tells so often that it is alive while there is nothing to do.
IDLE_SECONDS = 1.0
# A forward takes seconds at most: a thread that was silent for so long is stuck.
STUCK_SECONDS = 30.0

# Sequences in, an output each; bound to a model, so that sequences of two models never meet in a batch.
Forward = Callable[[list[Any]], Sequence[Any] | NDArray[Any]]

log = logging.getLogger(__name__)


class Done(NamedTuple):
    """An output for each sequence, and the seconds that passed before the first of them began."""

    outputs: list[Any]
    waited: float


class _Waiter(NamedTuple):
    future: "asyncio.Future[Done]"
    loop: asyncio.AbstractEventLoop
    since: float
    deadline: float
    request: SpanContext


class _Work:
    """The sequences of one request, or of several that ask for the same."""

    def __init__(self, forward: Forward, sequences: Sequence[Any], lengths: Sequence[int], key: Hashable) -> None:
        self.forward, self.sequences, self.lengths, self.key = forward, sequences, lengths, key
        self.outputs: list[Any] = [None] * len(sequences)
        self.pending = dict.fromkeys(sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True))
        self.left = len(sequences)  # to be answered: pending, or in the batch that runs
        self.began = 0.0
        self.waiters: list[_Waiter] = []


class _Piece(NamedTuple):
    """One sequence of a work."""

    work: _Work
    at: int

    @property
    def length(self) -> int:
        return self.work.lengths[self.at]


class _Refused(NamedTuple):
    """In the place of an output: what the model raised."""

    error: Exception


class Batcher:
    """Runs sequences of all requests through the models, in one thread.

    Args:
        budget: tokens a batch, padding included; 0: each sequence alone, so that its output does not depend on others.
        metrics: told of each batch.
        tracing: told of each batch, too, and of the requests in it.
        clock: monotonic seconds.

    Attributes:
        failed: why nothing can be expected of it at the moment; None: it is well.
    """

    def __init__(
        self, budget: int, metrics: Metrics, tracing: Tracing = OFF, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.failed: str | None = None
        self._budget, self._metrics, self._tracing, self._clock = budget, metrics, tracing, clock
        self._changed = threading.Condition()
        self._lanes: dict[Lane, dict[_Work, None]] = {lane: {} for lane in LANES}
        self._turn = 0
        self._shared: dict[Hashable, _Work] = {}
        self._pending_tokens = 0
        self._rates = {lane: Rate() for lane in LANES}
        self._failures = 0
        self._closing = False
        self._beat = clock()
        self._thread = threading.Thread(target=self._live, name="model", daemon=True)
        self._thread.start()

    async def run(
        self,
        lane: Lane,
        forward: Forward,
        sequences: Sequence[Any],
        lengths: Sequence[int],
        deadline: float,
        key: Hashable = None,
    ) -> Done:
        """Run sequences through a model; cancelling this drops those that have not begun.

        Args:
            lane: which queue.
            forward: a model's function.
            sequences: what it takes.
            lengths: of each, in tokens.
            deadline: on the monotonic clock; what has not begun by then does not begin.
            key: of what is asked; whoever asks for the same at the same time shares the answer.

        Raises:
            DeadlineExceeded: it did not begin in time.
            InferenceFailed: the model failed on one of these sequences.
        """
        if not sequences:
            return Done([], 0.0)
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop.create_future(), loop, self._clock(), deadline, current())
        with self._changed:
            if self._closing or not self._thread.is_alive():
                raise InferenceFailed(self.failed or "the model's thread has ended")
            work = self._shared.get((forward, key)) if key is not None else None
            if work is None:
                work = self._enqueue(lane, _Work(forward, sequences, lengths, key))
            work.waiters.append(waiter)
            self._changed.notify()
        try:
            return await waiter.future
        finally:
            if waiter.future.cancelled():
                self._leave(lane, work, waiter)

    def predict(self, lane: Lane, lengths: Sequence[int]) -> float:
        """Seconds until sequences of these lengths will have gone through a lane, behind all that waits now."""
        tokens = sum(lengths)
        forwards = 1 + tokens // self._budget if self._budget else len(lengths)
        return self._rates[lane].predict(self._pending_tokens + tokens + forwards * FORWARD_TOKENS)

    def doubt(self, lane: Lane) -> None:
        """Believe a little less in what was predicted, as nothing was done that could tell."""
        self._rates[lane].doubt()

    @property
    def stuck(self) -> bool:
        """Whether the thread has ended, or has not been heard of for too long."""
        return not self._thread.is_alive() or self._clock() - self._beat > STUCK_SECONDS

    def close(self) -> None:
        """Finish the batch that runs, drop what waits."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _enqueue(self, lane: Lane, work: _Work) -> _Work:
        self._lanes[lane][work] = None
        self._pending_tokens += sum(work.lengths)
        if work.key is not None:
            self._shared[work.forward, work.key] = work
        return work

    def _leave(self, lane: Lane, work: _Work, waiter: _Waiter) -> None:
        with self._changed:
            if waiter in work.waiters:  # else it was answered at this moment
                work.waiters.remove(waiter)
                if not work.waiters:
                    self._drop(lane, work)

    def _drop(self, lane: Lane, work: _Work) -> None:
        """Forget what has not begun of a work."""
        self._pending_tokens -= sum(work.lengths[at] for at in work.pending)
        work.pending.clear()
        self._lanes[lane].pop(work, None)
        if self._shared.get((work.forward, work.key)) is work:
            del self._shared[work.forward, work.key]

    def _live(self) -> None:
        """The thread."""
        why = "the server is stopping"
        try:
            while (batch := self._next()) is not None:
                self._run(*batch)
        except BaseException as error:
            log.exception("the model's thread has ended")
            why = self.failed = f"the model's thread has ended: {error!r}"
        finally:
            with self._changed:
                self._closing = True
                for lane, works in self._lanes.items():
                    for work in list(works):
                        self._answer(lane, work, InferenceFailed(why))

    def _next(self) -> tuple[Lane, list[_Piece]] | None:
        """Wait for work and take a batch of it; None when there will be no more."""
        with self._changed:
            while not self._closing:
                self._beat = self._clock()
                for turn in range(len(LANES)):
                    lane = LANES[(self._turn + turn) % len(LANES)]
                    if batch := self._take(lane):
                        self._turn = (self._turn + turn + 1) % len(LANES)
                        return lane, batch
                self._changed.wait(IDLE_SECONDS)
            return None

    def _take(self, lane: Lane) -> list[_Piece]:
        now = self._clock()
        for work in [each for each in self._lanes[lane] if now > max(waiter.deadline for waiter in each.waiters)]:
            self._answer(lane, work, DeadlineExceeded("waiting for the model"))
        window = self._window(self._lanes[lane])
        if not window:
            return []
        batch = [window[at] for at in pack([piece.length for piece in window], self._budget)]
        for work, at in batch:
            work.began = work.began or now
            del work.pending[at]
            self._pending_tokens -= work.lengths[at]
        return batch

    def _window(self, works: dict[_Work, None]) -> list[_Piece]:
        """A few batches' worth of what waits for the model that the oldest work wants: the oldest first, each a share.

        First come, first served lets requests keep their deadlines under load; the share lets short ones pass.
        """
        open_works = [work for work in works if work.pending]
        queues = [(work, iter(work.pending)) for work in open_works if work.forward == open_works[0].forward]
        window: list[_Piece] = []
        most = WINDOW_BATCHES * self._budget
        for share in (WORK_SHARE * self._budget, most):  # what is left over when all had their share goes by age, too
            for work, places in queues:
                taken = 0
                while taken <= share and most >= 0 and (at := next(places, None)) is not None:
                    window.append(_Piece(work, at))
                    taken += work.lengths[at]
                    most -= work.lengths[at]
                if most < 0:
                    return window
        return window

    def _run(self, lane: Lane, batch: list[_Piece]) -> None:
        began = self._clock()
        outputs = self._outputs(lane, batch)
        lengths = [piece.length for piece in batch]
        seconds = self._clock() - began
        self._rates[lane].learn(cost(lengths), seconds)
        self._metrics.observe_batch(lane, lengths)
        requests = [waiter.request for work, _ in batch for waiter in work.waiters]
        self._tracing.batch(lane, lengths, requests, seconds)
        with self._changed:
            for (work, at), output in zip(batch, outputs, strict=True):
                if not work.waiters:
                    continue  # failed, or nobody waits any more
                if isinstance(output, InferenceFailed):
                    self._answer(lane, work, output)
                    continue
                work.outputs[at] = output
                work.left -= 1
                if not work.left:
                    self._answer(lane, work, None)

    def _outputs(self, lane: Lane, batch: list[_Piece]) -> list[Any]:
        """An output or an InferenceFailed for each piece; what fails together is tried alone, once."""
        outputs = self._attempt(lane, batch)
        if len(batch) > 1 and isinstance(outputs[0], _Refused):
            outputs = [self._attempt(lane, [piece])[0] for piece in batch]
        if all(isinstance(output, _Refused) for output in outputs):
            self._failures += 1
            if self._failures >= MOST_FAILURES:
                self.failed = f"the model failed {self._failures} times in a row"
        else:
            self._failures, self.failed = 0, None
        return [_checked(output) for output in outputs]

    def _attempt(self, lane: Lane, batch: list[_Piece]) -> list[Any]:
        self._beat = self._clock()
        try:
            return list(batch[0].work.forward([work.sequences[at] for work, at in batch]))
        except Exception as error:
            log.exception("the model failed", extra={"fields": {"lane": lane, "sequences": len(batch)}})
            return [_Refused(error)] * len(batch)

    def _answer(self, lane: Lane, work: _Work, error: Exception | None) -> None:
        waiters, work.waiters = work.waiters, []
        self._drop(lane, work)
        for waiter in waiters:
            waited = max(0.0, work.began - waiter.since)
            self._metrics.observe_wait(lane, waited)
            with suppress(RuntimeError):  # its loop has ended
                waiter.loop.call_soon_threadsafe(_settle, waiter.future, error or Done(work.outputs, waited))


def _checked(output: Any) -> Any:
    if isinstance(output, _Refused):
        return InferenceFailed(f"the model failed: {output.error!r}")
    return output if np.isfinite(output).all() else InferenceFailed("the model gave something that is not finite")


def _settle(future: "asyncio.Future[Done]", outcome: Done | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
