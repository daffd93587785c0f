"""Vectors from a real Redis: the same scores whatever happens to it, and every loss counted."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis_process import RedisProcess, vector_keys
from served import Served, serve
from service_fakes import build_store, pool, words_app

from polyrank.index_builder.building.compaction import compact
from polyrank.index_builder.errors import MatrixMissing

IDS = [f"c{n}" for n in range(40)]
Start = Callable[[str | None], Served]


@pytest.fixture(params=[1, 3], ids=["whole", "in parts"])
def parts(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts servers on one store: with a URL from that Redis, without from the store's own matrix."""
    with ExitStack() as stack:

        def started(redis_url: str | None) -> Served:
            source = {} if redis_url is None else {"redis_url": redis_url, "vectors": "redis", "vector_cache_mb": 0}
            return stack.enter_context(serve(words_app(tmp_path, **source)))

        yield started


def answers(server: Served) -> list[tuple[list[tuple[str, float]], bool]]:
    """Scores over ids and over retrieval."""
    made = []
    for fields in ({"candidates": [{"id": each} for each in IDS]}, {}, {"exact": True}, {"filter": {"lang": "en"}}):
        response = server.rank(context="w1 w2 w3", top_k=40, **fields)
        assert response.status_code == 200, response.text
        body = response.json()
        made.append(([(result["id"], result["score"]) for result in body["results"]], body["degraded"]))
    return made


def scores(server: Served) -> list[list[tuple[str, float]]]:
    return [each for each, _ in answers(server)]


@pytest.mark.quick
@pytest.mark.parametrize("index", ["exact", "flat"])
def test_redis_and_the_matrix_score_identically(start: Start, tmp_path, parts: int, redis_url, index: str) -> None:
    build_store(tmp_path, pool(60), index=index, redis_url=redis_url, parts=parts)
    with_redis = start(redis_url)
    assert scores(with_redis) == scores(start(None))
    assert with_redis.metric("cache_requests_total", tier="redis", result="hit") > 0
    assert with_redis.metric("cache_requests_total", tier="redis", result="miss") == 0
    assert with_redis.metric("cache_requests_total", tier="matrix", result="hit") == 0
    assert all(degraded == [] for _, degraded in answers(with_redis))


def test_lost_and_damaged_values_are_replaced_and_counted(start: Start, tmp_path, parts: int, redis_tcp_url) -> None:
    generation = build_store(tmp_path, pool(60), index="flat", redis_url=redis_tcp_url, parts=parts)
    import redis

    with redis.Redis.from_url(redis_tcp_url) as client:
        key = f"pe:{{{generation}}}:c:c3"
        value = client.get(key)
        assert isinstance(value, bytes)
        client.set(key, value[:-1] + bytes([value[-1] ^ 1]))
        client.set(f"pe:{{{generation}}}:c:c4", value)
        client.set(f"pe:{{{generation}}}:c:c5", b"short")
        client.delete(f"pe:{{{generation}}}:c:c6", f"pe:{{{generation}}}:c:c7")
    with_redis = start(redis_tcp_url)
    candidates = [{"id": each} for each in IDS]
    expected = start(None).rank(context="w1", candidates=candidates, top_k=40).json()["results"]
    body = with_redis.rank(context="w1", candidates=candidates, top_k=40).json()
    assert (body["results"], body["degraded"]) == (expected, [])
    counted = {
        result: with_redis.metric("cache_requests_total", tier="redis", result=result)
        for result in ("hit", "miss", "corrupt", "error")
    }
    assert counted == {"hit": 35, "miss": 2, "corrupt": 3, "error": 0}
    assert with_redis.metric("cache_requests_total", tier="matrix", result="hit") == 5


def test_a_redis_that_is_down_at_the_start(start: Start, tmp_path: Path, parts: int, redis_process, caplog) -> None:
    build_store(tmp_path, pool(60), redis_url=redis_process.url, parts=parts)
    redis_process.kill()
    with_redis = start(redis_process.url)
    assert "redis is unavailable" in caplog.text
    assert scores(with_redis) == scores(start(None))


def test_a_scanning_replica_goes_on_scanning(start: Start, tmp_path: Path, parts: int, redis_process) -> None:
    build_store(tmp_path, pool(60), redis_url=redis_process.url, parts=parts)
    with redis_process.client() as client:
        client.delete(*vector_keys(client)[::2])
    with_redis = start(redis_process.url)
    assert scores(with_redis) == scores(start(None)), "what is lost comes from the matrix"
    redis_process.kill()
    body = with_redis.rank(context="w1").json()
    assert body["results"] == start(None).rank(context="w1").json()["results"]
    assert body["degraded"] == ["cache_unavailable"], "the best are scored again by their vectors as they are now"


def without_matrix(root: Path) -> None:
    for path in root.glob("generations/**/embeddings.bin"):
        path.unlink()


def both_starts(start: Start, root: Path, redis_url: str) -> tuple[Served, list[list[tuple[str, float]]]]:
    """A replica without any matrix, and the scores of a server that had them."""
    expected = scores(start(None))
    without_matrix(root)
    return start(redis_url), expected


@pytest.mark.parametrize("index", ["exact", "flat"])
def test_a_replica_without_the_matrix_scores_identically(
    start: Start, tmp_path: Path, parts: int, redis_process: RedisProcess, index: str
) -> None:
    build_store(tmp_path, pool(60), index=index, redis_url=redis_process.url, parts=parts)
    replica, expected = both_starts(start, tmp_path, redis_process.url)
    assert answers(replica) == [(each, []) for each in expected]
    redis_process.kill()
    assert answers(replica) == [(each, ["cache_unavailable"]) for each in expected]


@pytest.mark.parametrize("fault", ["half is lost", "flushed", "killed"])
def test_a_replica_encodes_what_redis_does_not_give(
    start: Start, tmp_path: Path, parts: int, redis_process: RedisProcess, fault: str
) -> None:
    build_store(tmp_path, pool(60), redis_url=redis_process.url, parts=parts)
    if fault == "killed":
        redis_process.kill()
    else:
        with redis_process.client() as client:
            lost = vector_keys(client)[:: 1 if fault == "flushed" else 2]
            client.delete(*lost)
    replica, expected = both_starts(start, tmp_path, redis_process.url)
    assert scores(replica) == expected


def test_a_replica_without_the_matrix_is_updated_and_switched_but_not_compacted(
    start: Start, tmp_path: Path, parts: int, redis_process: RedisProcess
) -> None:
    first = build_store(tmp_path, pool(60), redis_url=redis_process.url, parts=parts)
    second = build_store(tmp_path, pool(50, seed=1), redis_url=redis_process.url, parts=parts)
    replica, expected = both_starts(start, tmp_path, redis_process.url)
    assert replica.client.post("/index/rollback").json()["active"]["id"] == first
    assert replica.client.post("/index/activate", json={"generation": second}).json()["active"]["id"] == second
    same = {"id": "c1", "text": pool(50, seed=1)[1].text}
    put = replica.client.put("/index/candidates", json=[same, {"id": "new", "text": "w1 w2 w3"}])
    assert put.status_code == 200, put.text
    assert "new" in {each["id"] for each in replica.rank(context="w1", top_k=100).json()["results"]}
    both = replica.rank(context="w1", candidates=[{"id": "new"}, "w1 w2 w3"])
    assert both.status_code == 200, both.text
    assert len({each["score"] for each in both.json()["results"]}) == 1, "of the text that was added"
    assert replica.client.post("/index/candidates/delete", json={"ids": ["new"]}).status_code == 200
    assert sorted(scores(replica)[0]) == sorted(expected[0])
    refused = replica.client.post("/index/compact")
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:polyrank:problem:matrix-missing")
    with pytest.raises(MatrixMissing, match="does not hold the matrix"):
        compact(tmp_path)
    assert replica.client.get("/index/jobs").json()["jobs"] == []


def test_without_redis_for_vectors_a_generation_without_matrix_is_refused(
    start: Start, tmp_path: Path, parts: int, redis_process: RedisProcess
) -> None:
    build_store(tmp_path, pool(60), redis_url=redis_process.url, parts=parts)
    without_matrix(tmp_path)
    answer = start(None).client.get("/readyz")
    assert answer.status_code == 503
    assert "embeddings.bin is missing; a replica without it can be served with --vectors redis" in answer.text


def test_a_replica_still_refuses_damage(start: Start, tmp_path: Path, parts: int, redis_process: RedisProcess) -> None:
    generation = build_store(tmp_path, pool(60), redis_url=redis_process.url, parts=parts)
    without_matrix(tmp_path)
    for path in (tmp_path / "generations" / generation).rglob("ids.index"):
        path.unlink()
    assert "embeddings.bin is missing" in start(redis_process.url).client.get("/readyz").text
