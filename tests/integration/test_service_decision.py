"""`answer_if` of POST /rank: decisions by calibrated models, alone, in batches, from the cache, and by the clients."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from fakes import EVIDENCE
from served import Served, serve
from service_fakes import pool
from tiny import tiny_app, write_checkpoint

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.pool.rows import Candidate
from polyrank.model.config import CalibrationConfig
from polyrank.service.api.answers import RankOut

pytestmark = pytest.mark.quick

QUERY = "w1 w2"
LINE = CalibrationConfig(prior=0.1, slope=0.05, intercept=-1.0)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose model is calibrated."""
    root = tmp_path_factory.mktemp("calibrated")
    late = write_checkpoint(root, "late", 0, architecture="poly", n_codes=4, evidence=EVIDENCE, calibration=LINE)
    build(polyrank.load(late), pool(30), root / "store")
    return root / "store"


@pytest.fixture(scope="module")
def server(store: Path, checkpoints: Path) -> Iterator[Served]:
    """A server that keeps answers, and whose reranker is not calibrated."""
    with serve(tiny_app(store=store, reranker=str(checkpoints / "cross"), result_cache_ttl_s=60)) as served:
        yield served


def ask(server: Served, **fields: Any) -> dict[str, Any]:
    response = server.rank(context=QUERY, **fields)
    assert response.status_code == 200, response.text
    RankOut.model_validate_json(response.content, strict=True)
    return dict(response.json())


def test_the_probability_is_the_relevance_that_other_systems_clients_get(server: Served) -> None:
    texts = [each.text for each in pool(5)]
    answer = ask(server, candidates=texts, answer_if=0.3)
    model = server.client.get("/index").json()["active"]["model"]["fingerprint"]
    body = {"query": QUERY, "documents": texts, "model": model, "top_n": 1}
    [best] = server.client.post("/v2/rerank", json=body).json()["results"]
    assert best["index"] == answer["results"][0]["index"]
    probability = answer["decision"]["probability"]
    assert probability == pytest.approx(best["relevance_score"], rel=1e-6)
    assert answer["decision"] == {"answer": probability >= 0.3, "probability": probability, "threshold": 0.3}
    for threshold, answers in ((probability, True), (1.0, False)):
        assert ask(server, candidates=texts, answer_if=threshold)["decision"]["answer"] is answers
    assert "decision" not in ask(server, candidates=texts)


def test_a_batch_decides_one_by_one_and_all_are_counted(server: Served) -> None:
    def counts() -> list[float]:
        return [server.metric("decisions_total", answer=answer) for answer in ("true", "false")]

    before = counts()
    asked = [
        {"context": "w3", "answer_if": 1e-9}, {"context": "w3"}, {"context": "w3", "answer_if": 1},
        {"context": "w3", "answer_if": 2}, {"context": "w3", "answer_if": 0.5, "rerank": True},
        {"context": "w3", "answer_if": 0.5, "filter": {"lang": "none"}},
    ]  # fmt: skip
    with polyrank.Client(server.url) as client:
        yes, plain, no, wrong, uncalibrated, nothing = client.rank_batch(asked)
        assert client.rank("w3", answer_if=1e-9).decision == yes.decision
    assert (yes.decision.answer, no.decision.answer) == (True, False)
    assert yes.decision.probability == no.decision.probability
    assert plain.decision is None
    assert (nothing.results, nothing.decision.answer, nothing.decision.probability) == ([], False, None)
    assert [each.status for each in (wrong, uncalibrated)] == [422, 422]
    assert uncalibrated.kind == "not-calibrated"
    assert counts() == [before[0] + 1, before[1] + 2], "an answer that was kept is not counted again"


def test_an_answer_that_is_kept_is_of_its_threshold(server: Served) -> None:
    for threshold in (0.01, 0.99):
        first, kept = (server.rank(context="w9", answer_if=threshold) for _ in range(2))
        assert [each.headers["x-cache"] for each in (first, kept)] == ["miss", "hit"]
        assert kept.json()["decision"] == first.json()["decision"]
        assert first.json()["decision"]["threshold"] == threshold


def test_the_command_says_it_from_service_and_store(capsys, server: Served, store: Path) -> None:
    probability = ask(server, answer_if=0.5)["decision"]["probability"]
    for source in (("--url", server.url), ("--store", store)):
        line = call(capsys, "rank", QUERY, "--answer-if", "0.9", *source).out.splitlines()[-1]
        assert line == f"answer: no (probability {probability:.3f}, threshold 0.9)"
        told = json.loads(call(capsys, "rank", QUERY, "--answer-if", "0.001", "--json", *source).out)
        assert told["decision"] == {"answer": True, "probability": pytest.approx(probability), "threshold": 0.001}


GERMAN = ["Ihr Paket kommt am Dienstag.", "Wir nehmen die Ware gern zurück.", "Möchten Sie mit Karte bezahlen?"]


def test_a_pool_in_none_of_the_models_languages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is known of what scores say there: the build says so, and no probability is made up."""
    learnt = {"languages": ("en", "es"), "calibration": LINE}
    late = write_checkpoint(tmp_path, "late", 0, architecture="poly", n_codes=4, **learnt)
    built = build(polyrank.load(late), [Candidate(str(at), text, {}) for at, text in enumerate(GERMAN)], tmp_path / "s")
    expected = "3 of 3 replies look German; late learnt English, Spanish: take a model that learnt German"
    assert expected in built.notes
    with serve(tiny_app(store=tmp_path / "s")) as server:
        decision = ask(server, answer_if=0.0001)["decision"]
        assert decision == {"answer": False, "probability": None, "threshold": 0.0001, "reason": "language"}
        info = server.client.get("/info").json()
        assert info["languages"] == {"model": ["en", "es"], "pool": {"de": 3}}
        assert info["model"]["languages"] == ["en", "es"]
        printed = call(capsys, "rank", "w1", "--answer-if", "0.001", "--url", server.url)
        assert "answer: no (probability is not known: the pool is in none of the model's languages" in printed.out, (
            printed
        )


def test_a_model_that_names_no_languages_looks_at_none(server: Served) -> None:
    assert server.client.get("/info").json()["languages"] == {"model": [], "pool": {}}
