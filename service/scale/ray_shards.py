"""Shards as actors of a Ray cluster.

Every part has its replicas on different nodes, as long as there are enough. A node that dies gives its actors to
others. They begin empty, and `SetLive.look` gives them what they are to hold. All machines see the store's directory
under the same path. The actors end with the process that started them.
"""

from typing import Any

from polyrank.index_builder.scale.cluster import require_token
from polyrank.service import processors
from polyrank.service.scale.calls import Replica, ReplicaLost, Reply


class ShardActor:
    """The actor: answers the calls of fronts in a process of its own.

    Raises:
        ClusterUnavailable: its node asks for no token.
    """

    def __init__(self, root: str, threads: int | None) -> None:
        require_token()
        import torch

        from polyrank.service.scale.body import Body, Desk

        threads = threads or processors.available()
        torch.set_num_threads(threads)
        self._desk = Desk(Body(root, threads))

    async def ask(self, method: str, arguments: tuple[Any, ...], left_s: float) -> Reply:
        """See `Desk.ask`."""
        return await self._desk.ask(method, arguments, left_s)


class _RayReplica:
    """See `Replica`."""

    def __init__(self, ray: Any, actor: Any, name: str) -> None:
        self._ray, self.actor, self.name = ray, actor, name

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
    """See `Shards`.

    Args:
        ray: the module, connected to a cluster.
        root: the directory of the store.
        threads: of each shard; None: as many as there are processors on its machine.
    """

    def __init__(self, ray: Any, root: str, threads: int | None) -> None:
        self._ray, self._root, self._threads = ray, root, threads
        self._actor_class = ray.remote(ShardActor)
        self._affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        self._parts: dict[str, int] = {}

    def start(self, part: str, number: int) -> Replica:
        """Start an actor; replicas of a part are spread over the nodes."""
        place = self._parts.setdefault(part, len(self._parts)) + number
        nodes = sorted(node["NodeID"] for node in self._ray.nodes() if node["Alive"])
        actor = self._actor_class.options(
            num_cpus=0,
            max_restarts=-1,
            max_task_retries=0,
            scheduling_strategy=self._affinity(nodes[place % len(nodes)], soft=True),
        ).remote(self._root, self._threads)
        return _RayReplica(self._ray, actor, f"{part}/{number}")

    def stop(self, replica: Replica) -> None:
        """Kill the actor for good."""
        assert isinstance(replica, _RayReplica), "`start` makes no others"
        self._ray.kill(replica.actor, no_restart=True)


def _why(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
