"""A server over a pool that is cut into parts, with shards in the test's process: routes, and what is refused."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from fakes import EVIDENCE
from in_process import TestClient
from service_fakes import DIM, WordRanker, build_store, load, numbered, pool
from shards_in_process import LocalShards
from tiny import write_base
from waiting import until

from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.generation.manifest import Manifest
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.rankers.load import load_retriever
from polyrank.model.representations import LateRows
from polyrank.service import resources
from polyrank.service import settings as settings_module
from polyrank.service.app import create_app
from polyrank.service.settings import Settings

RANKER = WordRanker(evidence=EVIDENCE, late=LateRows(DIM, None))
POOL = numbered(pool(200))
BODIES: list[dict[str, Any]] = [
    {"context": "w1 w2 ord-3"},
    {"context": ["w4", "w5 ord-9"], "top_k": 30, "filter": {"lang": "en", "n": {"gte": 2}}},
    {"context": "w1", "top_k": 5, "exclude_ids": ["c1", "c2"], "rerank": True},
    {"context": "w7", "top_k": 3, "group_by": "n", "limit_per_group": 2},
    {"context": "w2", "candidates": ["w2 w3", {"id": "c5"}, {"id": "own", "text": "w9"}, {"id": "none"}]},
    {"context": "w2 w3", "top_k": 7, "exact": True, "retrieve_k": 20},
    {"context": "w2 w3", "filter": {"lng": "en"}},
    {"context": "w2 w3", "filter": {"n": {"gte": "3"}, "$not": {"lng": "en"}}},
    {"context": "w2 w3", "filter": {"lang": "en", "n": 99}},
    {"context": "w2 w3", "filter": {"lang": "en"}, "exclude_ids": [each.id for each in POOL]},
]
OF_THE_STORE = ("generation", "timings_ms", "request_id", "revision")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    root = tmp_path_factory.mktemp("parts")
    return root, build(RANKER, POOL, root, BuildOptions(index="exact"), parts=4).manifest


@pytest.fixture
def shards(made: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch) -> LocalShards:
    shards = LocalShards(made[0])
    monkeypatch.setattr(settings_module, "why_unusable", lambda _: None)
    monkeypatch.setattr(resources, "connected", nullcontext)
    monkeypatch.setattr(resources, "RayShards", lambda *_: shards)
    return shards


@pytest.fixture
def client(made: tuple[Path, Manifest], shards: LocalShards) -> Iterator[TestClient]:
    settings = Settings(store=made[0], cluster="auto", reranker="cross", shard_replicas=2, result_cache_ttl_s=60)
    with TestClient(create_app(settings, load, load)) as client:
        yield client
    assert shards.replicas == {}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    root = tmp_path_factory.mktemp("whole")
    build_store(root, POOL, ranker=RANKER)
    with TestClient(create_app(Settings(store=root, reranker="cross"), load, load)) as client:
        yield client


def told(client: TestClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """An answer, without what belongs to one store or one request."""
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return {name: value for name, value in response.json().items() if name not in OF_THE_STORE}


@pytest.mark.quick
@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_answers_are_those_of_one_machine(client: TestClient, whole: TestClient, body: dict[str, Any]) -> None:
    answer = told(client, "/rank", body)
    assert answer == told(whole, "/rank", body)
    assert "searched" not in answer


def test_so_are_batches_and_other_routes(client: TestClient, whole: TestClient) -> None:
    for path, body in [
        ("/v1/rerank", {"query": "w1 w2", "documents": ["w1", "w2 w2"]}),
        ("/v1/embeddings", {"input": ["w1 w2"], "model": "words"}),
    ]:
        answers = [each.post(path, json=body).json() for each in (client, whole)]
        one, other = (
            {key: value for key, value in each.items() if key not in ("id", "created", "meta")} for each in answers
        )
        assert one == other
    answers = [each.post("/rank/batch", json={"requests": BODIES[:2]}).json() for each in (client, whole)]
    one, other = ([[place["score"] for place in each["answer"]["results"]] for each in of["answers"]] for of in answers)
    assert one == other


def test_an_answer_is_kept_unless_parts_were_missing(
    client: TestClient, shards: LocalShards, made: tuple[Path, Manifest]
) -> None:
    body = {"context": "w1 w2", "top_k": 40}
    assert [client.post("/rank", json=body).headers["x-cache"] for _ in range(2)] == ["miss", "hit"]
    lost = made[1].parts[0]
    for replica in shards.of(lost.name):
        replica.lost = True
    for _ in range(2):
        response = client.post("/rank", json={**body, "top_k": 39})
        assert response.headers["x-cache"] == "miss"
        answer = response.json()
        assert answer["degraded"] == ["shards_missing"]
        assert answer["searched"] == pytest.approx(1 - lost.count / len(POOL))
        assert answer["exact"] is False
    metrics = client.get("/metrics").text
    assert f'polyrank_shard_struck{{part="{lost.name}"}} 2.0' in metrics
    assert 'polyrank_degraded_total{reason="shards_missing"} 2.0' in metrics
    for part in made[1].parts[1:]:
        for replica in shards.of(part.name):
            replica.lost = True
    response = client.post("/rank", json={"context": "w3"})
    assert response.status_code == 503
    assert response.json()["type"].endswith("shards-missing")
    assert response.headers["retry-after"] == "5"


def test_explanations_are_those_of_one_machine(tmp_path: Path, monkeypatch, shards: LocalShards) -> None:
    model = load_retriever("lexical")
    build(model, POOL, tmp_path / "whole", BuildOptions(index="exact"))
    parts = build(model, POOL, tmp_path / "parts", BuildOptions(index="exact"), parts=3).manifest
    local = LocalShards(tmp_path / "parts")
    monkeypatch.setattr(resources, "RayShards", lambda *_: local)
    body = {"context": ["w1 ord-3", "w2"], "candidates": [{"id": "c3"}, "w2 w5", {"id": "c103"}]}
    with TestClient(create_app(Settings(store=tmp_path / "whole"))) as one:
        expected = told(one, "/explain", body)
    with TestClient(create_app(Settings(store=tmp_path / "parts", cluster="auto"))) as client:
        assert told(client, "/explain", body) == expected
        for replica in local.of(parts.parts[0].name):
            replica.lost = True
        every = {"context": "w1", "candidates": [{"id": each.id} for each in POOL[:10]]}
        assert client.post("/explain", json=every).status_code == 503


def listed(client: TestClient, **wanted: Any) -> tuple[list[str], dict[str, Any]]:
    """The ids of all pages, and the last page."""
    found, after = list[str](), {}
    while True:
        page = client.get("/index/candidates", params={**wanted, **after}).json()
        found += [each["id"] for each in page["candidates"]]
        if page["next"] is None:
            return found, page
        after = {"after": page["next"]}


def test_candidates_are_listed_part_after_part(
    updated: tuple[TestClient, TestClient, LocalShards], made: tuple[Path, Manifest]
) -> None:
    client, whole, local = updated
    both_answer(client, whole, "PUT", "/index/candidates", {"candidates": [{"id": "new", "text": "w1"}]})
    both_answer(client, whole, "POST", "/index/candidates/delete", {"ids": ["c1"]})
    for wanted in ({"limit": 7}, {"limit": 5, "filter": '{"lang": "en"}'}):
        one, other = (listed(each, **wanted)[0] for each in (client, whole))
        assert sorted(one) == sorted(other)
        assert len(set(one)) == len(one) > 7
    notes = [listed(each, filter='{"langs": "en"}')[1]["notes"] for each in (client, whole)]
    assert notes[0] == notes[1] != []
    first = client.get("/index/candidates", params={"limit": 1}).json()["next"]
    for wrong in ("x", first.rpartition(".")[0], f"{first}.1", first.replace(".0.", ".3.")):
        assert client.get("/index/candidates", params={"after": wrong}).status_code == 422
    for replica in local.replicas.values():
        replica.lost = True
    assert client.get("/index/candidates").json()["type"].endswith("shards-missing")


def test_a_trial_is_answered_from_shards_beside_the_live_generation(
    updated: tuple[TestClient, TestClient, LocalShards], tmp_path: Path
) -> None:
    client, _, local = updated
    live = client.get("/index").json()["active"]["id"]
    options = BuildOptions(index="exact", activate=False)
    second = build(RANKER, pool(50, "n"), tmp_path / "parts", options, parts=2).manifest
    body = {"context": "w1 w2", "generation": "trial"}
    assert client.post("/rank", json=body).json()["type"].endswith("no-trial")
    shown = client.post("/index/trial", json={"generation": second.id}).json()
    assert (shown["active"]["id"], shown["trial"]["id"]) == (live, second.id)
    answers = [client.post("/rank", json={**body, "generation": which}).json() for which in ("trial", "live")]
    assert [each["generation"] for each in answers] == [second.id, live]
    assert {place["id"][0] for place in answers[0]["results"]} == {"n"}
    assert {replica.part for replica in local.replicas.values()} > {part.name for part in second.parts}
    put = client.put("/index/candidates", json=[{"id": "new", "text": "w1 w2"}]).json()["revision"]
    until(lambda: client.get("/index").json()["trial"]["revision"] >= put, 30)
    found = client.post("/rank", json={**body, "top_k": 100}).json()
    assert (found["revision"], "new" in [place["id"] for place in found["results"]]) == (put, True)
    assert client.post("/index/activate", json={"generation": second.id}).json()["trial"] is None
    assert client.post("/rank", json={"context": "w1 w2"}).json()["generation"] == second.id
    client.post("/index/trial", json={"generation": live})
    assert client.post("/rank", json=body).json()["generation"] == live
    assert client.post("/index/trial/end").json()["trial"] is None
    assert client.post("/rank", json=body).json()["type"].endswith("no-trial")


@pytest.fixture
def updated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TestClient, TestClient, LocalShards]]:
    """A server over parts and one over the whole pool, of stores of their own; and the shards of the first."""
    build_store(tmp_path / "whole", POOL, ranker=RANKER)
    build(RANKER, POOL, tmp_path / "parts", BuildOptions(index="exact"), parts=3)
    local = LocalShards(tmp_path / "parts")
    monkeypatch.setattr(settings_module, "why_unusable", lambda _: None)
    monkeypatch.setattr(resources, "connected", nullcontext)
    monkeypatch.setattr(resources, "RayShards", lambda *_: local)
    cut = Settings(store=tmp_path / "parts", cluster="auto", reranker="cross", result_cache_ttl_s=60, compact_after=50)
    with (
        TestClient(create_app(Settings(store=tmp_path / "whole", reranker="cross"), load, load)) as whole,
        TestClient(create_app(cut, load, load)) as client,
    ):
        yield client, whole, local


def both_answer(client: TestClient, whole: TestClient, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send a request to both, and compare all but the ids."""
    one, other = (each.request(method, path, json=body) for each in (client, whole))
    assert one.status_code == other.status_code == 200, one.text
    told = [{name: value for name, value in each.json().items() if name != "generation"} for each in (one, other)]
    assert told[0] == told[1]
    return told[0]


def compacted(client: TestClient) -> str:
    """Compact, and return the id of the generation that is served then."""
    return succeeded(client, client.post("/index/compact"))


def succeeded(client: TestClient, job: Any) -> str:
    """Wait for a job that was just started, and return the id of the generation that it made."""
    assert job.status_code == 202, job.text
    deadline = time.monotonic() + 60
    while (record := client.get(job.headers["location"]).json())["state"] not in ("succeeded", "failed"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (record["state"], record["error"]) == ("succeeded", None)
    return str(record["generation"])


def test_a_rebuild_makes_as_many_parts_of_the_new_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    before = build(
        load_retriever(write_base(tmp_path / "base", seed=0)), POOL[:50], root, BuildOptions(), parts=3
    ).manifest
    local = LocalShards(root)
    monkeypatch.setattr(settings_module, "why_unusable", lambda _: None)
    monkeypatch.setattr(resources, "connected", nullcontext)
    monkeypatch.setattr(resources, "RayShards", lambda *_: local)
    with TestClient(create_app(Settings(store=root, cluster="auto", backend="torch"))) as client:
        rows = [{"id": f"r{n}", "text": f"w{n} w2"} for n in range(70)]
        made = succeeded(client, client.post("/index", json={"candidates": rows}))
        assert client.get("/info").json()["generation"] == made
        answer = client.post("/rank", json={"context": "w7 w2", "top_k": 100}).json()
        assert {each["id"] for each in answer["results"]} == {each["id"] for each in rows}
        late = succeeded(client, client.post("/index", json={"candidates": rows[:60], "activate": False}))
        assert client.get("/info").json()["generation"] == made
    after = GenerationStore(root).manifest(late)
    assert (after.model, after.dtype, after.count) == (before.model, before.dtype, 60)
    assert [part.name for part in after.parts] == [part.name for part in before.parts]


def test_an_update_needs_no_shard(updated: tuple[TestClient, TestClient, LocalShards]) -> None:
    client, whole, local = updated
    for replica in local.replicas.values():
        replica.lost = True
    rows = {"candidates": [{"id": "c3", "text": POOL[3].text}, {"id": "new", "text": "w1 w2"}]}
    both_answer(client, whole, "PUT", "/index/candidates", rows)
    both_answer(client, whole, "POST", "/index/candidates/delete", {"ids": ["c5", "none"]})
    assert client.get("/index").json()["active"]["count"] == len(POOL)
    for replica in local.replicas.values():
        replica.lost = False
