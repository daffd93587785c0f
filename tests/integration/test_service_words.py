"""Words over HTTP: every route gives a text the score that a scan gives it, and no cache mixes up two evidences."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from fakes import EVIDENCE
from in_process import TestClient
from service_fakes import WordRanker, build_store, load, numbered, pool
from tiny import write_checkpoint

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.pool.rows import Candidate
from polyrank.service.app import create_app
from polyrank.service.settings import Settings

SAID = "w1 w2 w3 ord-3 ord-7"  # one of the candidates, too
NUMBERED = numbered(pool(200))
POOL = [*NUMBERED, Candidate("same", SAID), Candidate("twin", NUMBERED[3].text)]
TEXTS = [each.text for each in POOL]
OTHERS = [f"{text} w5" for text in TEXTS[:50]]  # of stored texts no vector is cached


@pytest.fixture(scope="module", params=["fake", "tiny"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server whose model counts words: one of words, or a small Poly-encoder."""
    parent = tmp_path_factory.mktemp("words")
    if request.param == "fake":
        build_store(parent / "store", POOL, ranker=WordRanker(evidence=EVIDENCE))
        app = create_app(Settings(store=parent / "store"), load)
    else:
        fields: dict[str, Any] = {"architecture": "poly", "n_codes": 4, "normalize": True, "score_scale": 5.0}
        build(
            polyrank.load(write_checkpoint(parent, "poly", 0, evidence=EVIDENCE, **fields)),
            POOL,
            parent / "store",
            BuildOptions(dtype="float32"),
        )
        app = create_app(Settings(store=parent / "store", threads=1, backend="torch", precision="float32"))
    with TestClient(app) as client:
        yield client


def ask(client: TestClient, path: str, **body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def scanned(client: TestClient) -> dict[str, tuple[float, float]]:
    """The score of each candidate and the part of it by words, by its id."""
    found = ask(client, "/rank", context=SAID, top_k=300, exact=True)
    assert found["exact"]
    scores = {each["id"]: (each["score"], each["scores"]["lexical"]) for each in found["results"]}
    assert len(scores) == len(POOL)
    assert scores["twin"] == scores["c3"]
    assert len({lexical for _, lexical in scores.values()}) > 6, "not by length alone"
    assert scores["same"][1] == min(lexical for _, lexical in scores.values()), "it was said already"
    return scores


def same(found: list[float], expected: list[float]) -> bool:
    """Equal but for what batches of other lengths make of a vector."""
    return found == pytest.approx(expected, abs=1e-4)


def test_texts_and_ids_score_as_in_a_scan(server: TestClient) -> None:
    right = scanned(server)
    by_id = [{"id": each.id} for each in POOL]
    mixed = [text if at % 2 else {"id": each.id} for at, (each, text) in enumerate(zip(POOL, TEXTS, strict=True))]
    for sent in (by_id, TEXTS, mixed):
        results = ask(server, "/rank", context=SAID, top_k=300, candidates=sent)["results"]
        assert len(results) == len(POOL)
        expected = [right[POOL[each["index"]].id] for each in results]
        assert same([each["score"] for each in results], [score for score, _ in expected])
        assert [each["scores"]["lexical"] for each in results] == [lexical for _, lexical in expected]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank_gives_raw_texts_the_scores_of_a_scan(server: TestClient, path: str) -> None:
    right = scanned(server)
    order = [POOL[each["index"]].id for each in ask(server, path, query=SAID, texts=TEXTS)]
    raw = ask(server, path, query=SAID, texts=TEXTS, raw_scores=True)
    assert [POOL[each["index"]].id for each in raw] == order
    expected = [right[each][0] for each in order]
    assert expected == pytest.approx(sorted(expected, reverse=True), abs=1e-4)
    assert same([each["score"] for each in raw], expected)
    relevant = (1 / (1 + np.exp(-np.array(expected)))).tolist()
    assert same([each["score"] for each in ask(server, path, query=SAID, texts=TEXTS)], relevant)
    results = ask(server, path, query=SAID, documents=TEXTS)["results"]
    assert [POOL[each["index"]].id for each in results] == order
    assert same([each["relevance_score"] for each in results], relevant)
    voyage = ask(server, path, query=SAID, documents=TEXTS, top_k=None)["data"]
    assert same([each["relevance_score"] for each in voyage], relevant)


def test_models_that_differ_in_evidence_alone_share_no_answer_and_no_vector(tmp_path: Path, redis_url: str) -> None:
    other = replace(EVIDENCE, weights={**EVIDENCE.weights, "last": -0.3})
    generations = [
        build_store(tmp_path, POOL, ranker=WordRanker(evidence=evidence), activate=True)
        for evidence in (EVIDENCE, other)
    ]
    questions: list[dict[str, Any]] = [{"exact": True}, {"candidates": OTHERS}, {"candidates": [{"id": "c3"}]}]

    def answers(client: TestClient) -> list[tuple[str | None, Any]]:
        found = []
        for question in questions:
            response = client.post("/rank", json={"context": SAID, "top_k": 300, **question})
            assert response.status_code == 200, response.text
            found.append((response.headers.get("x-cache"), response.json()["results"]))
        return found

    right = []
    for generation in generations:
        with TestClient(create_app(Settings(store=tmp_path, vector_cache_mb=0), load)) as client:
            ask(client, "/index/activate", generation=generation)
            right.append([results for _, results in answers(client)])
    assert all(one != two for one, two in zip(*right, strict=True))
    told = []
    caching = Settings(store=tmp_path, redis_url=redis_url, result_cache_ttl_s=60)
    for _ in range(2):  # the second server finds everything in Redis
        with TestClient(create_app(caching, load)) as client:
            for generation, expected in [*zip(generations, right, strict=True)] * 2:
                ask(client, "/index/activate", generation=generation)
                found = answers(client)
                assert [results for _, results in found] == expected
                told.append({cache for cache, _ in found})
    assert told == [{"miss"}, {"miss"}, *[{"hit"}] * 6]
    with redis.Redis.from_url(redis_url) as client:
        texts = [key for key in client.scan_iter(match="pe:t:*", count=1000)]
    assert len(texts) == 2 * len(set(OTHERS)), "each text has a vector of each model"
