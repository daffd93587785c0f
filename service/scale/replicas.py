"""The replicas of all parts: which there are, what they hold, and what is done about those that lost it.

A replica that was restarted holds nothing. It loads its part for as long as that takes, and nothing waits for it; if it
cannot, it is told again, ever less often. A replica that says nothing for a minute is ended, and another one takes its
place. No switch waits for it longer than that.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Set
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import chain

from polyrank.index_builder.generation.manifest import Manifest
from polyrank.model.errors import Shortage
from polyrank.service.observe.metrics import Metrics
from polyrank.service.scale.calls import LOST, Holding, Replica, ReplicaLost, Reply, Shards
from polyrank.service.scale.replica_choice import ReplicaChoice

# Opening a part reads its every byte.
PREPARE_WITHIN_SECONDS = 3600.0
LOOK_WITHIN_SECONDS = 2.0
# A replica that failed to load its part is told again after so long, and after twice as long with each further failure.
LOAD_AGAIN_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
# A replica may be silent for so long, and one that takes its place for twice as long: perhaps starting takes long here.
SILENT_SECONDS, LONGEST_SILENT_SECONDS = 60.0, 3600.0
_AT_ONCE = 64

log = logging.getLogger(__name__)


class _State:
    def __init__(self, replica: Replica, number: int) -> None:
        self.replica, self.number = replica, number
        self.silent_since: float | None = None
        self.may_be_silent = SILENT_SECONDS
        self.loads = False  # a thread has it load what it lost
        self.failures, self.load_at = 0, 0.0


class Replicas:
    """Starts, tells and ends replicas. For one thread at a time, but `look` may run beside the other methods.

    `number`: of replicas for each part.
    """

    def __init__(
        self,
        shards: Shards,
        choice: ReplicaChoice,
        metrics: Metrics,
        number: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shards, self._choice, self._metrics, self._number, self._clock = shards, choice, metrics, number, clock
        self._parts: dict[str, list[_State]] = {}
        self._changing = threading.Lock()  # `_parts`: the threads that load change it, too
        self._calls = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="shards")
        self._loads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="shards-load")

    def prepare(self, manifest: Manifest) -> dict[str, list[Reply]]:
        """Have the replicas of a generation's parts prepare it, and return what those of each part say.

        Replicas are started where a part has none. One that loads what it lost is left out if the part has others: it
        is given the generation once that is served. One that stays silent counts as lost.
        """
        for part in manifest.parts:
            self._start(part.name)
        targets: list[tuple[Holding, _State]] = []
        for part in manifest.parts:
            own = self._parts[part.name]
            free = [each for each in own if not each.loads] or own
            targets += ((Holding(manifest.id, part.name), each) for each in free)
        calls = {self._calls.submit(self._prepare, *each): each for each in targets}
        waiting = set(calls)
        while waiting:
            _, waiting = wait(waiting, timeout=LOOK_WITHIN_SECONDS)
            for call in waiting:
                self._hear(calls[call][1])
            waiting = {call for call in waiting if not self._is_silent(calls[call][1])}
        replies: dict[str, list[Reply]] = {}
        for call, (holding, state) in calls.items():
            reply = call.result() if call.done() else Reply(None, "it says nothing", LOST)
            if reply.error is None:  # pardoned whatever it was struck for, to lack a generation or to be slow
                self._choice.forgive(holding.part, state.replica)
            replies.setdefault(holding.part, []).append(reply)
        return replies

    def look(self, holdings: Collection[Holding], needed: Callable[[], Set[str]]) -> None:
        """Ask the replicas what they hold, and have those that lack their part load it, without waiting for that.

        `needed` returns the generations that requests may need; all others are dropped. It is called when a replica has
        said what it holds: a switch that goes on meanwhile says that it needs one before it has replicas prepare it.
        """
        targets = [(holding, each) for holding in holdings for each in self._parts.get(holding.part, ())]
        holds = list(self._calls.map(lambda each: self._look_at(each[0], each[1], needed), targets))
        for holding in holdings:
            ready = sum(is_held for (about, _), is_held in zip(targets, holds, strict=True) if about is holding)
            self._metrics.show_ready(holding.part, ready)

    def drop(self, generation: str, needed_parts: Collection[str]) -> None:
        """Have all replicas let go of a generation, and end those of parts other than these."""
        every = list(chain.from_iterable(self._parts.values()))
        list(self._calls.map(lambda each: self._tell(each, "drop", generation, LOOK_WITHIN_SECONDS), every))
        self._keep_only(needed_parts)

    def close(self) -> None:
        self._keep_only(())
        for threads in (self._loads, self._calls):
            threads.shutdown(wait=True, cancel_futures=True)

    def _start(self, part: str) -> None:
        for number in range(len(self._parts.get(part, ())), self._number):
            state = _State(self._shards.start(part, number), number)
            with self._changing:
                self._parts.setdefault(part, []).append(state)
        self._update_choice()

    def _keep_only(self, parts: Collection[str]) -> None:
        with self._changing:
            ended = {part: own for part, own in self._parts.items() if part not in parts}
            self._parts = {part: own for part, own in self._parts.items() if part in parts}
        self._update_choice()
        for part, own in ended.items():
            for each in own:
                self._shards.stop(each.replica)
            self._metrics.forget_part(part)

    def _update_choice(self) -> None:
        with self._changing:
            self._choice.serve_with({part: [each.replica for each in own] for part, own in self._parts.items()})

    # One replica.

    def _look_at(self, holding: Holding, state: _State, needed: Callable[[], Set[str]]) -> bool:
        """Whether a replica holds a part; if not, it loads the part, unless it is too early for that.

        It is told to drop the generations that are not needed: it may not have heard of it when they were dropped.
        """
        reply, now = self._hear(state), self._clock()
        if reply.error is None:
            for generation in {each.generation for each in reply.value} - needed():
                self._tell(state, "drop", generation, LOOK_WITHIN_SECONDS)
            if holding in reply.value:
                return True
        if not state.loads and now >= state.load_at and (reply.error is None or self._is_silent(state)):
            state.loads = True
            self._loads.submit(self._load, holding, state)
        return False

    def _hear(self, state: _State) -> Reply:
        """Ask a replica what it holds, and note since when it says nothing."""
        reply = self._tell(state, "held", None, LOOK_WITHIN_SECONDS)
        if reply.error is None:
            state.silent_since, state.may_be_silent = None, SILENT_SECONDS
        elif state.silent_since is None:
            state.silent_since = self._clock()
        return reply

    def _is_silent(self, state: _State) -> bool:
        return state.silent_since is not None and self._clock() - state.silent_since >= state.may_be_silent

    def _load(self, holding: Holding, state: _State) -> None:
        """Have a replica load a part that it lost, or another one in its place if it is silent."""
        try:
            if self._is_silent(state):
                self._replace(holding.part, state)
            fields = {"generation": holding.generation, "part": holding.part, "replica": state.replica.name}
            log.info("a shard prepares what it has lost", extra={"fields": fields})
            if self._prepare(holding, state).error is None:
                state.failures = 0
                self._choice.forgive(holding.part, state.replica)
            else:
                self._pause(state)
        except Shortage as error:
            log.warning("no shard can be started", extra={"fields": {"part": holding.part, "why": error}})
            self._pause(state)
        except Exception:
            log.exception("shard %s could not be given what it is to hold", state.replica.name)
            self._pause(state)
        finally:
            state.loads = False

    def _pause(self, state: _State) -> None:
        seconds = min(LONGEST_PAUSE_SECONDS, LOAD_AGAIN_SECONDS * 2 ** min(state.failures, 16))
        state.failures, state.load_at = state.failures + 1, self._clock() + seconds

    def _replace(self, part: str, state: _State) -> None:
        """Put another replica in the place of a silent one; raises Shortage if none can be started."""
        silent, new = state.replica, self._shards.start(part, state.number)
        fields = {"part": part, "replica": silent.name, "silent_seconds": round(state.may_be_silent)}
        log.warning("another shard takes the place of a silent one", extra={"fields": fields})
        with self._changing:
            is_kept = state in self._parts.get(part, ())  # else the part went meanwhile
            state.replica, state.silent_since = new, None
            state.may_be_silent = min(LONGEST_SILENT_SECONDS, 2 * state.may_be_silent)
        self._update_choice()
        for each in [silent] if is_kept else [silent, new]:
            self._shards.stop(each)

    def _prepare(self, holding: Holding, state: _State) -> Reply:
        reply = self._tell(state, "prepare", holding, PREPARE_WITHIN_SECONDS)
        if reply.error is not None:
            fields = {"generation": holding.generation, "part": holding.part, "replica": state.replica.name}
            fields |= {"why": reply.error}
            log.warning("a shard could not prepare a generation", extra={"fields": fields})
        return reply

    def _tell(self, state: _State, method: str, argument: object, within_s: float) -> Reply:
        try:
            return state.replica.control(method, () if argument is None else (argument,), within_s)
        except ReplicaLost as error:
            return Reply(None, str(error), LOST)
