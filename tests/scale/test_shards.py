"""A server whose pool is held by shards on real raylets: its answers are those of one machine, whatever is killed."""

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import numpy as np
import psutil
import pytest
from in_process import TestClient
from ray_cluster import WITHIN_SECONDS, Cluster
from service_fakes import numbered, pool
from tiny import write_base

from polyrank.index_builder.build.pipeline import BuildOptions, build
from polyrank.index_builder.scale.cutting import build_parts
from polyrank.index_builder.scale.sets import PartSet, SetStore
from polyrank.model.rankers.load import load_retriever
from polyrank.service.app import create_app
from polyrank.service.settings import Settings

if importlib.util.find_spec("ray") is None:
    pytest.skip("needs Ray: make test-scale", allow_module_level=True)

PARTS, CALLERS = 2, 4
POOL, OTHER = numbered(pool(300)), numbered(pool(300, "n", seed=5))
BODIES: list[dict[str, Any]] = [
    {"context": "w1 w2 ord-3"},
    {"context": ["w4", "w5 ord-9"], "top_k": 30, "filter": {"lang": "en", "n": {"gte": 2}}},
    {"context": "w1", "top_k": 25, "exclude_ids": ["c1", "c2", "n1"]},
    {"context": "w7", "top_k": 3, "group_by": "n", "limit_per_group": 2},
    {"context": "w2", "candidates": ["w2 w3", {"id": "c5"}, {"id": "n5"}, {"id": "own", "text": "w9"}]},
    {"context": "w2 w3", "top_k": 400, "exact": True},
]
VARIABLES = {"POLYRANK_DETERMINISTIC": "1", "POLYRANK_THREADS": "1", "POLYRANK_DRAIN_DELAY_S": "0"}


class Server:
    """`polyrank serve` in a process of its own."""

    def __init__(self, environment: dict[str, str], log: Path, *options: object) -> None:
        command = ["-m", "polyrank.service.cli", "serve", "--port", "0", "--backend", "torch", *options]
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *map(str, command)],
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**environment, **VARIABLES},
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("polyrank is ready on "), log.read_text()
        self.client = httpx2.Client(base_url=line.split()[-1], timeout=30)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        response = self.client.post("/rank", json=body)
        assert response.status_code == 200, response.text
        return dict(response.json())

    def metric(self, name: str) -> list[float]:
        lines = self.client.get("/metrics").text.splitlines()
        return [float(line.split()[-1]) for line in lines if line.startswith(f"polyrank_{name}")]

    def stop(self) -> None:
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(WITHIN_SECONDS) == 0
        assert self.process.stdout is not None
        assert self.process.stdout.read() == ""
        self.process.stdout.close()


class Stores(NamedTuple):
    """The model, the pools in one piece, and both sets of them in one store."""

    model: Path
    whole: dict[str, Path]
    parts: Path
    sets: dict[str, PartSet]


@contextmanager
def serving(environment: dict[str, str], log: Path, *options: object) -> Iterator[Server]:
    server = Server(environment, log, *options)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    root = tmp_path_factory.mktemp("shards")
    model = load_retriever(write_base(root / "base", seed=0))
    options = BuildOptions(index="exact")
    made, whole = {}, {}
    for name, candidates in (("n", OTHER), ("c", POOL)):
        whole[name] = root / name
        build(model, candidates, whole[name], options)
        made[name] = build_parts(model, candidates, root / "parts", PARTS, options).made
    return Stores(root / "base", whole, root / "parts", made)


@pytest.fixture(scope="module")
def expected(stores: Stores) -> dict[str, list[Any]]:
    """What a server of one machine answers, by the set's id."""
    answers = {}
    for name, made in stores.sets.items():
        settings = Settings(store=stores.whole[name], backend="torch", deterministic=True, threads=1)
        with TestClient(create_app(settings)) as client:
            answers[made.id] = [said(client.post("/rank", json=body).json()) for body in BODIES]
    return answers


@pytest.fixture(scope="module")
def server(stores: Stores, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    options = ["--store", stores.parts, "--cluster", cluster.address, "--shard-replicas", 2]
    with serving(cluster.environment, log, *options) as server:
        yield server
    until(lambda: not cluster.actors("ShardActor"), "the shards end with their server")


def said(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what belongs to one store or one request."""
    return {name: value for name, value in answer.items() if name not in ("generation", "timings_ms", "request_id")}


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@contextmanager
def asked_all_the_time(server: Server) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    """Several callers ask during the block; yields the answers, with the position of each one's body."""
    answers: list[tuple[int, dict[str, Any]]] = []
    ends = threading.Event()

    def call(seed: int) -> None:
        draw = np.random.default_rng(seed)
        while not ends.is_set():
            at = int(draw.integers(len(BODIES)))
            answers.append((at, server.answer(BODIES[at])))

    with ThreadPoolExecutor(CALLERS) as threads:
        calls = [threads.submit(call, seed) for seed in range(CALLERS)]
        try:
            yield answers
        finally:
            ends.set()
        for each in calls:
            each.result()


def test_answers_are_those_of_one_machine_to_the_bit(
    server: Server, stores: Stores, cluster: Cluster, expected: dict[str, list[Any]]
) -> None:
    answers = [server.answer(body) for body in BODIES]
    assert {answer["generation"] for answer in answers} == {stores.sets["c"].id}
    assert [said(answer) for answer in answers] == expected[stores.sets["c"].id]
    assert len(cluster.actors("ShardActor")) == 2 * PARTS
    listening = cluster.listening(psutil.Process(server.process.pid))
    assert set(listening) <= {"127.0.0.1", "::ffff:127.0.0.1"}


def test_a_killed_replica_costs_no_answer_and_comes_back(
    server: Server, stores: Stores, cluster: Cluster, expected: dict[str, list[Any]]
) -> None:
    with asked_all_the_time(server) as answers:
        for _ in range(2):
            until(lambda: server.metric("set_ready") == [2.0] * PARTS, "both replicas of every part are ready")
            victim = cluster.actors("ShardActor")[-1]
            victim.kill()
            until(lambda: min(server.metric("set_ready")) < 2, "it is missed")
        until(lambda: server.metric("set_ready") == [2.0] * PARTS, "it comes back, and prepares the set")
    assert len(answers) > 50
    for at, answer in answers:
        assert said(answer) == expected[stores.sets["c"].id][at]


def test_switches_under_load_cost_no_answer_and_mix_no_sets(
    server: Server, stores: Stores, expected: dict[str, list[Any]]
) -> None:
    order = [stores.sets[name].id for name in "ncncnc"]
    with asked_all_the_time(server) as answers:
        for set_id in order:
            assert server.client.post("/index/activate", json={"generation": set_id}).json()["active"]["id"] == set_id
            time.sleep(0.5)
    assert {answer["generation"] for _, answer in answers} == set(order)
    for at, answer in answers:
        assert said(answer) == expected[answer["generation"]][at]


def test_a_lost_part_is_missing_from_the_answers_which_say_so(
    stores: Stores, cluster: Cluster, expected: dict[str, list[Any]], tmp_path: Path
) -> None:
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
        shares = {round(part.count / len(POOL), 6) for part in stores.sets["c"].parts}
        for answer in partial:
            assert answer["degraded"] == ["shards_missing"]
            assert answer["exact"] is False
            assert round(answer["searched"], 6) in shares
            assert answer["results"]
        until(lambda: said(server.answer(BODIES[0])) == expected[stores.sets["c"].id][0], "answers are whole again")


def test_acknowledged_updates_outlive_killed_shards_and_a_restarted_server(
    stores: Stores, cluster: Cluster, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    shutil.copytree(stores.parts, root)
    options = ["--store", root, "--cluster", cluster.address, "--shard-replicas", 2]
    others = {each.pid for each in cluster.actors("ShardActor")}
    acknowledged: list[int] = []
    log = tmp_path / "log"

    def found(server: Server, number: int, revision: int) -> None:
        text = f"w1 ord-{number} w{number}"
        answer = server.answer({"context": text, "top_k": 3, "exact": True, "min_revision": revision})
        assert answer["revision"] >= revision
        assert answer["degraded"] == [], log.read_text()[-6000:]
        body = {"context": text, "candidates": [{"id": f"new {number}"}], "min_revision": revision}
        assert [each["text"] for each in server.answer(body)["results"]] == [text]

    def update(server: Server, number: int) -> None:
        row = {"id": f"new {number}", "text": f"w1 ord-{number} w{number}", "metadata": {"n": number}}
        told = server.client.put("/index/candidates", json={"candidates": [row]})
        assert told.status_code == 200, told.text
        acknowledged.append(told.json()["revision"])
        found(server, number, acknowledged[-1])

    with serving(cluster.environment, tmp_path / "log", *options) as server:
        with asked_all_the_time(server) as answers:
            for number in range(10):
                update(server, number)
            until(lambda: server.metric("set_ready") == [2.0] * PARTS, "both replicas of every part are ready")
            [victim, *_] = [each for each in cluster.actors("ShardActor") if each.pid not in others]
            victim.kill()
            for number in range(10, 20):
                update(server, number)
            until(lambda: server.metric("set_ready") == [2.0] * PARTS, "it comes back, and reads its updates")
            job = server.client.post("/index/compact").headers["location"]
            for number in range(20, 25):
                update(server, number)
            until(lambda: server.client.get(job).json()["state"] in ("succeeded", "failed"), "the compaction ends")
            assert server.client.get(job).json()["error"] is None
            for number in range(25):
                found(server, number, acknowledged[-1])
        assert answers
        assert acknowledged == list(range(1, 26))
    with serving(cluster.environment, tmp_path / "log again", *options) as server:
        for number in range(25):
            found(server, number, acknowledged[-1])
        assert server.client.get("/index").json()["active"]["count"] == len(POOL) + 25


def test_encoders_build_the_parts_that_this_process_builds(stores: Stores, cluster: Cluster, tmp_path: Path) -> None:
    rows = [{"id": each.id, "text": each.text, "metadata": each.metadata} for each in POOL]
    (tmp_path / "pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    built = ["build", "--model", stores.model, "--pool", tmp_path / "pool.jsonl", "--store", tmp_path / "store"]
    by = ["--cluster", cluster.address, "--encoders", 1, "--shards", PARTS]
    command = [sys.executable, "-m", "polyrank.service.cli", *map(str, [*built, *by])]
    done = subprocess.run(command, env=cluster.environment, capture_output=True, text=True, timeout=WITHIN_SECONDS)
    assert done.returncode == 0, done.stderr
    here, there = SetStore(stores.parts), SetStore(tmp_path / "store")
    for one, other in zip(stores.sets["c"].parts, there.active().parts, strict=True):
        assert here.manifest(one).files == there.manifest(other).files


def test_what_cannot_be_served_is_refused(stores: Stores, cluster: Cluster, tmp_path: Path) -> None:
    def refused(*options: object, **variables: str) -> str:
        command = [sys.executable, "-m", "polyrank.service.cli", "serve", "--port", "0", *map(str, options)]
        done = subprocess.run(
            command, env={**cluster.environment, **variables}, capture_output=True, text=True, timeout=WITHIN_SECONDS
        )
        assert done.returncode == 1
        return done.stderr

    assert "is cut into parts" in refused("--store", stores.parts)
    assert "is not cut into parts" in refused("--store", stores.whole["c"], "--cluster", cluster.address)
    told = refused("--store", stores.parts, "--cluster", cluster.address, RAY_AUTH_TOKEN="", HOME=str(tmp_path))
    assert "the token is missing or wrong" in told
