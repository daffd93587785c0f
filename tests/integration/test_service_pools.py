"""Several pools on one server: each under its name, one model for all that have the same, and none in another's way."""

import asyncio
import gc
import json
import logging
import shutil
import socket
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from redis_process import RedisProcess
from served import Served, serve
from server_process import Load
from service_fakes import WordRanker, build_store, load, pool
from tiny import tiny_app
from waiting import until

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.checkpoint.files import CONFIG_FILE
from polyrank.service import resources
from polyrank.service.app import create_app
from polyrank.service.auth import keys
from polyrank.service.auth.keys import Key
from polyrank.service.http.plumbing.openapi import operations
from polyrank.service.observe.logs import POOL
from polyrank.service.settings import Settings

NAMES = ("support", "shop")
PAGES = [("/docs", "get"), ("/docs/swagger-ui.css", "get"), ("/openapi.json", "get"), ("/playground/app.js", "get")]

Loaded = list[weakref.ref[WordRanker]]


@pytest.fixture
def stores(tmp_path: Path) -> dict[str, Path]:
    """Two stores whose generations have the same model; ids begin with the name of the pool."""
    for name, count in zip(NAMES, (60, 40), strict=True):
        build_store(tmp_path / name, pool(count, f"{name}-"))
    return {name: tmp_path / name for name in NAMES}


@pytest.fixture
def start(stores: dict[str, Path]) -> Iterator[Callable[..., Served]]:
    """Starts a server over both stores, and over whatever else is given."""
    with ExitStack() as stack:

        def started(load: Any = load, store: Any = stores, **fields: Any) -> Served:
            return stack.enter_context(serve(create_app(Settings(store=store, **fields), load, load)))

        yield started


@pytest.fixture
def server(start: Callable[..., Served]) -> Served:
    return start()


def ids(server: Served, base: str, **fields: Any) -> list[str]:
    answer = server.client.post(f"{base}/rank", json={"context": "w1 w2 w3", "top_k": 50, **fields})
    assert answer.status_code == 200, answer.text
    return [result["id"] for result in answer.json()["results"]]


def test_each_pool_answers_with_its_own_candidates(server: Served) -> None:
    for name, count in zip(NAMES, (50, 40), strict=True):
        found = ids(server, f"/pools/{name}")
        assert len(found) == count
        assert all(each.startswith(f"{name}-") for each in found)
    listed = server.client.get("/pools").json()["pools"]
    assert [(each["name"], each["path"], each["candidates"], each["why"]) for each in listed] == [
        ("support", "/pools/support", 60, None),
        ("shop", "/pools/shop", 40, None),
    ]
    written = server.client.put("/pools/shop/index/candidates", json=[{"id": "new", "text": "w1 w2 w3"}]).json()
    assert "new" in ids(server, "/pools/shop", min_revision=written["revision"])
    assert "new" not in ids(server, "/pools/support")


def routes(server: Served) -> list[tuple[str, str]]:
    """Every path with its method, also those that the document leaves out."""
    described = [(path.replace("{", "").replace("}", ""), method) for path, method in operations(server.app)]
    return [*described, *PAGES]


def kind(answer: Any) -> str | None:
    """The type of a problem."""
    is_problem = answer.headers.get("content-type") == "application/problem+json"
    return str(answer.json()["type"]) if is_problem else None


def test_every_route_stands_under_the_name_of_each_pool(stores: dict[str, Path], tmp_path: Path) -> None:
    """It answers there as it does on a server of that pool alone."""
    shutil.copytree(stores["shop"], tmp_path / "alone")
    several, alone = (Settings(store=each) for each in (stores, tmp_path / "alone"))
    with serve(create_app(several, load)) as here, serve(create_app(alone, load)) as there:
        walked = routes(there)
        assert {("/rank", "POST"), ("/v1/embeddings", "POST"), ("/", "GET")} <= set(walked)
        for path, method in walked:
            answers = [
                each.client.request(method, f"{base}{path}") for each, base in ((here, "/pools/shop"), (there, ""))
            ]
            one, other = ((each.status_code, each.headers.get("content-type"), kind(each)) for each in answers)
            assert one == other, (method, path)
            assert kind(answers[0]) not in ("urn:polyrank:problem:not-found", "urn:polyrank:problem:pool-not-found")


@pytest.mark.quick
def test_a_pool_that_is_not_there_is_refused_in_every_dialect(server: Served) -> None:
    answer = server.client.post("/pools/shp/rank", json={"context": "w1"})
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert answer.json()["detail"] == "there is no pool 'shp'; GET /pools lists those there are"
    foreign = server.client.post("/pools/shp/v1/embeddings", json={"input": "w1"})
    assert foreign.status_code == 404
    assert foreign.json()["error"]["message"] == answer.json()["detail"]
    assert server.client.get("/pools/").status_code == server.client.get("/pools/shop/nothing").status_code == 404
    assert server.client.get("/pools/shop/nothing").json()["detail"].startswith("there is no /nothing; ")


def test_pages_of_other_sites_are_refused_in_the_dialect_of_the_route_under_a_pool_too(server: Served) -> None:
    for path in ("/rerank", "/v1/embeddings", "/rank"):
        refused = [
            server.client.post(f"{base}{path}", json={}, headers={"Origin": "http://evil.example", "X-Request-ID": "1"})
            for base in ("", "/pools/shop")
        ]
        assert refused[0].status_code == refused[1].status_code == 403
        assert refused[0].content == refused[1].content


def test_without_a_name_only_what_needs_no_pool_is_answered_and_nothing_is_written(
    start: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    server = start()
    for method, path, body in (
        ("POST", "/rank", {"context": "w1"}),
        ("POST", "/v1/embeddings", {"input": "w1"}),
        ("GET", "/index", None),
        ("GET", "/index/jobs", None),
        ("PUT", "/index/candidates", [{"id": "a", "text": "w1"}]),
        ("POST", "/index", {"candidates": [{"text": "w1"}], "model": "lexical"}),
        ("POST", "/index/rollback", None),
    ):
        answer = server.client.request(method, path, json=body)
        assert answer.status_code == 404, path
        assert "there is no pool without a name; ask under /pools/{name}" in answer.text
    for path in ("/livez", "/readyz", "/healthz", "/metrics", "/info", "/docs", "/openapi.json", "/playground"):
        assert server.client.get(path).status_code == 200, path
    assert server.client.get("/").headers["location"] == "/pools/support/playground"
    assert not list(temporary.iterdir()), "a worker that is killed would leave it"


def test_a_pool_without_a_name_stays_at_the_root_beside_others(start: Callable[..., Served], tmp_path: Path) -> None:
    build_store(tmp_path / "own", pool(30, "own-"))
    server = start(store={"": tmp_path / "own", "shop": tmp_path / "shop"})
    assert all(each.startswith("own-") for each in ids(server, ""))
    assert all(each.startswith("shop-") for each in ids(server, "/pools/shop"))
    assert [each["path"] for each in server.client.get("/pools").json()["pools"]] == ["", "/pools/shop"]
    assert server.client.get("/").headers["location"] == "/playground"


def test_links_lead_back_into_the_pool(server: Served) -> None:
    get = server.client.get
    assert get("/pools/shop/").headers["location"] == get("/pools/shop").headers["location"] == "/pools/shop/playground"
    assert 'src="playground/app.js"' in get("/pools/shop/playground").text
    assert 'src="docs/swagger-ui-bundle.js"' in get("/pools/shop/docs").text
    assert get("/pools/shop/openapi.json").json()["servers"] == [{"url": "/pools/shop"}]
    assert "servers" not in get("/openapi.json").json()


def test_a_job_is_the_pools_own_and_one_builds_at_a_time(start: Callable[..., Served], stores: dict[str, Path]) -> None:
    server = start(load=lambda path: polyrank.load(path) if (Path(path) / CONFIG_FILE).exists() else load(path))
    body = {"candidates": [{"id": f"shop-{n}", "text": f"w{n}"} for n in range(9)], "model": "lexical"}
    started = server.client.post("/pools/shop/index", json=body)
    assert started.status_code == 202, started.text
    where = started.headers["location"]
    assert where == started.json()["links"]["self"] == f"/pools/shop/index/jobs/{started.json()['id']}"
    for base in ("/pools/shop", "/pools/support"):
        refused = server.client.post(f"{base}/index", json=body)
        assert (refused.status_code, refused.json()["job"]) == (409, where)
        assert refused.headers["link"] == f'<{where}>; rel="related"'
    assert "of the pool shop has not finished" in refused.json()["detail"]
    until(lambda: server.client.get(where).json()["state"] not in ("queued", "running"))
    assert server.client.get(where).json()["state"] == "succeeded"
    assert server.client.get(where.replace("shop", "support")).status_code == 404
    assert len(ids(server, "/pools/shop")) == 9
    assert server.client.get("/pools/support/index/jobs").json() == {"jobs": []}
    assert GenerationStore(stores["support"]).ids() == [server.client.get("/pools/support/readyz").json()["generation"]]


# Keys and metrics.


def with_keys(tmp_path: Path) -> Path:
    held = [
        Key(name="boss", sha256=keys.hashed(b"boss"), scopes=("admin",)),
        Key(name="shopkeeper", sha256=keys.hashed(b"shopkeeper"), scopes=("admin",), pools=("shop",)),
        Key(name="customer", sha256=keys.hashed(b"customer"), scopes=("rank",), pools=("shop",)),
    ]
    with keys.changing(tmp_path / "keys.json") as rows:
        rows[:] = held
    return tmp_path / "keys.json"


@pytest.mark.quick
def test_a_key_is_for_its_pools_alone(start: Callable[..., Served], stores: dict[str, Path], tmp_path: Path) -> None:
    build_store(tmp_path / "own", pool(30, "own-"))
    server = start(store={"": tmp_path / "own", **stores}, keys_file=with_keys(tmp_path), metrics_access="admin")

    def status(key: str, method: str, path: str, body: Any = None) -> int:
        return int(server.client.request(method, path, json=body, headers={"X-API-Key": key}).status_code)

    ask = ("POST", "/rank", {"context": "w1"})
    for base, wanted in (("/pools/shop", 200), ("/pools/support", 403), ("", 403)):
        assert status("customer", "POST", f"{base}/rank", ask[2]) == wanted, base
        assert status("shopkeeper", "GET", f"{base}/index") == wanted, base
        assert status("shopkeeper", "GET", f"{base}/info") == wanted, base
        assert status("boss", "GET", f"{base}/index") == 200
        assert status("boss", "GET", f"{base}/metrics") == 200
        assert status("shopkeeper", "GET", f"{base}/metrics") == 403, "they tell of all pools"
    assert status("customer", "GET", "/pools/shop/index") == 403
    assert status("nobody", "GET", "/pools/shop/info") == 401
    assert status("nobody", "GET", "/pools/shop/playground") == 200
    refused = server.client.get("/pools/support/info", headers={"X-API-Key": "customer"}).json()
    assert refused["detail"] == "the API key is for some pools alone; ask under /pools/shop"
    listed = server.client.get("/pools", headers={"X-API-Key": "customer"}).json()["pools"]
    assert [each["name"] for each in listed] == ["shop"]


def test_what_belongs_to_a_pool_is_counted_for_it(server: Served) -> None:
    ids(server, "/pools/shop")
    server.client.post("/pools/support/rank", json={"context": ""})
    server.client.post("/pools/nowhere/rank", json={"context": "w1"})
    server.client.put("/pools/shop/index/candidates", json=[{"id": "new", "text": "w1"}])
    server.client.get("/livez")  # answered after what came before it was counted
    told = {"route": "/rank", "method": "POST"}
    assert server.metric("http_requests_total", pool="shop", code="200", **told) == 1
    assert server.metric("http_requests_total", pool="support", code="422", **told) == 1
    assert server.metric("http_requests_total", pool="", route="unmatched", method="POST", code="404") == 1
    assert [server.metric("updated_candidates_total", pool=name, kind="upsert") for name in NAMES] == [0, 1]
    assert [server.metric("index_candidates", pool=name) for name in NAMES] == [60, 41]
    assert [server.metric("index_revision", pool=name) for name in NAMES] == [0, 1]
    lines = server.client.get("/metrics").text.splitlines()
    assert sum(line.startswith("polyrank_index_info{") for line in lines) == 2
    assert sum(line.startswith("polyrank_model_info{") for line in lines) == 2


class Heard(logging.Handler):
    """What the log says of requests: the pool and the route."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((POOL.get(), record.fields["route"]))


def test_the_log_names_the_pool_of_each_request_of_a_connection(server: Served, caplog) -> None:
    heard, log = Heard(), logging.getLogger("polyrank.request")
    caplog.set_level(logging.INFO, log.name)
    log.addHandler(heard)
    try:
        paths = ("/pools/shop/info", "/info", "/pools/a%0Ab/info", "/pools/support/info", "/pools")
        for path in paths:
            server.client.get(path)
        until(lambda: len(heard.lines) == 5)
        with socket.create_connection(("127.0.0.1", server.port)) as connection:  # all at once, before any answer
            connection.sendall(b"".join(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in paths))
            until(lambda: len(heard.lines) == 10)
    finally:
        log.removeHandler(heard)
    told = [("shop", "/info"), ("", "/info"), ("", "unmatched"), ("support", "/info"), ("", "/pools")]
    assert heard.lines == told * 2


# One model, many pools.


@pytest.fixture
def loads(start: Callable[..., Served]) -> tuple[Served, Loaded]:
    """A server, and all models that it has loaded."""
    loaded: Loaded = []

    def counted(path: str) -> Any:
        ranker = load(path)
        loaded.append(weakref.ref(ranker))
        return ranker

    return start(load=counted), loaded


@pytest.mark.quick
def test_pools_of_one_model_share_it_until_the_last_leaves_it(
    loads: tuple[Served, Loaded], stores: dict[str, Path]
) -> None:
    server, loaded = loads
    pools = server.app.state.pools
    assert len(loaded) == 1
    assert pools["support"].live.require().ranker is pools["shop"].live.require().ranker is loaded[0]()
    assert pools["support"].runtime is pools["shop"].runtime
    for n, name in enumerate(NAMES):
        build_store(stores[name], pool(30, f"{name}-new-"), ranker=WordRanker(1), activate=False)
        newest = GenerationStore(stores[name]).ids()[-1]
        answer = server.client.post(f"/pools/{name}/index/activate", json={"generation": newest})
        assert answer.status_code == 200, answer.text
        assert len(loaded) == 2, "both have the same one again"
        gc.collect()
        assert (loaded[0]() is None) == (n == 1)
    assert pools["support"].live.require().ranker is pools["shop"].live.require().ranker is loaded[1]()


def test_answers_are_kept_for_their_own_pool(start: Callable[..., Served]) -> None:
    server = start(result_cache_ttl_s=60)
    for cache in ("miss", "hit"):
        for name in NAMES:
            answer = server.client.post(f"/pools/{name}/rank", json={"context": "w1"})
            assert answer.headers["x-cache"] == cache
            assert all(result["id"].startswith(f"{name}-") for result in answer.json()["results"])


# Faults.


def test_a_pool_that_cannot_be_served_leaves_the_others_alone(
    start: Callable[..., Served], stores: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "LOOK_SECONDS", 0.02)
    broken = GenerationStore(stores["shop"]).current()
    assert broken is not None
    path = stores["shop"] / "generations" / broken / "embeddings.bin"
    path.write_bytes(path.read_bytes()[:-1])
    server = start()
    assert len(ids(server, "/pools/support")) == 50
    assert server.client.post("/pools/shop/rank", json={"context": "w1"}).status_code == 503
    statuses = [server.client.get(f"{base}/readyz").status_code for base in ("", "/pools/support", "/pools/shop")]
    assert statuses == [503, 200, 503]
    detail = server.client.get("/readyz").json()["detail"]
    assert detail.startswith(f"pool shop: no generation can be served: {broken}: ")
    assert "support" not in detail
    [good, bad] = server.client.get("/pools").json()["pools"]
    assert (good["why"], bad["why"].startswith("no generation can be served")) == (None, True)
    assert server.client.get("/livez").status_code == 200
    build_store(stores["shop"], pool(20, "shop-"))  # by another process, as far as the server knows
    until(lambda: server.client.get("/readyz").status_code == 200)
    assert len(ids(server, "/pools/shop")) == 20


@pytest.mark.parametrize("ways", [pytest.param("calls", marks=pytest.mark.quick), "another process"])
def test_a_switch_of_one_under_load_fails_no_request_of_any(
    start: Callable[..., Served], stores: dict[str, Path], ways: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "LOOK_SECONDS", 0.02)
    one = GenerationStore(stores["support"]).current()
    other = build_store(stores["support"], pool(60, "support-"), ranker=WordRanker(1), activate=False)
    only = GenerationStore(stores["shop"]).current()
    server, seen = start(), set()

    def of_support(answer: dict[str, Any]) -> str | None:
        seen.add(answer["generation"])
        return None if all(result["id"].startswith("support-") for result in answer["results"]) else str(answer)

    def of_shop(answer: dict[str, Any]) -> str | None:
        return None if answer["generation"] == only else str(answer)

    with (
        Load(server.port, clients=2, base="/pools/support", check=of_support) as support,
        Load(server.port, clients=2, base="/pools/shop", check=of_shop) as shop,
    ):
        for n in range(6):
            target = (other, one)[n % 2]
            seen.clear()
            if ways == "calls":
                assert server.client.post("/pools/support/index/activate", json={"generation": target}).is_success
            else:
                GenerationStore(stores["support"]).activate(str(target))
            until(lambda target=target: target in seen)
            shop.wait_for(5)
    assert support.lost == shop.lost == []
    assert set(support.answered) == set(shop.answered) == {200}
    assert server.metric("index_switches_total", pool="support", result="ok") == 6
    assert server.metric("index_switches_total", pool="shop", result="ok") == 0


# Clients.


def test_clients_take_the_path_of_a_pool_as_the_server(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"{server.url}/pools/shop"

    async def ranked() -> list[str | None]:
        async with polyrank.AsyncClient(f"{url}/") as client:
            return [reply.id for reply in (await client.rank("w1 w2", top_k=3)).results]

    with polyrank.Client(url) as client:
        assert [(each.path, each.candidates) for each in client.pools()] == [
            ("/pools/support", 60),
            ("/pools/shop", 40),
        ]
        mine = [reply.id for reply in client.rank("w1 w2", top_k=3).results]
        assert client.upsert([{"id": "new", "text": "w5"}]).upserted == 1
        assert len(list(client.candidates(page=7))) == 41
        assert client.candidate("new").text == "w5"
    assert mine == asyncio.run(ranked())
    told = call(capsys, "rank", "w1 w2", "--top-k", "3", "--json", "--url", url).result
    assert [reply["id"] for reply in told["results"]] == mine
    with polyrank.Client(server.url) as client, pytest.raises(polyrank.NotThere, match="ask under /pools/"):
        client.rank("w1")


# Processes.


@pytest.fixture
def real_stores(checkpoints: Path, tmp_path: Path) -> dict[str, Path]:
    ranker = polyrank.load(checkpoints / "poly")
    for name in NAMES:
        build(ranker, pool(40, f"{name}-"), tmp_path / name)
    return {name: tmp_path / name for name in NAMES}


def test_pools_of_one_model_in_two_types_keep_texts_apart(
    start: Callable[..., Served], stores: dict[str, Path], redis_process: RedisProcess
) -> None:
    build_store(stores["shop"], pool(40, "shop-"), dtype="float32")
    server, texts = start(redis_url=redis_process.url), [{"text": f"w{n} w9 w9 w9"} for n in range(5)]
    for n, name in enumerate(NAMES, 1):
        answer = server.client.post(f"/pools/{name}/rank", json={"context": "w1", "candidates": texts})
        assert answer.status_code == 200, answer.text
        until(lambda n=n: len(redis_process.client().keys("pe:t:*")) == n * len(texts))
    assert server.metric("cache_requests_total", tier="text", result="corrupt") == 0


def test_pools_share_a_redis(real_stores: dict[str, Path], checkpoints: Path, redis_process: RedisProcess) -> None:
    ranker = polyrank.load(checkpoints / "poly")
    for name, root in real_stores.items():
        options = BuildOptions(redis_url=redis_process.url)
        build(ranker, pool(40, f"{name}-", seed=len(name)), root, options)
    from_disk = {}
    for fields in ({}, {"redis_url": redis_process.url, "vectors": "redis", "result_cache_ttl_s": 60}):
        with serve(tiny_app(store=real_stores, **fields)) as server:
            for name in (*NAMES, *NAMES):
                found = server.client.post(f"/pools/{name}/rank", json={"context": "w1 w2", "top_k": 20}).json()
                ranked = [(each["id"], round(each["score"], 4)) for each in found["results"]]
                assert ranked == from_disk.setdefault(name, ranked)
                assert found["degraded"] == []
    assert json.dumps(from_disk["shop"]) != json.dumps(from_disk["support"])
