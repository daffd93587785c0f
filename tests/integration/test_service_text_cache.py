"""Vectors of sent texts in a real Redis: encoded once, the same scores whatever happens to it, no request delayed."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis_process import RedisProcess
from served import Served, serve
from service_fakes import DIM, WordRanker, build_store, count_nothing, load, pool
from waiting import until

from polyrank.index_builder.vectors import redis as stored
from polyrank.index_builder.vectors.redis import StoredRows
from polyrank.model.representations import LateRows, Representations
from polyrank.service.app import create_app
from polyrank.service.caching.redis_server import Budget, RedisServer
from polyrank.service.caching.vector_cache import RedisTier, RowsCache, TextCache
from polyrank.service.settings import Settings

TEXTS = [f"w{n} w{n + 1} {'w3 ' * (n * 4)}" for n in range(12)]  # the last ones are cut
FINGERPRINT = WordRanker().fingerprint
Start = Callable[..., Served]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers on one store, with nothing in their own memory."""
    build_store(tmp_path, pool(20))
    with ExitStack() as stack:

        def started(redis_url: str | None = None, **fields: Any) -> Served:
            settings = Settings(store=tmp_path, redis_url=redis_url, **{"vector_cache_mb": 0, **fields})
            return stack.enter_context(serve(create_app(settings, load)))

        yield started


def answer(server: Served, texts: list[str] = TEXTS) -> tuple[Any, Any, list[str]]:
    response = server.rank(context="w1 w2 w3", candidates=[*texts, {"id": "c1"}], top_k=40)
    assert response.status_code == 200, response.text
    body = response.json()
    return body["results"], body["truncated"], body["degraded"]


def counted(server: Served) -> dict[str, int]:
    results = ("hit", "miss", "corrupt", "error", "write_error")
    values = {each: server.metric("cache_requests_total", tier="text", result=each) for each in results}
    return {each: int(value) for each, value in values.items() if value}


def key(text: str, fingerprint: str = FINGERPRINT) -> str:
    return f"pe:t:{{{fingerprint}}}:torch:float32:float16:{sha256(text.encode()).hexdigest()}"


def warm(server: Served, redis: RedisProcess) -> tuple[Any, Any, list[str]]:
    """Ask once, and wait until Redis has every vector."""
    first = answer(server)
    with redis.client() as client:
        until(lambda: client.dbsize() == len(TEXTS))
    return first


def test_a_text_is_encoded_once_for_all_servers(start: Start, redis_process: RedisProcess) -> None:
    one, other = start(redis_process.url), start(redis_process.url)
    expected = answer(start())
    assert warm(one, redis_process) == expected
    assert answer(one) == answer(other) == expected
    assert expected[1]["candidates"] > 0, "what was cut is told on a hit as well"
    assert expected[2] == []
    assert counted(one) == {"miss": 12, "hit": 12}
    assert counted(other) == {"hit": 12}
    with redis_process.client() as client:
        assert sorted(client.keys()) == sorted(key(text).encode() for text in TEXTS)
        assert all(86_000 < client.ttl(each) <= 86_400 for each in client.keys())  # noqa: SIM118  # no mapping
        assert client.strlen(key(TEXTS[0])) == 8 + 2 * DIM


def test_what_is_cached_is_what_is_scored(start: Start, redis_process: RedisProcess) -> None:
    server = start(redis_process.url)
    first, _, _ = warm(server, redis_process)
    last = next(each["text"] for each in reversed(first) if each["text"] in TEXTS)
    name = key(last).encode()
    best = WordRanker().encode_contexts([WordRanker().tokenize_candidates(["w1 w2 w3"])[0][0]])[0][0] / 5
    value = stored.encode(name, best.astype(np.float16), stored.prefix(np.dtype("<f2"), DIM))
    with redis_process.client() as client:
        client.set(name, value)
    assert answer(server)[0][0]["text"] == last


@pytest.mark.parametrize("attribute", ["backend", "rounding"])
def test_what_another_back_end_or_precision_made_is_not_used(
    start: Start, redis_process: RedisProcess, monkeypatch: pytest.MonkeyPatch, attribute: str
) -> None:
    warm(start(redis_process.url), redis_process)
    monkeypatch.setattr(WordRanker, attribute, "other")
    other = start(redis_process.url)
    answer(other)
    assert counted(other) == {"miss": 12}


def test_only_what_is_unknown_is_encoded(start: Start, redis_process: RedisProcess) -> None:
    server, without = start(redis_process.url), start()
    warm(server, redis_process)
    more = ["w30", TEXTS[3], "w31 w3", TEXTS[3], "w30"]
    assert answer(server, more) == answer(without, more)
    assert counted(server) == {"miss": 15, "hit": 2}


def test_damaged_misplaced_and_foreign_values_are_not_used(start: Start, redis_process: RedisProcess) -> None:
    server = start(redis_process.url)
    expected = warm(server, redis_process)
    with redis_process.client() as client:
        value = client.get(key(TEXTS[0]))
        assert isinstance(value, bytes)
        client.set(key(TEXTS[0]), value[:-1] + bytes([value[-1] ^ 1]))
        client.set(key(TEXTS[1]), value)
        client.set(key(TEXTS[2]), value[:-1])
        client.set(key(TEXTS[3]), value + b"\0")
        wide = stored.encode(key(TEXTS[4]).encode(), np.ones(DIM, np.float32), stored.prefix(np.dtype("<f4"), DIM))
        client.set(key(TEXTS[4]), wide)
        # What another model made of the text lies under another key, and does not pass for this one's.
        foreign = key(TEXTS[5], WordRanker(seed=1).fingerprint)
        client.set(key(TEXTS[5]), stored.encode(foreign.encode(), np.ones(DIM, np.float16), value[:4]))
        client.delete(key(TEXTS[6]))
        client.delete(key(TEXTS[7]))
        client.lpush(key(TEXTS[7]), "no string")
    assert answer(server) == expected
    assert counted(server) == {"miss": 12 + 2, "corrupt": 6, "hit": 4}
    until(lambda: answer(server) == expected and counted(server)["hit"] >= 4 + 11)  # repaired, but for the list


def test_memory_answers_before_redis_and_without_it(start: Start, redis_process: RedisProcess) -> None:
    one, alone = start(redis_process.url, vector_cache_mb=1), start(vector_cache_mb=1)
    expected = answer(start())
    assert warm(one, redis_process) == answer(alone) == expected
    redis_process.kill()
    assert answer(one) == answer(alone) == expected, "nobody was asked who did not answer"
    assert counted(one) == {"miss": 12}
    for server in (one, alone):
        counts = [server.metric("cache_requests_total", tier="lru", result=each) for each in ("hit", "miss")]
        assert counts == [12, 12]


def test_memory_outlives_a_switch_to_another_generation_of_the_model(start: Start, tmp_path: Path) -> None:
    server = start(vector_cache_mb=1)
    results, _, _ = answer(server)
    before = server.client.get("/index").json()["active"]["id"]
    after = build_store(tmp_path, pool(20), activate=False)
    for generation, hits in ((after, 12), (before, 24)):
        assert server.client.post("/index/activate", json={"generation": generation}).status_code == 200
        assert answer(server)[0] == results
        assert server.metric("cache_requests_total", tier="lru", result="hit") == hits


def test_models_do_not_share_vectors(start: Start, tmp_path: Path, redis_process: RedisProcess) -> None:
    warm(start(redis_process.url), redis_process)
    build_store(tmp_path, pool(20), ranker=WordRanker(seed=1))
    server = start(redis_process.url)
    assert answer(server) == answer(start())
    assert counted(server) == {"miss": 12}


def test_a_lifetime_of_zero_is_no_cache(start: Start, redis_process: RedisProcess) -> None:
    server = start(redis_process.url, text_cache_ttl_s=0)
    redis_process.kill()
    assert answer(server) == answer(start())
    assert counted(server) == {}


def test_closing_writes_what_waits_and_lets_go_of_redis(redis_process: RedisProcess) -> None:
    server = RedisServer(redis_process.url)
    stored = StoredRows(server.client, server.seal, "pe:t:", LateRows(DIM, 1), "float16", lifetime_seconds=60)
    redis = RedisTier(server, "text", count_nothing, stored)
    cache = TextCache(RowsCache(FINGERPRINT, DIM, "float16", count_nothing, None, redis))
    assert not cache.read(["x"], Budget())[1].any()
    for n in range(4):
        cache.write([f"x{n}"], Representations(np.ones((1, DIM))))
    server.close()
    with redis_process.client() as client:
        until(lambda: client.dbsize() == 4 and len(client.client_list()) == 1)
