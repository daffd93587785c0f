"""Shards as actors of a Ray cluster.

Every part has its replicas on different nodes, as long as there are enough. A node that dies gives its actors to
others. They begin empty, and `Replicas.look` gives them what they are to hold. All machines see the store's directory
under the same path. The actors end with the process that started them.
"""

import threading
from collections import Counter
from contextlib import suppress
from typing import Any

from polyrank.index_builder.scale.cluster import require_token
from polyrank.model.errors import Shortage
from polyrank.model.threads import choose
from polyrank.service import machine
from polyrank.service.scale.calls import Replica, ReplicaLost, Reply


class ShardActor:
    """The actor: answers the calls of fronts in a process of its own."""

    def __init__(self, root: str, threads: int | None) -> None:
        require_token()
        from polyrank.service.scale.shard import Body, ShardDesk

        threads = threads or machine.processors()
        choose(threads)
        self._desk = ShardDesk(Body(root, threads))

    async def ask(self, method: str, arguments: tuple[Any, ...], left_s: float) -> Reply:
        return await self._desk.ask(method, arguments, left_s)


class _RayReplica:
    def __init__(self, ray: Any, actor: Any, name: str, node: str) -> None:
        self._ray, self.actor, self.name, self.node = ray, actor, name, node

    async def ask(self, method: str, arguments: tuple[Any, ...], left_s: float) -> Reply:
        try:
            reply: Reply = await self.actor.ask.remote(method, arguments, left_s)
        except self._ray.exceptions.RayError as error:
            raise ReplicaLost(_why(error)) from error
        return reply

    def control(self, method: str, arguments: tuple[Any, ...], within_s: float) -> Reply:
        try:
            reply: Reply = self._ray.get(self.actor.ask.remote(method, arguments, within_s), timeout=within_s)
        except self._ray.exceptions.RayError as error:
            raise ReplicaLost(_why(error)) from error
        return reply


class RayShards:
    """See `Shards`; several threads may call it.

    `threads`: of each shard; None: as many as there are processors on its machine.
    """

    def __init__(self, ray: Any, root: str, threads: int | None) -> None:
        self._ray, self._root, self._threads = ray, root, threads
        self._actor_class = ray.remote(ShardActor)
        self._affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        self._placing = threading.Lock()
        self._started: dict[tuple[str, int], _RayReplica] = {}  # the last one of each part and number, until it ends

    def start(self, part: str, number: int) -> Replica:
        """Start an actor; see `_node_for` for where."""
        try:
            alive = self._alive()
            with self._placing:
                node = self._node_for(part, number, alive)
                actor = self._actor_class.options(
                    num_cpus=0,
                    memory=1,  # bytes: Ray places an actor that needs nothing at random
                    max_restarts=-1,
                    max_task_retries=0,
                    scheduling_strategy=self._affinity(node, soft=True),
                ).remote(self._root, self._threads)
                replica = self._started[part, number] = _RayReplica(self._ray, actor, f"{part}/{number}", node)
        except self._ray.exceptions.RayError as error:
            raise Shortage(f"the cluster starts no shard: {_why(error)}") from error
        return replica

    def _alive(self) -> list[str]:
        """The nodes that work. One without processors, as a head often is, is for none."""
        alive = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        if not alive:
            raise Shortage("the cluster has no node with a processor for a shard")
        return sorted(node["NodeID"] for node in alive)

    def _node_for(self, part: str, number: int, alive: list[str]) -> str:
        """The node with the fewest replicas of the part, then another than this replica had, then the emptiest."""
        before, used = self._started.get((part, number)), Counter(each.node for each in self._started.values())
        others = Counter(each.node for (of, at), each in self._started.items() if of == part and at != number)
        return min(alive, key=lambda node: (others[node], before is not None and node == before.node, used[node]))

    def stop(self, replica: Replica) -> None:
        assert isinstance(replica, _RayReplica), "`start` makes no others"
        with self._placing:
            self._started = {key: each for key, each in self._started.items() if each is not replica}
        with suppress(self._ray.exceptions.RayError):  # then it ends with this process
            self._ray.kill(replica.actor, no_restart=True)


def _why(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
