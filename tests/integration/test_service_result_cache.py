"""Whole answers kept in memory and in a real Redis: the same answer again, and never one of something else."""

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redis_process import RedisProcess
from served import Served, serve
from service_fakes import WordCross, WordRanker, build_store, load, pool
from simulated_time import SimulatedTime
from waiting import until

from polyrank.service.app import create_app
from polyrank.service.auth import keys
from polyrank.service.caching import result_cache
from polyrank.service.settings import Settings

Start = Callable[..., Served]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers on one store that keep their answers."""
    build_store(tmp_path / "store", pool(40))
    with ExitStack() as stack:

        def started(**fields: Any) -> Served:
            settings = Settings(store=tmp_path / "store", **{"result_cache_ttl_s": 60, **fields})
            return stack.enter_context(serve(create_app(settings, load, load)))

        yield started


def ask(server: Served, headers: dict[str, str] | None = None, **fields: Any) -> tuple[str | None, dict[str, Any]]:
    """What X-Cache says, and the answer."""
    response = server.client.post("/rank", json={"context": "w1 w2 w3", **fields}, headers=headers)
    assert response.status_code == 200, response.text
    return response.headers.get("x-cache"), response.json()


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    own = dict.fromkeys(("timings_ms", "request_id"))
    return {**one, **own} == {**other, **own}


def counted(server: Served) -> dict[str, int]:
    results = ("hit", "miss", "corrupt", "error", "write_error")
    values = {each: server.metric("cache_requests_total", tier="result", result=each) for each in results}
    return {each: int(value) for each, value in values.items() if value}


def test_an_answer_is_given_again_under_another_request_id(start: Start) -> None:
    server = start(reranker="cross")
    server.client.headers["X-Request-ID"] = "one"
    cache, first = ask(server, rerank=True, top_k=5)
    assert cache == "miss"
    before = server.metric("stage_duration_seconds_count", stage="encode")
    server.client.headers["X-Request-ID"] = "other"
    cache, again = ask(server, rerank=True, top_k=5, timeout_ms=9000)
    assert cache == "hit"
    assert same(first, again)
    assert (first["request_id"], again["request_id"]) == ("one", "other")
    assert again["timings_ms"].keys() == first["timings_ms"].keys()
    assert [stage for stage, ms in again["timings_ms"].items() if ms] == ["total"]
    assert server.metric("stage_duration_seconds_count", stage="encode") == before, "nothing was ranked"
    assert counted(server) == {"miss": 1, "hit": 1}


def test_it_is_off_by_default(start: Start, redis_url: str) -> None:
    server = start(result_cache_ttl_s=0, redis_url=redis_url)
    assert [ask(server)[0], ask(server)[0]] == [None, None]
    assert counted(server) == {}


CHANGES: list[dict[str, Any]] = [
    {"context": "w1 w2 w4"}, {"context": ["w1 w2", "w3"]}, {"context": [{"role": "user", "text": "w1 w2 w3"}]},
    {"persona": ["w5"]}, {"top_k": 11}, {"retrieve_k": 100}, {"exact": True}, {"rerank": True},
    {"rerank": {"top_n": 3}}, {"filter": {"lang": "en"}}, {"filter": {"lang": ["en"]}}, {"filter": {"n": 1}},
    {"filter": {"even": True}}, {"exclude_ids": ["c1"]}, {"candidates": ["w1", "w2"]}, {"candidates": ["w2", "w1"]},
    {"candidates": [{"id": "c1"}]}, {"candidates": [{"id": "c1", "text": "w1"}]}, {"candidates": [{"text": "c1"}]},
]  # fmt: skip


def test_whatever_is_asked_otherwise_is_answered_for_itself(start: Start) -> None:
    server, without = start(reranker="cross"), start(reranker="cross", result_cache_ttl_s=0)
    for change in [{}, *CHANGES]:
        cache, answer = ask(server, **change)
        assert cache == "miss", change
        assert same(answer, ask(without, **change)[1])
    for change in [{}, *CHANGES]:
        cache, answer = ask(server, **change)
        assert cache == "hit", change
        assert same(answer, ask(without, **change)[1])


def test_numbers_without_bounds_are_refused_before_a_key_is_made_of_them(start: Start) -> None:
    server = start()
    assert server.rank(context="w1", filter={"n": {"lt": 2**80}}).status_code == 422
    assert ask(server, filter={"n": {"lt": 2**63 - 1}})[0] == "miss"


def test_the_order_of_keys_and_what_is_said_by_default_do_not_matter(start: Start) -> None:
    server = start()
    assert ask(server, filter={"lang": "en", "even": True})[0] == "miss"
    assert ask(server, filter={"even": True, "lang": "en"}, top_k=10, exact=False)[0] == "hit"


@pytest.mark.parametrize("header", ["no-cache", "no-store", "max-age=0, No-Store"])
def test_a_caller_may_refuse_it(start: Start, header: str) -> None:
    server = start()
    assert [ask(server, {"Cache-Control": header})[0] for _ in range(2)] == [None, None]
    assert ask(server)[0] == "miss", "nothing was kept"
    assert ask(server, {"Cache-Control": header})[0] is None
    assert ask(server, {"Cache-Control": "max-age=0"})[0] == "hit"


def test_an_update_and_a_switch_are_other_answers(start: Start, tmp_path: Path) -> None:
    server = start()
    ask(server)
    put = server.client.put("/index/candidates", json=[{"id": "new", "text": "w1 w2 w3"}])
    cache, answer = ask(server, top_k=100, min_revision=put.json()["revision"])
    assert cache == "miss"
    assert "new" in {each["id"] for each in answer["results"]}
    first = answer["generation"]
    second = build_store(tmp_path / "store", pool(40), ranker=WordRanker(seed=1), activate=False)
    for generation, expected in ((second, "miss"), (second, "hit"), (first, "hit")):
        assert server.client.post("/index/activate", json={"generation": generation}).status_code == 200
        cache, answer = ask(server, top_k=100)
        assert (cache, answer["generation"]) == (expected, generation)


def test_a_store_from_a_backup_does_not_get_the_answers_of_what_was_lost(start: Start, tmp_path, redis_process) -> None:
    def put(server: Served, text: str) -> dict[str, Any]:
        update = server.client.put("/index/candidates", json=[{"id": "new", "text": text}])
        assert update.json()["revision"] == 2
        cache, answer = ask(server, top_k=100)
        assert cache == "miss"
        return {each["id"]: each["text"] for each in answer["results"]}

    log = tmp_path / "store" / "log"
    one = start(redis_url=redis_process.url)
    one.client.put("/index/candidates", json=[{"id": "kept", "text": "w1"}])
    shutil.copytree(log, tmp_path / "backup")
    assert put(one, "w1 w2")["new"] == "w1 w2"
    shutil.rmtree(log)
    (tmp_path / "backup").rename(log)
    assert put(start(redis_url=redis_process.url), "w3")["new"] == "w3"
    wait_for_answers(redis_process, 2)
    cache, answer = ask(start(redis_url=redis_process.url), top_k=100)
    assert cache == "hit", "other servers of the same log share them"
    assert {each["id"]: each["text"] for each in answer["results"]}["new"] == "w3"


def test_what_is_expected_is_checked_before(start: Start) -> None:
    server = start()
    ask(server)
    asked = {"context": "w1 w2 w3", "expect": {"generation": "another"}}
    assert server.client.post("/rank", json=asked).status_code == 409
    asked = {"context": "w1 w2 w3", "min_revision": 99}
    assert server.client.post("/rank", json={**asked, "timeout_ms": 50}).status_code == 409


def test_callers_share_answers_where_they_may_do_the_same(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    scopes: dict[str, tuple[keys.Scope, ...]] = {"a": ("rank",), "b": ("rank",), "c": ("rank", "admin")}
    made = [keys.Key(name=name, sha256=keys.hashed(name.encode()), scopes=may) for name, may in scopes.items()]
    with keys.changing(file) as held:
        held[:] = made
    server = start(keys_file=file)
    told = [ask(server, {"Authorization": f"Bearer {name}"})[0] for name in ("a", "b", "c", "a", "c")]
    assert told == ["miss", "hit", "miss", "hit", "hit"]


@pytest.mark.usefixtures("usual_patience_with_redis")
def test_degraded_answers_are_not_kept(start: Start, tmp_path: Path, redis_process: RedisProcess) -> None:
    build_store(tmp_path / "store", pool(40), index="flat", redis_url=redis_process.url)
    server = start(redis_url=redis_process.url, vectors="redis", vector_cache_mb=0)
    redis_process.signal(signal.SIGSTOP)
    for _ in range(2):
        cache, answer = ask(server)
        assert (cache, answer["degraded"]) == ("miss", ["cache_unavailable"])
    redis_process.signal(signal.SIGCONT)


def test_answers_expire(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimulatedTime()
    monkeypatch.setattr(result_cache, "time", clock)
    server = start(result_cache_ttl_s=1)
    assert [ask(server)[0], ask(server)[0]] == ["miss", "hit"]
    clock.now += 0.99
    assert ask(server)[0] == "hit"
    clock.now += 0.02
    assert ask(server)[0] == "miss"


def test_servers_share_answers_through_redis(start: Start, redis_process: RedisProcess) -> None:
    one, other = start(redis_url=redis_process.url), start(redis_url=redis_process.url)
    _, first = ask(one)
    [key] = wait_for_answers(redis_process, 1)
    cache, again = ask(other)
    assert cache == "hit"
    assert same(first, again)
    redis_process.kill()
    assert ask(other)[0] == "hit", "by now it is in memory"
    assert counted(other) == {"hit": 2}
    assert len(key) == len("pe:r:") + 64


@pytest.mark.parametrize("attribute", ["backend", "rounding"])
@pytest.mark.parametrize("model", [WordRanker, WordCross])
def test_what_another_back_end_or_precision_answered_is_not_given(
    start: Start, redis_process: RedisProcess, monkeypatch: pytest.MonkeyPatch, model: type, attribute: str
) -> None:
    fields = {"redis_url": redis_process.url, "reranker": "cross"}
    ask(start(**fields))
    wait_for_answers(redis_process, 1)
    assert ask(start(**fields))[0] == "hit"
    monkeypatch.setattr(model, attribute, "other")
    assert ask(start(**fields))[0] == "miss"


def test_an_answer_from_redis_lives_no_longer_than_there(start: Start, redis_process: RedisProcess) -> None:
    ask(start(redis_url=redis_process.url))
    [key] = wait_for_answers(redis_process, 1)
    other = start(redis_url=redis_process.url)
    with redis_process.client() as client:
        client.pexpire(key, 3000)
        assert ask(other)[0] == "hit"
        until(lambda: not client.exists(key))
        time.sleep(0.05)  # by Redis' clock, which is not read for each call
    assert ask(other)[0] == "miss"


def test_what_redis_damaged_is_ranked_anew(start: Start, redis_process: RedisProcess) -> None:
    server = start(redis_url=redis_process.url, result_cache_mb=0)
    _, first = ask(server)
    [key] = wait_for_answers(redis_process, 1)
    ask(server, top_k=3)
    [another] = set(wait_for_answers(redis_process, 2)) - {key}
    with redis_process.client() as client:
        assert 50 < client.ttl(key) <= 60
        value, foreign = client.get(key), client.get(another)
        assert isinstance(value, bytes)
        assert json.loads(value[5:])["results"] == first["results"]
        flipped = value[:40] + bytes([value[40] ^ 1]) + value[41:]
        for damaged in (value[:-1], value + b" ", b"", b"x", b"\2" + value[1:], flipped, foreign):
            client.set(key, damaged)
            cache, answer = ask(server)
            assert cache == "miss"
            assert same(first, answer)
            until(lambda: client.get(key) == value)  # what was ranked anew is written again
        client.delete(key)
        client.lpush(key, "no string")
        assert ask(server)[0] == "miss"
    assert counted(server)["corrupt"] == 7
    assert counted(server)["error"] == 1


@pytest.mark.usefixtures("usual_patience_with_redis")
@pytest.mark.parametrize("fault", ["SIGSTOP", "SIGKILL"])
def test_a_redis_that_fails_costs_little_and_nothing_else(start: Start, redis_process, fault: str) -> None:
    server = start(redis_url=redis_process.url, result_cache_mb=0)
    _, first = ask(server)
    redis_process.kill() if fault == "SIGKILL" else redis_process.signal(signal.SIGSTOP)
    began = time.monotonic()
    for _ in range(20):
        cache, answer = ask(server)
        assert cache == "miss"
        assert same(first, answer)
        assert answer["degraded"] == [], "nothing is missing in the answer"
    assert time.monotonic() - began < 10  # redis-py by itself: 4 s each
    assert counted(server)["error"] <= 6


def wait_for_answers(redis: RedisProcess, count: int) -> list[bytes]:
    with redis.client() as client:
        return until(lambda: len(found := list(client.scan_iter("pe:r:*"))) >= count and found) or []
