"""On which nodes shards are started; a cluster that only says which nodes it has stands in for Ray."""

from types import SimpleNamespace
from typing import Any

import pytest

from polyrank.model.errors import Shortage
from polyrank.service.scale.calls import Replica
from polyrank.service.scale.ray_shards import RayShards


class NoRay(Exception):
    """In the place of `RayError`."""


class Actors:
    """In the place of an actor's class; remembers where actors were started."""

    def __init__(self) -> None:
        self.nodes: list[str] = []

    def options(self, *, scheduling_strategy: str, **_: object) -> "Actors":
        self.nodes.append(scheduling_strategy)
        return self

    def remote(self, *_: object) -> object:
        return object()


class Started:
    """Shards on nodes with these processors."""

    def __init__(self, **processors: int) -> None:
        self.actors = Actors()
        self.nodes: list[dict[str, Any]] = [
            {"Alive": True, "NodeID": node, "Resources": {"CPU": count} if count else {}}
            for node, count in processors.items()
        ]
        strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
        ray = SimpleNamespace(
            remote=lambda _: self.actors, nodes=lambda: self.nodes, kill=lambda _, no_restart: None,
            exceptions=SimpleNamespace(RayError=NoRay), util=SimpleNamespace(scheduling_strategies=strategies),
        )  # fmt: skip
        self.shards = RayShards(ray, "/store", None)

    def start(self, part: str, number: int = 0) -> tuple[Replica, str]:
        return self.shards.start(part, number), self.actors.nodes[-1]


def test_the_replicas_of_a_part_are_on_different_nodes_and_nodes_are_filled_alike() -> None:
    started = Started(head=0, a=2, b=2)
    assert [started.start(part, number)[1] for part in ("p", "q") for number in (0, 1)] == ["a", "b", "a", "b"]
    assert started.start("p", 2)[1] == "a"


def test_who_takes_the_place_of_a_silent_one_is_on_another_node() -> None:
    started = Started(a=2, b=2)
    silent, node = started.start("p")
    _, other = started.start("p")
    started.shards.stop(silent)
    assert (node, other) == ("a", "b")
    assert started.start("q")[1] == "a", "the new one counts, and the silent one does not"


def test_replicas_that_ended_take_no_room() -> None:
    started = Started(a=2, b=2)
    first, _ = started.start("p")
    assert started.start("q")[1] == "b"
    third, node = started.start("r")
    assert node == "a"
    for replica in (first, third):
        started.shards.stop(replica)
    assert started.start("s")[1] == "a"


def test_where_no_node_has_a_processor_no_shard_is_started() -> None:
    with pytest.raises(Shortage, match="no node with a processor"):
        Started(head=0).start("p")
