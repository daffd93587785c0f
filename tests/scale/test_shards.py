"""A server whose pool is held by shards on real raylets: its answers are those of one machine, whatever is killed."""

import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray_cluster import WITHIN_SECONDS, Cluster
from sharded_server import BODIES, PARTS, POOL, Server, Stores, asked_all_the_time, said, serving, until

from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.index_builder.store.locks import locked
from polyrank.service.changes.updating import SWITCHES_WITHIN_SECONDS

if importlib.util.find_spec("ray") is None:
    pytest.skip("needs Ray: make test-scale", allow_module_level=True)


@pytest.fixture(scope="module")
def server(stores: Stores, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    options = ["--store", stores.parts, "--cluster", cluster.address, "--shard-replicas", 2]
    with serving(cluster.environment, log, *options) as server:
        yield server
    until(lambda: not cluster.actors("ShardActor"), "the shards end with their server")


def test_answers_are_those_of_one_machine_to_the_bit(server: Server, stores: Stores, cluster: Cluster) -> None:
    answers = [server.answer(body) for body in BODIES]
    assert {answer["generation"] for answer in answers} == {stores.generations["c"].id}
    assert [said(answer) for answer in answers] == stores.expected[stores.generations["c"].id]
    assert len(cluster.actors("ShardActor")) == 2 * PARTS
    listening = cluster.listening(psutil.Process(server.process.pid))
    assert set(listening) <= {"127.0.0.1", "::ffff:127.0.0.1"}


def all_are_ready(server: Server) -> bool:
    return server.metric("shard_ready") == [2.0] * PARTS


def test_a_killed_replica_costs_no_answer_and_comes_back(server: Server, stores: Stores, cluster: Cluster) -> None:
    with asked_all_the_time(server) as load:
        for _ in range(2):
            until(lambda: all_are_ready(server), "both replicas of every part are ready")
            victim = cluster.actors("ShardActor")[-1]
            victim.kill()
            until(lambda: min(server.metric("shard_ready")) < 2, "it is missed")
        until(lambda: all_are_ready(server), "it comes back, and prepares the generation")
    assert len(load.answers) > 50
    assert load.are_right(stores.expected)


def test_a_replica_that_stalls_is_left_alone_until_it_answers(server: Server, stores: Stores, cluster: Cluster) -> None:
    until(lambda: all_are_ready(server), "both replicas of every part are ready")
    stalled = cluster.actors("ShardActor")[0]
    with asked_all_the_time(server) as load:
        stalled.suspend()
        try:
            until(lambda: sum(server.metric("shard_struck")) == 1, "it is struck")
            struck_at = len(load.answers)
            until(lambda: len(load.answers) > struck_at + 50, "calls do without it")
        finally:
            stalled.resume()
        until(lambda: sum(server.metric("shard_struck")) == 0 and all_are_ready(server), "it is asked again")
    assert load.longest_s < 5, "nobody waits for it as long as it stalls"
    assert load.are_right(stores.expected)


def maps(shard: psutil.Process, made: Manifest) -> bool:
    """Whether a shard has files of a generation in its memory."""
    return made.id in Path(f"/proc/{shard.pid}/maps").read_text()


def test_switches_with_replicas_killed_before_the_commit(server: Server, stores: Stores, cluster: Cluster) -> None:
    """A replica is killed when the new generation was prepared on all, and CURRENT does not name it yet."""
    with asked_all_the_time(server) as load, ThreadPoolExecutor(1) as switcher:
        for at, name in enumerate("nc" * 10):
            made, kills = stores.generations[name], at % 5 == 0
            if kills:
                until(lambda: all_are_ready(server), "both replicas of every part are ready")
            with locked(stores.parts / "pointer.lock"):  # the commit waits for it
                switch = switcher.submit(server.client.post, "/index/activate", json={"generation": made.id})
                time.sleep(0.3)
                if kills:
                    shards = cluster.actors("ShardActor")
                    until(
                        lambda made=made, shards=shards: all(maps(each, made) for each in shards), "all have prepared"
                    )
                    shards[at % (2 * PARTS)].kill()
                assert not switch.done()
            assert switch.result().json()["active"]["id"] == made.id
    assert {answer["generation"] for _, answer in load.answers} == {each.id for each in stores.generations.values()}
    assert load.are_right(stores.expected)
    until(lambda: all_are_ready(server), "all come back")


def test_a_lost_part_is_missing_from_the_answers_which_say_so(stores: Stores, cluster: Cluster, tmp_path: Path) -> None:
    others = {each.pid for each in cluster.actors("ShardActor")}
    options = ["--store", stores.parts, "--cluster", "auto", "--min-searched", "0.2"]
    with serving(cluster.environment, tmp_path / "log", *options) as server:
        shards = [each for each in cluster.actors("ShardActor") if each.pid not in others]
        assert len(shards) == PARTS
        shards[0].kill()
        partial: list[dict[str, Any]] = []

        def is_whole() -> bool:
            answer = server.answer(BODIES[0])
            if "searched" in answer:
                partial.append(answer)
            return bool(partial) and "searched" not in answer

        until(is_whole, "the part comes back")
        shares = {round(part.count / len(POOL), 6) for part in stores.generations["c"].parts}
        for answer in partial:
            assert answer["degraded"] == ["shards_missing"]
            assert answer["exact"] is False
            assert round(answer["searched"], 6) in shares
            assert answer["results"]
        whole = stores.expected[stores.generations["c"].id][0]
        until(lambda: said(server.answer(BODIES[0])) == whole, "answers are whole again")


def test_acknowledged_updates_outlive_killed_shards_and_a_restarted_server(
    stores: Stores, cluster: Cluster, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    shutil.copytree(stores.parts, root)
    options = ["--store", root, "--cluster", cluster.address, "--shard-replicas", 2]
    others = {each.pid for each in cluster.actors("ShardActor")}
    acknowledged: list[int] = []

    def found(server: Server, number: int, revision: int) -> None:
        text = f"w1 ord-{number} w{number}"
        answer = server.answer({"context": text, "top_k": 3, "exact": True, "min_revision": revision})
        assert answer["revision"] >= revision
        assert answer["degraded"] == []
        body = {"context": text, "candidates": [{"id": f"new {number}"}], "min_revision": revision}
        assert [each["text"] for each in server.answer(body)["results"]] == [text]

    def update(server: Server, number: int) -> None:
        row = {"id": f"new {number}", "text": f"w1 ord-{number} w{number}", "metadata": {"n": number}}
        told = server.client.put("/index/candidates", json={"candidates": [row]})
        assert told.status_code == 200, told.text
        acknowledged.append(told.json()["revision"])
        found(server, number, acknowledged[-1])

    with serving(cluster.environment, tmp_path / "log", *options) as server:
        with asked_all_the_time(server) as load:
            for number in range(10):
                update(server, number)
            until(lambda: server.metric("shard_ready") == [2.0] * PARTS, "both replicas of every part are ready")
            [victim, *_] = [each for each in cluster.actors("ShardActor") if each.pid not in others]
            victim.kill()
            for number in range(10, 20):
                update(server, number)
            until(lambda: server.metric("shard_ready") == [2.0] * PARTS, "it comes back, and reads its updates")
            job = server.client.post("/index/compact").headers["location"]
            for number in range(20, 25):
                update(server, number)
            until(lambda: server.client.get(job).json()["state"] in ("succeeded", "failed"), "the compaction ends")
            assert server.client.get(job).json()["error"] is None
            for number in range(25):
                found(server, number, acknowledged[-1])
        assert load.answers
        assert acknowledged == list(range(1, 26))
    with serving(cluster.environment, tmp_path / "log again", *options) as server:
        for number in range(25):
            found(server, number, acknowledged[-1])
        assert server.client.get("/index").json()["active"]["count"] == len(POOL) + 25


def test_updates_wait_for_a_shard_that_is_killed_at_a_switch(stores: Stores, cluster: Cluster, tmp_path: Path) -> None:
    root, log = tmp_path / "store", tmp_path / "log"
    shutil.copytree(stores.parts, root)
    others = {each.pid for each in cluster.actors("ShardActor")}

    def kill_until(told: str) -> None:
        def is_told() -> bool:
            for each in cluster.actors("ShardActor"):
                if each.pid not in others:
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
            return told in log.read_text()

        until(is_told, told)

    def update(number: int) -> Any:
        began = time.monotonic()
        told = server.client.put("/index/candidates", json={"candidates": [{"id": f"new {number}", "text": "w1 w2"}]})
        if told.status_code == 503:
            assert time.monotonic() - began >= SWITCHES_WITHIN_SECONDS, told.text
            assert "is not served yet: part" in told.json()["detail"]
            assert told.json()["detail"].endswith("; send the update again")
        return told

    with serving(cluster.environment, log, "--store", root, "--cluster", cluster.address) as server:
        assert update(0).status_code == 200
        job = server.client.post("/index/compact").headers["location"]
        kill_until("generation is not served yet")
        while (told := update(1)).status_code == 503:
            pass
        assert told.status_code == 200, told.text
        assert (
            told.json()["generation"] == server.client.get(job).json()["generation"] == GenerationStore(root).current()
        )
        until(lambda: server.metric("shard_ready") == [1.0] * PARTS, "the shards are back")
        assert server.client.get("/index/candidates/new%201").status_code == 200
    assert "generation refused" not in log.read_text()


def test_encoders_build_the_parts_that_this_process_builds(stores: Stores, cluster: Cluster, tmp_path: Path) -> None:
    rows = [{"id": each.id, "text": each.text, "metadata": each.metadata} for each in POOL]
    (tmp_path / "pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    built = ["build", "--model", stores.model, "--pool", tmp_path / "pool.jsonl", "--store", tmp_path / "store"]
    by = ["--cluster", cluster.address, "--encoders", 1, "--shards", PARTS]
    command = [sys.executable, "-m", "polyrank.service.cli", *map(str, [*built, *by])]
    done = subprocess.run(command, env=cluster.environment, capture_output=True, text=True, timeout=WITHIN_SECONDS)
    assert done.returncode == 0, done.stderr
    here, there = stores.generations["c"], GenerationStore(tmp_path / "store").active()
    assert [here.of_part(at).files for at in range(PARTS)] == [there.of_part(at).files for at in range(PARTS)]


def test_a_cluster_that_refuses_the_token_is_refused(stores: Stores, cluster: Cluster, tmp_path: Path) -> None:
    options = ["--port", "0", "--store", stores.parts, "--cluster", cluster.address]
    command = [sys.executable, "-m", "polyrank.service.cli", "serve", *map(str, options)]
    environment = {**cluster.environment, "RAY_AUTH_TOKEN": "", "HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WITHIN_SECONDS)
    assert done.returncode == 1
    assert "the token is missing or wrong" in done.stderr
