"""A server whose pool is held by shards on a Ray cluster, and what one machine would answer, for tests/scale."""

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
from in_process import TestClient
from ray_cluster import WITHIN_SECONDS
from service_fakes import numbered, pool
from tiny import write_base

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.model.rankers.load import load_retriever
from polyrank.service.app import create_app
from polyrank.service.settings import Settings

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
        assert self.process.stdout.read() == ""
        self.process.stdout.close()


@contextmanager
def serving(environment: dict[str, str], log: Path, *options: object) -> Iterator[Server]:
    server = Server(environment, log, *options)
    try:
        yield server
    finally:
        server.stop()


class Stores(NamedTuple):
    """The model, the pools in one piece, both cut in one store, and what one machine answers from each."""

    model: Path
    whole: dict[str, Path]
    parts: Path
    generations: dict[str, Manifest]
    expected: dict[str, list[Any]]

    @classmethod
    def made(cls, root: Path) -> "Stores":
        model = load_retriever(write_base(root / "base", seed=0))
        options = BuildOptions(index="exact")
        generations, whole, expected = {}, {}, {}
        for name, candidates in (("n", OTHER), ("c", POOL)):
            whole[name] = root / name
            build(model, candidates, whole[name], options)
            generations[name] = build(model, candidates, root / "parts", options, parts=PARTS).manifest
            settings = Settings(store=whole[name], backend="torch", deterministic=True, threads=1)
            with TestClient(create_app(settings)) as client:
                expected[generations[name].id] = [said(client.post("/rank", json=body).json()) for body in BODIES]
        return cls(root / "base", whole, root / "parts", generations, expected)


def said(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what belongs to one store or one request."""
    return {name: value for name, value in answer.items() if name not in ("generation", "timings_ms", "request_id")}


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


class Load:
    """Several callers, who ask all the time.

    Attributes:
        answers: what they were answered, with the position of each one's body.
        longest_s: how long the slowest answer took.
    """

    def __init__(self, server: Server) -> None:
        self._server, self._ends = server, threading.Event()
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.longest_s = 0.0

    def call(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        while not self._ends.is_set():
            at, began = int(draw.integers(len(BODIES))), time.monotonic()
            self.answers.append((at, self._server.answer(BODIES[at])))
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    def end(self) -> None:
        self._ends.set()

    def are_right(self, expected: dict[str, list[Any]]) -> bool:
        """Whether every answer is that of one machine with the generation that it names."""
        return all(said(answer) == expected[answer["generation"]][at] for at, answer in self.answers)


@contextmanager
def asked_all_the_time(server: Server) -> Iterator[Load]:
    """Callers ask during the block; at its end each call must have been answered."""
    load = Load(server)
    with ThreadPoolExecutor(CALLERS) as threads:
        calls = [threads.submit(load.call, seed) for seed in range(CALLERS)]
        try:
            yield load
        finally:
            load.end()
        for each in calls:
            each.result()
