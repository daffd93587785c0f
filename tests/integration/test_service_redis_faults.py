"""Whatever Redis does: every /rank is answered in time, with the scores of a server without Redis; then all is well.

Vectors of candidates, vectors of sent texts and whole answers are all read from it.
"""

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import redis
from benchmarks.redis_proxy import LOADING, RedisProxy
from redis_process import RedisProcess
from served import Served, serve
from service_fakes import DIM, build_store, load, pool

from polyrank.index_builder.vectors.redis import StoredRows
from polyrank.model.representations import LateRows
from polyrank.service.app import create_app
from polyrank.service.caching import redis_server
from polyrank.service.caching.redis_server import FAILURES_IN_A_ROW, Budget, RedisServer, State
from polyrank.service.caching.vector_cache import RedisTier, RowsCache
from polyrank.service.observe.metrics import RESULTS
from polyrank.service.settings import Settings

# Of one request. As a rule it is the 50 ms of the budget and some more; redis-py by itself takes 4 s to a minute.
IN_TIME = 3.0
ROUNDS = 3
TEXTS = [f"w{n} w{n + 1}" for n in range(30)]
ASKED: list[dict[str, Any]] = [
    {}, {"filter": {"lang": "en"}}, {"candidates": [{"id": f"c{n}"} for n in range(40)]},
    {"candidates": TEXTS}, {"candidates": [*TEXTS, *({"id": f"c{n}"} for n in range(10))]},
]  # fmt: skip


def ask(server: Served, fields: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    response = server.client.post("/rank", json={"context": "w1 w2 w3", "top_k": 50, **fields})
    assert response.status_code == 200, response.text
    assert time.monotonic() - began < IN_TIME
    answer: dict[str, Any] = response.json()
    return answer


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What a server answers that has no Redis."""
    root = tmp_path_factory.mktemp("without")
    build_store(root, pool(60), index="flat")
    with serve(create_app(Settings(store=root), load)) as server:
        return [ask(server, fields)["results"] for fields in ASKED]


class World:
    """A Redis behind a proxy, and a server that uses it for everything."""

    def __init__(
        self, root: Path, process: RedisProcess, proxy: RedisProxy, stack: ExitStack, expected: list[Any]
    ) -> None:
        self.process, self.proxy, self.expected = process, proxy, expected
        self.old = build_store(root, pool(60, seed=1), index="flat", redis_url=process.url)
        self.generation = build_store(root, pool(60), index="flat", redis_url=process.url)
        fields: dict[str, Any] = {"vectors": "redis", "vector_cache_mb": 0, "result_cache_mb": 0}
        settings = Settings(store=root, redis_url=proxy.url, result_cache_ttl_s=60, **fields)
        self.server = stack.enter_context(serve(create_app(settings, load)))

    def ask_all(self) -> list[str]:
        """Ask everything, of which whole answers may be kept or not; returns what was done without."""
        degraded = []
        for cache_control in ("max-age=0", "no-cache"):
            self.server.client.headers["Cache-Control"] = cache_control
            for fields, expected in zip(ASKED, self.expected, strict=True):
                answer = ask(self.server, fields)
                assert answer["results"] == expected
                degraded += answer["degraded"]
        return degraded

    def wait_until_well(self) -> None:
        deadline = time.monotonic() + 60
        while self.ask_all() or self.state() != State.CLOSED:
            assert time.monotonic() < deadline, "Redis is back, and is not asked"

    def state(self) -> float:
        return self.server.metric("redis_breaker_state")

    def counted(self, result: str) -> float:
        tiers = [tier for tier in ("redis", "text", "result") if result in RESULTS[tier]]
        return sum(self.server.metric("cache_requests_total", tier=tier, result=result) for tier in tiers)

    def keys(self, client: redis.Redis, pattern: str = "pe:*") -> list[bytes]:
        return [key for key in client.scan_iter(pattern, count=1000) if not key.endswith((b":fence", b":meta"))]


@pytest.fixture
def hurried_world(usual_patience_with_redis: None, world: World) -> World:
    return world


@pytest.fixture
def world(tmp_path: Path, redis_process: RedisProcess, expected: list[Any], monkeypatch) -> Iterator[World]:
    monkeypatch.setattr(redis_server, "OPEN_SECONDS", 0.1)
    with ExitStack() as stack:
        proxy = RedisProxy(redis_process.url)
        stack.callback(proxy.close)
        made = World(tmp_path, redis_process, proxy, stack, expected)
        made.wait_until_well()
        yield made


# --- what can be wrong, until the end of the block


@contextmanager
def refused(world: World) -> Iterator[None]:
    world.proxy.refuse()
    yield
    world.proxy.listen()


@contextmanager
def stopped(world: World) -> Iterator[None]:
    world.process.signal(signal.SIGSTOP)
    yield
    world.process.signal(signal.SIGCONT)


@contextmanager
def slow(world: World) -> Iterator[None]:
    world.proxy.delay = 0.2
    yield
    world.proxy.delay = 0.0


@contextmanager
def saying(world: World, what: bytes, drops: bool = False) -> Iterator[None]:
    world.proxy.says = what
    if drops:
        world.proxy.drop()
    yield
    world.proxy.says = None


@contextmanager
def cut_off_in_the_middle(world: World) -> Iterator[None]:
    world.proxy.cuts = True
    yield
    world.proxy.cuts = False


@contextmanager
def configured(world: World, name: str, value: str | int, usual: str | int) -> Iterator[None]:
    with world.process.client() as client:
        client.config_set(name, value)
        world.proxy.drop()
        yield
        client.config_set(name, usual)


OUTAGES: dict[str, Callable[[World], Any]] = {
    "refused": refused,
    "stopped": stopped,
    "slow": slow,
    "loading": partial(saying, what=LOADING),
    "talking nonsense": partial(saying, what=b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "answering something else": partial(saying, what=b"*1\r\n$5\r\nhello\r\n"),
    "greeting in another way": partial(saying, what=b"*1\r\n:5\r\n", drops=True),
    "cut off in the middle": cut_off_in_the_middle,
    "out of connections": partial(configured, name="maxclients", value=1, usual=100),
    "asking for a password": partial(configured, name="requirepass", value="secret", usual=""),
}


@pytest.mark.parametrize("outage", OUTAGES)
def test_an_outage(hurried_world: World, outage: str) -> None:
    world = hurried_world
    before = world.counted("error")
    with OUTAGES[outage](world):
        assert {each for _ in range(ROUNDS) for each in world.ask_all()} == {"cache_unavailable"}
        assert world.state() != State.CLOSED, "Redis is left alone"
        assert world.server.client.get("/readyz").status_code == 200
        most = 2 * (FAILURES_IN_A_ROW + 1) * 60  # and some questions whether it is back
        assert world.counted("error") - before <= most, "a dead Redis is not asked by every request"
    world.wait_until_well()


@pytest.mark.quick
def test_killed(hurried_world: World) -> None:
    world = hurried_world
    world.process.kill()
    assert set(world.ask_all()) == {"cache_unavailable"}
    for _ in range(ROUNDS):
        world.ask_all()
    assert world.state() != State.CLOSED


# --- what can be wrong with what it holds


def assert_unharmed(world: World) -> None:
    for _ in range(ROUNDS):
        assert world.ask_all() == []
    assert world.state() == State.CLOSED


def test_flushed(world: World) -> None:
    with world.process.client() as client:
        client.flushall()
    assert_unharmed(world)


def test_evicting_while_it_is_read(world: World) -> None:
    with world.process.client() as client:
        client.config_set("maxmemory-policy", "allkeys-random")
        used = client.info("memory")["used_memory"]
        stop = threading.Event()

        def press() -> None:
            draw = random.Random(1)
            while not stop.is_set():
                client.config_set("maxmemory", used - draw.randrange(60_000))
                time.sleep(0.002)

        pressing = threading.Thread(target=press)
        pressing.start()
        try:
            assert_unharmed(world)
        finally:
            stop.set()
            pressing.join()
        assert client.info("stats")["evicted_keys"] > 0


def test_full(world: World) -> None:
    with world.process.client() as client:
        client.config_set("maxmemory", "1kb")
        client.delete(*world.keys(client, "pe:t:*"), *world.keys(client, "pe:r:*"))
        assert_unharmed(world)
        assert world.counted("write_error") > 0


def test_read_only(world: World) -> None:
    with world.process.client() as client:
        for key in [*world.keys(client, "pe:t:*"), *world.keys(client, "pe:r:*")]:
            client.delete(key)
        client.replicaof("127.0.0.1", 1)
        assert_unharmed(world)
        assert world.counted("write_error") > 0


# --- an answer belongs to its question


def test_an_answer_that_comes_too_late_is_nobody_elses(redis_process: RedisProcess) -> None:
    proxy = RedisProxy(redis_process.url)
    told: list[str] = []
    server = RedisServer(proxy.url)
    stored = StoredRows(server.client, server.seal, "pe:x:", LateRows(DIM, 1), "float16")
    redis = RedisTier(server, "t", lambda _, result, count: told.extend([result] * count), stored)
    tier = RowsCache("x", DIM, "float16", lambda *_: None, None, redis)
    vectors = np.arange(40 * DIM).reshape(40, DIM).astype(np.float16)
    stored.put_many([f"n{n}" for n in range(40)], vectors)
    draw = random.Random(1)
    found, tries, deadline = 0, 0, time.monotonic() + 60
    try:
        while tries < 150 or (not found and time.monotonic() < deadline):  # on a busy machine all may be late for long
            tries += 1
            proxy.delay = draw.choice([0.0, 0.0, 0.005, 0.02])
            rows = draw.sample(range(40), 3)
            cached = tier.read([f"n{row}" for row in rows], Budget(draw.choice([0.006, 0.01, 0.05])))
            np.testing.assert_array_equal(cached.rows, vectors[rows][cached.is_known])
            found += int(cached.is_known.sum())
            if not cached.available:
                time.sleep(0.002)
    finally:
        server.close()
        proxy.close()
    assert found > 0
    assert set(told) == {"hit", "error"}, "nothing was ever mixed up"


def test_callers_that_hang_up_leave_nothing_behind(world: World) -> None:
    world.proxy.delay = 0.01
    for n in range(30):
        with suppress(httpx2.TimeoutException), httpx2.Client(timeout=0.002 * (1 + n % 10)) as client:
            client.post(f"{world.server.url}/rank", json={"context": f"w{n}", "candidates": [{"id": f"c{n}"}]})
    world.proxy.delay = 0.0
    world.wait_until_well()
    assert world.counted("corrupt") == 0
