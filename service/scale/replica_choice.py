"""Which replica of a part is asked, and what happens if it is slow or gone. For the event loop's thread.

A call goes to the replica with the fewest calls in progress, and of equals to the one that was asked the longest ago:
servers that have little to ask must not all ask the same one. If there is no answer after a while, another replica is
asked as well (a hedge), and the first answer counts. Hedges are at most a tenth of all calls, so that slowness of all
replicas does not double their load. A call that tries a replica after a strike may always be hedged, because it most
likely waits in vain; later calls then have one hedge less.

A replica gets a strike if it
* fails;
* has not answered when the time of a call is over, after LATE_SECONDS at least: a caller who allows little time makes
  no replica look slow to others;
* is overtaken by the hedge of its call, and the part has another replica that is not struck.

A replica that was struck is not asked for half a second, and for twice as long with every further strike. Then one call
tries it. Calls that were under way at a strike change nothing more, so many that fail together are one strike.

Where all replicas of a part are struck, one that was only overtaken is asked nevertheless: a slow answer is better than
none. Where there is none of these, the part is missing at once: nobody waits for it.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking.parts import PartMissing
from polyrank.service.scale.calls import LATE, LOST, Replica, ReplicaLost, Reply

STRIKE_SECONDS, LONGEST_STRIKE_SECONDS = 0.5, 30.0
LATE_SECONDS = 1.0
HEDGED_SHARE = 0.1
# Hedges that may come at once, after many calls without any.
MOST_SAVED = 10.0
# Until so many calls were timed, this delay stands for their 95th percentile.
FEWEST_TIMED, FIRST_DELAY = 20, 0.1
_TIMED = 256
# A call that nobody waits for any more counts as in progress for so long at most.
LONGEST_CALL_SECONDS = 60.0

Arguments = Callable[[], tuple[Any, ...]]

log = logging.getLogger(__name__)


class _Entry:
    """A replica, and what is known of it."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.in_progress = self.strikes = 0
        self.turn = 0  # the number of the last call
        self.struck_at, self.struck_until = -math.inf, 0.0
        self.tried = False  # a call is under way that tries it after a strike
        self.was_only_slow = True  # all its strikes are for being overtaken

    def pardon(self) -> None:
        self.strikes, self.was_only_slow = 0, True


class ReplicaChoice:
    """Asks the replicas of parts.

    `hedge_s`: after how long a second replica is asked; 0: the 95th percentile of the times seen.
    """

    def __init__(self, metrics: Metrics, hedge_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._hedge_s, self._clock = metrics, hedge_s, clock
        self._entries: Mapping[str, Sequence[_Entry]] = {}
        self._times: deque[float] = deque(maxlen=_TIMED)
        self._saved = 1.0  # hedges
        self._calls: set[asyncio.Task[Reply]] = set()
        self._turns = count(1)

    def serve_with(self, replicas: Mapping[str, Sequence[Replica]]) -> None:
        """Set the replicas of each part; what is known of those that stay is kept. May be called from any thread."""
        entries = {id(each.replica): each for of_part in self._entries.values() for each in of_part}
        self._entries = {
            part: [entries.get(id(each)) or _Entry(each) for each in of_part] for part, of_part in replicas.items()
        }

    def replicas(self, part: str) -> int:
        return len(self._entries.get(part, ()))

    def forgive(self, part: str, replica: Replica) -> None:
        """Ask a replica again, which has just been given what it lacked. May be called from any thread.

        An error of a call that began earlier no longer strikes it.
        """
        for one in self._entries.get(part, ()):
            if one.replica is replica:
                one.struck_at = self._clock()
                one.pardon()
        self._show(part)

    async def ask(self, part: str, method: str, arguments: Arguments, deadline: float) -> Any:
        """Call a method of a shard that holds a part, and return its value.

        `arguments` makes the arguments of a call, once for each; `deadline` is on the clock. Raises PartMissing if no
        replica answers in time.
        """
        tried: list[_Entry] = []
        running: dict[asyncio.Task[Reply], _Entry] = {}
        hedge: _Entry | None = None
        began, why = self._clock(), "every replica was struck lately"
        self._saved = min(MOST_SAVED, self._saved + HEDGED_SHARE)
        hedge_at = began + self._delay()
        while True:
            if not running:
                one = self._choose(part, tried) or self._choose_slow(part, tried)
                if one is None:
                    raise PartMissing(f"part {part}: {why}")
                tried.append(one)
                running[self._start(one, part, method, arguments, deadline)] = one
            now = self._clock()
            until = min(deadline, hedge_at if hedge is None else math.inf)
            tasks, _ = await asyncio.wait(
                running,
                timeout=None if math.isinf(until) else max(0.0, until - now),
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in tasks:
                one, reply = running.pop(task), task.result()
                if reply.error is None:
                    self._took(part, one, began, running, hedge)
                    return reply.value
                why = reply.error
            now = self._clock()
            if now >= deadline:
                self._give_up(part, running.values(), began, now - began)
                raise PartMissing(f"part {part}: no answer in time")
            if hedge is None and running and now >= hedge_at:
                hedge_at = math.inf
                may = self._saved >= 1 or any(each.tried for each in running.values())
                if may and (other := self._choose(part, tried) or self._choose_slow(part, tried)) is not None:
                    self._saved -= 1
                    hedge = other
                    tried.append(other)
                    running[self._start(other, part, method, arguments, deadline)] = other

    def _took(
        self, part: str, one: _Entry, began: float, running: Mapping[asyncio.Task[Reply], _Entry], hedge: _Entry | None
    ) -> None:
        """Take in that a replica has answered, and strike those that it overtook."""
        seconds = self._clock() - began
        self._times.append(seconds)
        self._metrics.observe_shard(part, seconds)
        if hedge is not None:
            self._metrics.count_hedge(one is hedge)
            if one is hedge:
                for slow in running.values():
                    # Unless no other is left that is not struck: better slow than missing.
                    if any(each is not slow and each.strikes == 0 for each in self._entries.get(part, ())):
                        self._strike(part, slow, began, only_slow=True)

    def _give_up(self, part: str, late: Iterable[_Entry], began: float, seconds: float) -> None:
        """Take in that the time of a call is over after so long."""
        for one in late:
            self._metrics.count_shard_call(part, LATE)
            if seconds >= LATE_SECONDS:
                self._strike(part, one, began)

    def _delay(self) -> float:
        if self._hedge_s:
            return self._hedge_s
        # Sorted, because NumPy's percentile takes ten times as long for so few, and the event loop waits for it.
        return FIRST_DELAY if len(self._times) < FEWEST_TIMED else sorted(self._times)[len(self._times) * 95 // 100]

    def _choose(self, part: str, without: Sequence[_Entry]) -> _Entry | None:
        """Return who is to be asked; one whose strike is over goes first, to be tried."""
        now = self._clock()
        able = [
            each
            for each in self._entries.get(part, ())
            if each not in without and (each.strikes == 0 or (now >= each.struck_until and not each.tried))
        ]
        return min(able, key=lambda each: (each.strikes == 0, each.in_progress, each.turn), default=None)

    def _choose_slow(self, part: str, without: Sequence[_Entry]) -> _Entry | None:
        """Return who is to be asked where nobody else can be: one that was only overtaken."""
        slow = [each for each in self._entries.get(part, ()) if each not in without and each.was_only_slow]
        return min(slow, key=lambda each: (each.in_progress, each.turn), default=None)

    def _start(
        self, one: _Entry, part: str, method: str, arguments: Arguments, deadline: float
    ) -> "asyncio.Task[Reply]":
        one.turn = next(self._turns)
        one.in_progress += 1  # now, not when the task begins: the next call must see it
        tries = one.tried = one.strikes > 0
        task = asyncio.get_running_loop().create_task(self._call(one, part, method, arguments(), deadline, tries))
        self._calls.add(task)  # it goes on if nobody waits for it any more
        task.add_done_callback(self._calls.discard)
        return task

    async def _call(
        self, one: _Entry, part: str, method: str, arguments: tuple[Any, ...], deadline: float, tries: bool
    ) -> Reply:
        began = self._clock()
        left = min(deadline - began, LONGEST_CALL_SECONDS)
        try:
            async with asyncio.timeout(LONGEST_CALL_SECONDS):
                reply = await one.replica.ask(method, arguments, left)
        except (ReplicaLost, TimeoutError) as error:
            reply = Reply(None, str(error) or "no answer", LOST)
        finally:
            one.in_progress -= 1
            if tries:
                one.tried = False
        self._metrics.count_shard_call(part, reply.kind or "ok")
        if reply.error is not None:
            if reply.kind != LATE:
                self._strike(part, one, began)
            fields = {"part": part, "replica": one.replica.name, "method": method, "why": reply.error}
            log.warning("a shard gave no answer", extra={"fields": fields})
        elif one.strikes and began >= one.struck_at:
            one.pardon()
            self._show(part)
        return reply

    def _strike(self, part: str, one: _Entry, began: float, only_slow: bool = False) -> None:
        """Strike a replica for a call that began at this time, unless it was struck since."""
        if began < one.struck_at:
            one.was_only_slow &= only_slow or one.strikes == 0  # it may have been pardoned since
            return
        one.was_only_slow = only_slow and (one.was_only_slow or one.strikes == 0)
        now = self._clock()
        seconds = min(LONGEST_STRIKE_SECONDS, STRIKE_SECONDS * 2 ** min(one.strikes, 16))
        one.strikes, one.struck_at, one.struck_until = one.strikes + 1, now, now + seconds
        self._show(part)

    def _show(self, part: str) -> None:
        if (replicas := self._entries.get(part)) is not None:  # else they ended while one was called
            self._metrics.show_struck(part, sum(each.strikes > 0 for each in replicas))

    async def close(self) -> None:
        """Wait for nobody any more."""
        calls = [*self._calls]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
