"""A second stage over HTTP: every route gives a text the score that `rank` gives it, also after updates."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import EVIDENCE
from in_process import TestClient
from service_fakes import DIM, WordRanker, build_store, load, pool
from tiny import write_checkpoint
from tiny_training import TWO_STAGES

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.model.representations import LateRows
from polyrank.service.app import create_app
from polyrank.service.settings import Settings

SAID = "w1 w2 w3"
POOL = pool(60)


@pytest.fixture(params=["fixed", "ragged", *TWO_STAGES])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    """A store, and what loads its model: one of words or a small real one; all but the first count words."""
    root = tmp_path / "store"
    if (name := request.param) in TWO_STAGES:
        model = polyrank.load(write_checkpoint(tmp_path, name, 0, architecture=name, evidence=EVIDENCE))
        build(model, POOL, root, BuildOptions(dtype="float32"))
        return root, None
    late = LateRows(DIM, 2 if request.param == "fixed" else None)
    build_store(root, POOL, ranker=WordRanker(late=late, evidence=None if late.count else EVIDENCE), dtype="float32")
    return root, load


@pytest.fixture
def client(store: tuple[Path, Any]) -> Iterator[TestClient]:
    root, loads = store
    settings = Settings(store=root, threads=1, backend="torch", precision="float32")
    with TestClient(create_app(settings, loads) if loads else create_app(settings)) as client:
        yield client


def ask(client: TestClient, path: str = "/rank", method: str = "POST", **body: Any) -> Any:
    response = client.request(method, path, json=body or None)
    assert response.status_code == 200, response.text
    return response.json()


def scores(answer: dict[str, Any]) -> dict[str, float]:
    assert answer["degraded"] == []
    return {each["id"]: each["score"] for each in answer["results"]}


def test_every_way_gives_the_same_scores(client: TestClient) -> None:
    found = ask(client, context=SAID, top_k=60)
    wanted = scores(found)
    assert (found["exact"], len(wanted), found["timings_ms"]["late"] > 0) == (True, 60, True)
    sent = [{"id": each.id, "text": each.text} for each in POOL]
    assert scores(ask(client, context=SAID, top_k=60, candidates=sent)) == pytest.approx(wanted, abs=1e-4)
    by_id = [{"id": each.id} for each in POOL]
    assert scores(ask(client, context=SAID, top_k=60, candidates=by_id)) == pytest.approx(wanted, abs=1e-4)
    assert scores(ask(client, context=SAID, top_k=60, exact=True)) == pytest.approx(wanted, abs=1e-4)
    reranked = ask(client, "/rerank", query=SAID, texts=[each.text for each in POOL], raw_scores=True)
    assert {f"c{each['index']}": each["score"] for each in reranked} == pytest.approx(wanted, abs=1e-4)
    for each in found["results"]:
        assert each["score"] == pytest.approx(each["scores"]["late"] + each["scores"].get("lexical", 0), abs=1e-5)


def test_an_update_is_scored_as_what_was_built(client: TestClient) -> None:
    wanted = scores(ask(client, context=SAID, top_k=60))
    texts = {each.id: each.text for each in POOL}
    changed = [{"id": "c1", "text": texts["c2"]}, {"id": "c2", "text": texts["c2"]}, {"id": "new", "text": texts["c3"]}]
    revision = client.put("/index/candidates", json=changed)
    assert revision.status_code == 200
    found = scores(ask(client, context=SAID, top_k=61, min_revision=revision.json()["revision"]))
    expected = {**wanted, "c1": wanted["c2"], "new": wanted["c3"]}
    assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("store", ["fixed", "ragged"], indirect=True)
def test_the_index_tells_of_the_rows(client: TestClient) -> None:
    active = ask(client, "/index", "GET")["active"]
    assert active["late"]["dim"] == DIM
    assert active["late"]["count"] in (None, 2)
    assert ask(client, "/info", "GET")["model"]["second_stage"] == active["late"]


@pytest.mark.parametrize("store", ["fixed", "ragged"], indirect=True)
def test_too_many_for_exact_is_a_problem_that_says_what_to_do(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyrank.service.ranking.pool.most_exact", lambda *_: 5)
    response = client.post("/rank", json={"context": SAID, "exact": True, "top_k": 3})
    assert (response.status_code, response.json()["type"]) == (422, "urn:polyrank:problem:too-many-for-exact")
    assert "60 candidates, and 5 are the most here; leave exact out" in response.json()["detail"]
