"""A server of shards whose node or whose cluster's control plane is killed; each test has a cluster of its own."""

import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray_cluster import Cluster
from sharded_server import PARTS, Server, Stores, asked_all_the_time, serving, until

if importlib.util.find_spec("ray") is None:
    pytest.skip("needs Ray: make test-scale", allow_module_level=True)


@pytest.fixture
def own() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture
def server(stores: Stores, own: Cluster, tmp_path: Path) -> Iterator[Server]:
    options = ["--store", stores.parts, "--cluster", own.address, "--shard-replicas", 2]
    with serving(own.environment, tmp_path / "log", *options) as server:
        yield server


def all_are_ready(server: Server) -> bool:
    return server.metric("shard_ready") == [2.0] * PARTS


def test_a_killed_node_costs_no_answer_and_its_shards_start_elsewhere(
    server: Server, stores: Stores, own: Cluster
) -> None:
    machine = [own.nodes[1], *own.nodes[1].children(recursive=True)]
    assert len([each for each in own.actors("ShardActor") if each in machine]) == PARTS, "one replica of each part"
    missed = set[int]()

    def each_is_missed() -> bool:  # not at the same time: one may be back before the other is missed
        missed.update(at for at, ready in enumerate(server.metric("shard_ready")) if ready < 2)
        return len(missed) == PARTS

    with asked_all_the_time(server) as load:
        for process in machine:
            process.kill()
        until(each_is_missed, "its shards are missed")
        until(lambda: all_are_ready(server), "they start on the other node")
    assert load.are_right(stores.expected)


def test_without_the_control_plane_answers_go_on(server: Server, stores: Stores, own: Cluster) -> None:
    with asked_all_the_time(server) as load:
        for victim in (own.control_plane, own.actors("ShardActor")[0]):
            victim.kill()
            time.sleep(5)
            before = len(load.answers)
            until(lambda before=before: len(load.answers) > before + 50, "answers go on")
    assert load.are_right(stores.expected)
