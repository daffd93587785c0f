"""The one thread that owns the models. It takes what waits, in batches, and never waits for a batch to fill.

While a batch runs the next one gathers, so batches grow with the load by themselves. Contexts, candidates, second
stages and pairs wait in lanes of their own (lanes.py). The lanes take turns: a context waits for one batch of long
pairs, never for all of them.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from polyrank.model.architectures.batching import FORWARD_TOKENS
from polyrank.service.errors import DeadlineExceeded, InferenceFailed, TimeTooShort
from polyrank.service.observe.labels import LANES, Lane
from polyrank.service.observe.metrics import Metrics
from polyrank.service.observe.tracing import OFF, Tracing, current
from polyrank.service.ranking.batching.lanes import TURN_BATCHES, Done, Entry, LaneQueue, Waiter, Work
from polyrank.service.ranking.batching.packing import Rate, Speed, cost

# After so many failed batches in a row the service is not ready.
MOST_FAILURES = 5
# While there is nothing to do the thread shows that it is alive every so often.
IDLE_SECONDS = 1.0
# A forward pass takes seconds at most: a thread that has been silent for so long is stuck.
STUCK_SECONDS = 30.0
CLOSE_SECONDS = 10.0

# A batch with this share of its budget shows how fast long works go. Small batches do not: on a GPU a batch of one text
# takes as long as one of many.
FULL_SHARE = 0.5
# A long work ends early when it is predicted to take so many times the time that it has left. Predictions err.
HOPELESS = 1.5
# Its error names as many sequences as fit into this share of its time, beside what else the server does.
FITTING_SHARE = 0.5

# The lanes that readiness depends on: without the cross-encoder there are still answers.
NEEDED: tuple[Lane, ...] = ("context", "candidate")

log = logging.getLogger(__name__)


class Batcher:
    """Runs sequences of all requests through the models, in one thread.

    The budget bounds the tokens of a batch, padding included; 0: every sequence runs alone, so that its output does not
    depend on others.

    Attributes:
        failed: why no outputs can be expected at the moment; None: all is well.
        done_tokens: how many have gone through the models, ever.
    """

    def __init__(
        self, budget: int, metrics: Metrics, tracing: Tracing = OFF, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.failed: str | None = None
        self._budget, self._metrics, self._tracing, self._clock = budget, metrics, tracing, clock
        self._changed = threading.Condition()
        self._lanes = {lane: LaneQueue(budget) for lane in LANES}
        self._turn = 0
        self._shared: dict[Hashable, Work] = {}
        self.done_tokens = 0
        self._rates = {lane: Rate() for lane in LANES}
        self._speeds = {lane: Speed() for lane in LANES}
        self._failures = dict.fromkeys(LANES, 0)
        self._closing = False
        self._beat = clock()
        self._thread = threading.Thread(target=self._live, name="model", daemon=True)
        self._thread.start()

    async def run(self, lane: Lane, work: Work, deadline: float) -> Done:
        """Run sequences through a model; cancelling this drops those that have not begun.

        Callers that ask for the same at the same time (`work.key`) share one answer.

        Raises:
            DeadlineExceeded: it did not begin by the deadline, which is on the monotonic clock.
            TimeTooShort: it is too long to be done by the deadline, and nobody keeps what is done of it.
            InferenceFailed: the model failed on one of these sequences.
        """
        if not work.sequences:
            return Done([], 0.0)
        loop = asyncio.get_running_loop()
        waiter = Waiter(loop.create_future(), loop, self._clock(), deadline, current())
        with self._changed:
            if self._closing or not self._thread.is_alive():
                raise InferenceFailed(self.failed or "the model's thread has ended")
            work = self._enqueue(lane, work)
            work.waiters.append(waiter)
            self._changed.notify()
        try:
            return await waiter.future
        finally:
            if waiter.future.cancelled():
                self._leave(lane, work, waiter)

    def predict(self, lane: Lane, lengths: Sequence[int]) -> float:
        """Predict the seconds until sequences of these lengths will have gone through a lane, behind what waits now.

        Other lanes have their turns meanwhile: a batch for each of its batches, if they have so much to do.
        """
        tokens = sum(lengths)
        most = self._lanes[lane].tokens + tokens
        before = most + sum(min(most, queue.tokens) for other, queue in self._lanes.items() if other != lane)
        return self._rates[lane].predict(self._units(before, len(lengths)))

    def doubt(self, lane: Lane) -> None:
        """Lower the prediction a little, because nothing was run that could correct it."""
        self._rates[lane].doubt()

    def _units(self, tokens: int, sequences: int) -> int:
        """Return what so many tokens cost in full batches, without padding; see `cost`."""
        forwards = 1 + tokens // self._budget if self._budget else sequences
        return tokens + forwards * FORWARD_TOKENS

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

    def _enqueue(self, lane: Lane, work: Work) -> Work:
        """Queue a work, unless the same is queued or running already; returns the one to wait for."""
        if work.key is not None and (same := self._shared.setdefault((work.run, work.key), work)) is not work:
            return same
        self._lanes[lane].add(work)
        return work

    def _leave(self, lane: Lane, work: Work, waiter: Waiter) -> None:
        with self._changed:
            if waiter in work.waiters:  # else it was answered at this moment
                work.waiters.remove(waiter)
                self._metrics.observe_wait(lane, self._waited(work, waiter))
                if not work.waiters:
                    self._drop(lane, work)

    def _drop(self, lane: Lane, work: Work) -> None:
        self._lanes[lane].drop(work)
        if self._shared.get((work.run, work.key)) is work:
            del self._shared[work.run, work.key]

    def _live(self) -> None:
        """Run on the thread until it is closed."""
        why = "the server is stopping"
        try:
            while (batch := self._next()) is not None:
                self._run(*batch)
                del batch  # it may hold the last reference to a model that is no longer served
        except BaseException as error:
            log.exception("the model's thread has ended")
            why = self.failed = f"the model's thread has ended: {error!r}"
        finally:
            with self._changed:
                self._closing = True
                for lane, queue in self._lanes.items():
                    for work in queue.all():
                        self._answer(lane, work, InferenceFailed(why))

    def _next(self) -> tuple[Lane, list[Entry]] | None:
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

    def _take(self, lane: Lane) -> list[Entry]:
        now = self._clock()
        for work in self._lanes[lane].expired(now):
            self._answer(lane, work, DeadlineExceeded("waiting for the model"))
        for work in self._lanes[lane].all():
            if self._is_hopeless(lane, work, now):
                self._answer(lane, work, self._too_late(lane, work))
                self._speeds[lane].doubt()
        return self._lanes[lane].take(now)

    def _is_hopeless(self, lane: Lane, work: Work, now: float) -> bool:
        """Whether a work of more than one turn will not be done in time, and comes to nothing then."""
        if work.resumes or work.tokens <= TURN_BATCHES * self._budget:
            return False
        seconds = self._speeds[lane].predict(self._units(work.tokens, len(work.pending)))
        return seconds > HOPELESS * (work.deadline - now)

    def _too_late(self, lane: Lane, work: Work) -> DeadlineExceeded | TimeTooShort:
        """Return the error of a hopeless work, with how many of its sequences fit, unless only its wait was long."""
        count = len(work.lengths)
        seconds = self._speeds[lane].predict(self._units(sum(work.lengths), count))
        given = work.deadline - min(waiter.since for waiter in work.waiters)
        fitting = max(1, int(count * FITTING_SHARE * given / seconds))
        return TimeTooShort(count, fitting) if fitting < count else DeadlineExceeded("the model would take longer")

    def _run(self, lane: Lane, batch: list[Entry]) -> None:
        began = self._clock()
        outputs = self._outputs(lane, batch)
        lengths = [entry.length for entry in batch]
        seconds = self._clock() - began
        if not any(isinstance(one, InferenceFailed) for one in outputs):  # failing takes less time
            self._rates[lane].learn(cost(lengths), seconds)
            if sum(lengths) >= FULL_SHARE * self._budget:
                self._speeds[lane].learn(cost(lengths), seconds)
        self.done_tokens += sum(lengths)
        self._metrics.observe_batch(lane, lengths)
        requests = [waiter.request for work, _ in batch for waiter in work.waiters]
        self._tracing.batch(lane, lengths, requests, seconds)
        _hand_over(batch, outputs)
        with self._changed:
            for (work, at), output in zip(batch, outputs, strict=True):
                if not work.waiters:
                    continue  # it failed, or nobody waits any more
                if isinstance(output, InferenceFailed):
                    self._answer(lane, work, output)
                    continue
                work.outputs[at] = output
                work.left -= 1
                if not work.left:
                    self._answer(lane, work, None)

    def _outputs(self, lane: Lane, batch: list[Entry]) -> list[Any]:
        """Return an output or an InferenceFailed for each entry; a batch that fails is tried entry by entry, once."""
        outputs = self._attempt(lane, batch)
        if len(batch) > 1 and isinstance(outputs[0], InferenceFailed):
            outputs = [self._attempt(lane, [entry])[0] for entry in batch]
        checked = [_checked(output) for output in outputs]
        failed = all(isinstance(output, InferenceFailed) for output in checked)
        self._failures[lane] = self._failures[lane] + 1 if failed else 0
        most = max(self._failures[needed] for needed in NEEDED)
        self.failed = f"the model failed {most} times in a row" if most >= MOST_FAILURES else None
        return checked

    def _attempt(self, lane: Lane, batch: list[Entry]) -> list[Any]:
        self._beat = self._clock()
        try:
            return list(batch[0].work.run([work.sequences[at] for work, at in batch]))
        except Exception as error:
            log.exception("the model failed", extra={"fields": {"lane": lane, "sequences": len(batch)}})
            return [InferenceFailed(f"the model failed: {error!r}")] * len(batch)

    def _waited(self, work: Work, waiter: Waiter) -> float:
        """Return the seconds until its first sequence was taken, or until now."""
        return max(0.0, (self._clock() if work.began is None else work.began) - waiter.since)

    def _answer(self, lane: Lane, work: Work, error: Exception | None) -> None:
        waiters, work.waiters = work.waiters, []
        self._drop(lane, work)
        for waiter in waiters:
            waited = self._waited(work, waiter)
            self._metrics.observe_wait(lane, waited)
            with suppress(RuntimeError):  # its loop has ended
                waiter.loop.call_soon_threadsafe(_settle, waiter.future, error or Done(work.outputs, waited))


def _hand_over(batch: list[Entry], outputs: list[Any]) -> None:
    """Give each work that wants its outputs at once those that succeeded."""
    made: dict[Work, tuple[list[int], list[Any]]] = {}
    for (work, at), output in zip(batch, outputs, strict=True):
        if work.on_batch is not None and not isinstance(output, InferenceFailed):
            positions, own = made.setdefault(work, ([], []))
            positions.append(at)
            own.append(output)
    for work, (positions, own) in made.items():
        if work.on_batch is not None:
            with suppress(RuntimeError):  # the threads that would keep them have ended
                work.on_batch(positions, own)


def _checked(output: Any) -> Any:
    if isinstance(output, InferenceFailed) or _is_finite(output):
        return output
    return InferenceFailed("the model gave something that is not finite")


def _is_finite(output: Any) -> bool:
    """Whether all numbers of an output are finite: of an array or tensor, or of those in a tuple."""
    if isinstance(output, tuple):
        return all(part is None or _is_finite(part) for part in output)
    return bool(np.isfinite(np.asarray(output)).all())


def _settle(future: "asyncio.Future[Done]", outcome: Done | Exception) -> None:
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
