"""POST /rank over real models: sources agree, the cross-encoder has its say, answers are as documented."""

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from in_process import TestClient
from service_fakes import pool
from tiny import tiny_app

import polyrank
from polyrank.index_builder.building import pipeline
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.index.choice import IndexSpec, SearchTimes
from polyrank.model.inference.runners import Choice
from polyrank.service.api.answers import RankOut
from polyrank.service.api.generations import IndexOut
from polyrank.service.http.operations import InfoOut, StatusOut
from polyrank.service.http.plumbing.problems import Problem

pytestmark = pytest.mark.quick

COUNT = 50


@pytest.fixture(scope="module", params=["exact", "flat", "hnsw"])
def client(request: pytest.FixtureRequest, checkpoints: Path, tmp_path_factory) -> Iterator[TestClient]:
    root = tmp_path_factory.mktemp("store")
    build(polyrank.load(checkpoints / "poly"), pool(COUNT), root, BuildOptions(index=request.param))
    with TestClient(tiny_app(store=root, reranker=str(checkpoints / "cross"))) as client:
        yield client


def rank(client: TestClient, **fields: object) -> dict:
    response = client.post("/rank", json={"context": ["w1 w2", "w3"], **fields})
    assert response.status_code == 200, response.text
    RankOut.model_validate_json(response.content, strict=True)
    return response.json()


def scores(answer: dict) -> list[tuple[str, float]]:
    return [(result["id"], result["scores"]["vector"]) for result in answer["results"]]


def test_a_retrieved_answer_has_no_index_and_carries_metadata(client: TestClient) -> None:
    answer = rank(client, top_k=3, filter={"lang": ["en", "de"]}, exclude_ids=["c0"])
    assert [result["rank"] for result in answer["results"]] == [1, 2, 3]
    for result in answer["results"]:
        assert "index" not in result
        assert result["metadata"]["lang"] in ("en", "de")
        assert result["id"] != "c0"
    assert (answer["exact"], answer["revision"], answer["degraded"]) == (True, 0, [])


def test_filters_of_filters_over_http(client: TestClient) -> None:
    wanted = {"$or": [{"lang": "en"}, {"$not": {"lang": {"gte": "e"}}}], "lang": {"exists": True}}
    answer = rank(client, top_k=COUNT, filter=wanted)
    expected = {each.id for each in pool(COUNT) if each.metadata["lang"] == "en" or each.metadata["lang"] < "e"}
    assert {result["id"] for result in answer["results"]} == expected
    told = client.post("/rank", json={"context": "w1", "filter": {"$or": [{"lang": {"like": "e"}}]}})
    assert told.status_code == 422
    [error] = told.json()["errors"]
    assert "$or[0].lang.like: is not one of gt, gte, lt, lte, exists" in str(error)


@pytest.mark.parametrize(("filter_", "note"), [
    ({"lng": "en"}, "filter: no candidate has the field lng; did you mean lang?"),
    ({"n": {"gte": "3"}}, "filter: n holds numbers, and the bounds are strings"),
    ({"lang": "en", "n": 99}, "filter: n has none of the values asked for"),
])  # fmt: skip
@pytest.mark.parametrize("fields", [{}, {"exact": True}, {"group_by": "n"}, {"score_threshold": 1.0, "rerank": True}])
def test_an_answer_with_nothing_in_it_says_why(
    client: TestClient, filter_: dict, note: str, fields: dict[str, object]
) -> None:
    answer = rank(client, filter=filter_, **fields)
    assert answer["results"] == []
    assert answer["notes"] == [note]


def test_nothing_is_noted_where_the_filter_lets_something_through(client: TestClient) -> None:
    assert "notes" not in rank(client, filter={"lang": "en"})
    assert "notes" not in rank(client, filter={"$or": [{"lng": "en"}, {"lang": "en"}]})
    ids = [result["id"] for result in rank(client, filter={"lang": "en"}, top_k=COUNT)["results"]]
    assert "notes" not in rank(client, filter={"lang": "en"}, exclude_ids=ids)
    assert "notes" not in rank(client, filter={"lang": "en"}, score_threshold=1e9)
    assert rank(client, filter={"lang": "en"}, score_threshold=1e9)["results"] == []


def test_the_second_look(client: TestClient) -> None:
    answer = rank(client, top_k=8, rerank={"top_n": 4})
    cross = [result["scores"].get("cross") for result in answer["results"]]
    assert cross[:4] == sorted(cross[:4], reverse=True)
    assert cross[4:] == [None] * 4
    for result in answer["results"]:
        assert result["score"] == result["scores"].get("cross", result["scores"]["vector"])
    assert answer["timings_ms"]["rerank"] > 0


def test_what_did_not_fit_is_told(client: TestClient) -> None:
    answer = rank(client, context=["w9 " * 30, "w1 " * 60], candidates=["w2 " * 40, "w3"])
    assert answer["truncated"]["turns"] == 1
    assert answer["truncated"]["tokens"] > 0
    assert answer["truncated"]["candidates"] == 1


def test_persona_and_roles_are_taken(client: TestClient) -> None:
    with_persona = rank(client, persona=["w7 w8"], context=[{"role": "user", "text": "w1"}])
    without = rank(client, context=[{"role": "user", "text": "w1"}])
    assert scores(with_persona) != scores(without)


def test_the_other_answers_are_as_documented(client: TestClient) -> None:
    strict = {"/index": IndexOut, "/info": InfoOut, "/readyz": StatusOut, "/livez": StatusOut, "/healthz": StatusOut}
    for path, kind in strict.items():
        response = client.get(path)
        assert response.status_code == 200
        kind.model_validate_json(response.content)
    assert client.get("/info").json()["scan"]["kind"] in ("index", "stored rows")
    Problem.model_validate_json(client.get("/nope").content)
    assert client.get("/", follow_redirects=False).headers["location"] == "/playground"
    page = client.get("/docs")
    assert page.status_code == 200
    assert "https://" not in page.text, "the page asks no other host"
    assert "https://" not in page.headers["content-security-policy"]
    for name, kind in (("swagger-ui-bundle.js", "text/javascript"), ("swagger-ui.css", "text/css")):
        assert f'"docs/{name}"' in page.text
        answer = client.get(f"/docs/{name}")
        assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (200, kind)
    assert client.get("/docs/other.js").status_code == 404
    assert orjson.loads(client.get("/openapi.json").content)["openapi"].startswith("3.")


def test_info_tells_what_runs_and_how_it_was_chosen(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    told = client.get("/info").json()
    assert (told["model"]["backend"], told["model"]["precision"], told["model"]["choice"]) == ("torch", "float32", None)
    choice = Choice({"torch float32": 31.2}, {"openvino bfloat16, contexts": "a text's output depends on its batch"})
    held = client.app.state.resources
    monkeypatch.setattr(held.live.current.ranker, "precision", "bfloat16")
    monkeypatch.setattr(type(held.live.current.ranker), "choice", choice)
    monkeypatch.setattr(held.runtime.scorer, "precision", "float16")
    told = client.get("/info").json()
    assert (told["model"]["precision"], told["reranker"]["precision"]) == ("bfloat16", "float16")
    assert told["model_dtype"] == "float16"  # TEI's clients see the reranker
    assert told["model"]["choice"] == {"milliseconds": choice.milliseconds, "refused": choice.refused}


def test_metrics_have_every_series_from_the_start(client: TestClient) -> None:
    rank(client)
    text = client.get("/metrics").text
    for line in (
        'polyrank_http_requests_total{code="200",method="POST",route="/rank"}',
        'polyrank_stage_duration_seconds_count{stage="encode"}',
        'polyrank_cache_requests_total{result="corrupt",tier="redis"} 0.0',
        'polyrank_degraded_total{reason="cache_unavailable"} 0.0',
        'polyrank_rejected_total{reason="deadline"}',
        'polyrank_index_switches_total{result="refused"} 0.0',
        'polyrank_build_jobs_total{state="failed"} 0.0',
        f"polyrank_index_candidates {COUNT}.0",
        'polyrank_model_info{architecture="cross"',
        'polyrank_scan_info{fallback="false",kind=',
    ):
        assert line in text, line
    client.get("/some/path/unheard/of")
    assert 'route="unmatched"' in client.get("/metrics").text
    assert "unheard" not in client.get("/metrics").text


def test_answers_of_an_index_count_as_certified_or_not(client: TestClient) -> None:
    def counted() -> dict[str, float]:
        value = client.app.state.resources.metrics.registry.get_sample_value
        return {exact: value("polyrank_retrieval_certified_total", {"exact": exact}) for exact in ("true", "false")}

    before, kind = counted(), client.get("/index").json()["active"]["index"]
    rank(client)  # everything is scored
    rank(client, retrieve_k=5, top_k=5)
    rank(client, exact=True)
    rank(client, candidates=["w1"])
    grown = {exact: value - before[exact] for exact, value in counted().items()}
    assert sum(grown.values()) == (0 if kind == "exact" else 2)
    assert grown["true"] >= (kind != "exact")
    assert grown["false"] >= (kind == "hnsw")


def test_the_index_says_what_it_finds(client: TestClient) -> None:
    active = client.get("/index").json()["active"]
    assert active["index_factory"] == {"exact": None, "flat": "Flat", "hnsw": "HNSW32"}[active["index"]]
    assert active["index_times"] is None, "it was asked for, not chosen"
    assert active["recall"]["probes"] == ("pool" if active["index"] == "hnsw" else "none")
    assert (active["recall"]["recall@10"], active["recall"]["min_recall"]) == (1.0, 0.95)


def test_the_index_says_by_which_times_it_was_chosen(checkpoints: Path, tmp_path: Path, monkeypatch) -> None:
    chosen = IndexSpec("exact", times=SearchTimes(8.0, 6.5))
    monkeypatch.setattr(pipeline, "choose_index", lambda *_: chosen)
    build(polyrank.load(checkpoints / "poly"), pool(COUNT), tmp_path)
    with TestClient(tiny_app(store=tmp_path)) as client:
        content = client.get("/index").content
    active = IndexOut.model_validate_json(content, strict=True).active
    assert active.index_times.model_dump() == {"exact_ms": 8.0, "hnsw_ms": 6.5}
