"""Shards in the test's own process, and what serves a store that is cut into parts with them."""

import asyncio
import math
import pickle
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import waiting
from service_fakes import count_nothing, load

from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.service.changes.updating import Acknowledged, Updating
from polyrank.service.live.searchable import Opener
from polyrank.service.live.switching import Live
from polyrank.service.observe.metrics import Metrics
from polyrank.service.ranking.engine import Engine
from polyrank.service.ranking.here import Here
from polyrank.service.ranking.parts import Serving
from polyrank.service.ranking.runtime import Runtime, RuntimeSettings
from polyrank.service.ranking.values import Ranked, RankRequest
from polyrank.service.scale.calls import Replica, ReplicaLost, Reply
from polyrank.service.scale.replica_choice import ReplicaChoice
from polyrank.service.scale.replicas import Replicas
from polyrank.service.scale.shard import Body, ShardDesk
from polyrank.service.scale.shard_holder import OnShards
from polyrank.service.scheduling.stages import Journey

until = partial(waiting.until, seconds=30)
T = TypeVar("T")


def _sent(message: T) -> T:
    """What arrives in another process."""
    received: T = pickle.loads(pickle.dumps(message))
    return received


class LocalReplica:
    """A shard in this process; it can be told to stall, to fail, and to lose what it holds.

    Attributes:
        stalls: how long an answer waits.
        lost: it cannot be reached.
        calls: the methods called for requests.
    """

    def __init__(self, root: Path, part: str, number: int) -> None:
        self.name, self.part, self._root = f"{part}/{number}", part, root
        self.stalls, self.lost = 0.0, False
        self.calls: list[str] = []
        self.restart()

    def restart(self) -> None:
        """Lose what is held."""
        self.body = Body(str(self._root))
        self.desk = ShardDesk(self.body)

    async def ask(self, method: str, arguments: tuple[Any, ...], left_s: float) -> Reply:
        self.calls.append(method)
        if self.lost:
            raise ReplicaLost("gone")
        await asyncio.sleep(self.stalls)
        return _sent(await self.desk.ask(method, _sent(arguments), left_s))

    def control(self, method: str, arguments: tuple[Any, ...], within_s: float) -> Reply:
        if self.lost:
            raise ReplicaLost("gone")
        return _sent(self.body.call(method, _sent(arguments)))


class LocalShards:
    """Starts shards in this process.

    Attributes:
        replicas: all that run, by part and number.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.replicas: dict[tuple[str, int], LocalReplica] = {}

    def start(self, part: str, number: int) -> Replica:
        self.replicas[part, number] = made = LocalReplica(self._root, part, number)
        return made

    def stop(self, replica: Replica) -> None:
        for key in [key for key, each in list(self.replicas.items()) if each is replica]:  # several threads stop some
            self.replicas.pop(key, None)

    def of(self, part: str) -> list[LocalReplica]:
        return [each for (name, _), each in sorted(self.replicas.items()) if name == part]


class ServedPool:
    """A store of whole generations, and what is served of it."""

    def __init__(self, root: Path) -> None:
        self.metrics, self.store, self.min_searched = Metrics(), GenerationStore(root), 0.0
        self.choice = ReplicaChoice(self.metrics)
        self.live = Live(self.store, Here(self.store, Opener(count_nothing, None, load)), self.metrics)
        self.live.start()

    @property
    def serving(self) -> Serving:
        return self.live.require()

    def run(self, work: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
        """Run something with a runtime in an event loop of its own."""

        async def alone() -> T:
            runtime = Runtime(RuntimeSettings(min_searched=self.min_searched), self.metrics)
            try:
                return await work(runtime)
            finally:
                await self.choice.close()
                runtime.close()

        return asyncio.run(alone())

    def upsert(self, *candidates: Candidate) -> Acknowledged:
        return self.updated(lambda updating: updating.upsert(candidates))

    def delete(self, *ids: str) -> Acknowledged:
        return self.updated(lambda updating: updating.delete(ids))

    def updated(self, work: Callable[[Updating], Coroutine[Any, Any, T]]) -> T:
        """Run something with what writes updates, in an event loop of its own."""

        async def alone(runtime: Runtime) -> T:
            with closing(Updating(self.store, self.live, runtime, self.metrics)) as updating:
                return await work(updating)

        return self.run(alone)

    def rank(self, *requests: RankRequest, seconds: float = math.inf) -> list[Ranked]:
        """Rank requests at the same time."""

        async def all_of(runtime: Runtime) -> list[Ranked]:
            engine, deadline = Engine(runtime), time.monotonic() + seconds
            return await asyncio.gather(*(engine.rank(self.serving, each, Journey(deadline)) for each in requests))

        return self.run(all_of)

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"polyrank_{name}", labels)

    def close(self) -> None:
        self.live.current = self.live.beside = None


class ServedParts(ServedPool):
    """A store that is cut into parts, and what is served of it."""

    def __init__(
        self,
        root: Path,
        replicas: int = 1,
        min_searched: float = 0.0,
        hedge_s: float = 0.0,
        load: Callable[[str], Any] = load,
        longest_s: float = 10.0,
        shards_root: Path | None = None,
    ) -> None:
        self.metrics, self.store = Metrics(), GenerationStore(root)
        self.shards = LocalShards(shards_root or root)
        self.choice, self.min_searched = ReplicaChoice(self.metrics, hedge_s), min_searched
        opener = Opener(count_nothing, None, load)
        self.replicas = Replicas(self.shards, self.choice, self.metrics, replicas)
        self.on_shards = OnShards(self.store, opener, self.replicas, self.choice, self.metrics, longest_s)
        self.live = Live(self.store, self.on_shards, self.metrics)
        self.live.start()

    def close(self) -> None:
        super().close()
        self.on_shards.close()
