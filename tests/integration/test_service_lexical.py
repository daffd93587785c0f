"""A store that ranks by words alone, served: rankings, updates, filters, switches to a model with vectors and back."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call, write_rows
from served import Served, serve
from tiny import write_checkpoint

import polyrank
from polyrank.index_builder.building.compaction import compact
from polyrank.index_builder.building.pipeline import build
from polyrank.index_builder.building.plans import BuildOptions
from polyrank.index_builder.pool.rows import Candidate
from polyrank.index_builder.store.generation_store import GenerationStore
from polyrank.model.config import LexicalConfig
from polyrank.model.lexical.table import WordTable
from polyrank.model.lexical.words import Statistics
from polyrank.model.registry import names_in_words
from polyrank.model.text.assembly import Conversation
from polyrank.service.app import create_app
from polyrank.service.ranking.costs import text_tokens
from polyrank.service.settings import Settings

LEXICAL = polyrank.load("lexical")
assert isinstance(LEXICAL, polyrank.LexicalRanker)
EVIDENCE = LEXICAL.evidence
CONTEXT = ["hello", "where is topic7 and what of item33"]


def row(n: int) -> Candidate:
    return Candidate(f"c{n}", f"item{n} belongs to topic{n % 40} as ever", {"even": n % 2 == 0})


POOL = [row(n) for n in range(400)]
STATISTICS = Statistics.of(each.text for each in POOL)


def expected(rows: list[Candidate], top_k: int = 10, statistics: Statistics = STATISTICS) -> list[tuple[str, float]]:
    """The best of the rows by `LexicalScore.values` of each, sorted; how common words are is counted in POOL."""
    table = WordTable.of([each.text for each in rows], statistics)
    values = EVIDENCE.values(Conversation.of(CONTEXT), table)
    order = np.argsort(-values, kind="stable")[:top_k]
    return [(rows[at].id, float(values[at])) for at in order]


def test_an_answer_says_where_words_had_nothing_to_go_by(tmp_path: Path) -> None:
    build(LEXICAL, POOL, tmp_path)
    with serve(create_app(Settings(store=tmp_path))) as server:
        for asked in ({}, {"candidates": ["a b", "c"]}, {"filter": {"even": True}}):
            [told] = server.rank(context="quite another matter", **asked).json()["notes"]
            assert told == "words: no reply shares a telling word with the conversation; their order says nothing"
        assert "notes" not in server.rank(context=CONTEXT).json()
        assert "notes" not in server.rank(context=CONTEXT, candidates=["item33", "c"]).json()
        [told] = server.rank(context="quite another matter", filter={"n": 1}).json()["notes"]
        assert told.startswith("filter: ")


def answered(body: dict[str, Any]) -> list[tuple[str, float]]:
    for result in body["results"]:
        assert result["scores"] == {"vector": 0.0, "lexical": result["score"]}
    assert (body["exact"], body["degraded"], body["truncated"]["candidates"]) == (True, [], 0)
    return [(result["id"], result["score"]) for result in body["results"]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    build(LEXICAL, POOL, tmp_path / "store")
    settings = Settings(
        store=tmp_path / "store", backend="torch", precision="float32", model_root=tmp_path, pool_root=tmp_path
    )
    with serve(create_app(settings)) as served:
        yield served


def ranked(server: Served, **fields: Any) -> dict[str, Any]:
    response = server.rank(context=CONTEXT, **fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_rankings_are_those_of_the_words(server: Served) -> None:
    body = ranked(server)
    assert answered(body) == expected(POOL)
    assert body["results"][0]["id"] == "c33"
    assert body["model"] == {"name": "lexical", "architecture": "lexical", "fingerprint": LEXICAL.fingerprint}
    even = [each for each in POOL if each.metadata["even"]]
    assert answered(ranked(server, filter={"even": True})) == expected(even)
    assert answered(ranked(server, exclude_ids=["c33"])) == expected([each for each in POOL if each.id != "c33"])
    sent = [row(7), Candidate("new", "item33 is a topic7"), row(8)]
    given = ranked(server, candidates=[{"id": each.id, "text": each.text} for each in sent])
    assert answered(given) == expected(sent)
    assert answered(ranked(server, candidates=[{"id": "c8"}, {"id": "c33"}])) == expected([row(8), row(33)])


def test_updates_count_at_once_and_in_the_statistics_after_a_compaction(server: Served, tmp_path: Path) -> None:
    new = Candidate("new", "topic7 has item33 and item33")
    put = [{"id": new.id, "text": new.text}]
    assert server.client.put("/index/candidates", json=put).status_code == 200
    assert server.client.post("/index/candidates/delete", json={"ids": ["c33"]}).status_code == 200
    rows = [*(each for each in POOL if each.id != "c33"), new]
    updated = answered(ranked(server))
    assert updated == expected(rows)
    assert updated[0][0] == "new"
    compact(tmp_path / "store")
    server.app.state.resources.live.follow_current()
    counted_anew = expected(rows, statistics=Statistics.of(each.text for each in rows))
    assert answered(ranked(server)) == counted_anew != updated
    assert server.client.get("/index").json()["active"]["index"] == "exact"


def test_rollback_to_a_model_with_vectors_and_back(server: Served, tmp_path: Path) -> None:
    before = ranked(server)
    write_checkpoint(tmp_path, "poly", 0, architecture="poly")
    poly = build(polyrank.load(tmp_path / "poly"), POOL, tmp_path / "store", BuildOptions(activate=False)).generation
    body = {"generation": poly}
    assert server.client.post("/index/activate", json=body).json()["active"]["id"] == poly
    other = ranked(server)
    assert other["model"]["architecture"] == "poly"
    assert "lexical" not in other["results"][0]["scores"]
    assert server.client.post("/index/rollback").json()["active"]["id"] == before["generation"]
    assert answered(ranked(server)) == answered(before)


def test_copies_in_redis_answer_alike(tmp_path: Path, redis_url: str) -> None:
    build(LEXICAL, POOL, tmp_path, BuildOptions(redis_url=redis_url))
    settings = Settings(store=tmp_path, backend="torch", precision="float32", redis_url=redis_url, vectors="redis")
    with serve(create_app(settings)) as served:
        assert answered(ranked(served)) == expected(POOL)
        assert answered(ranked(served, candidates=[{"id": "c8"}, {"text": POOL[33].text}]))[0][0] is None


def test_a_long_context_says_what_was_not_read(server: Served) -> None:
    turns = ["lost", "b" * 20_000, "b" * 20_000, "where is item33"]
    cut = server.rank(context=turns).json()["truncated"]
    # 15 letters, 20,000 letters, and 12,753 of 20,000 are read: 7,247 are left, at four letters a token
    assert cut == {"turns": 1, "tokens": 1812, "candidates": 0}


def test_a_rebuild_may_name_it(server: Served) -> None:
    candidates = [{"id": each.id, "text": each.text} for each in POOL[:60]]
    for named in ({"model": "lexical"}, {}):  # without a name: the model that is served
        job = server.client.post("/index", json={"candidates": candidates, **named}).json()
        while job["state"] in ("queued", "running"):
            time.sleep(0.05)
            job = server.client.get(f"/index/jobs/{job['id']}").json()
        assert (job["state"], job["error"]) == ("succeeded", None)
    assert ranked(server)["generation"] == job["generation"]


def test_the_server_says_what_it_is(server: Served) -> None:
    assert server.client.get("/readyz").json()["status"] == "ready"
    info = server.client.get("/info").json()
    told = {name: info["model"][name] for name in ("name", "architecture", "backend", "precision", "choice")}
    lexical = {"name": "lexical", "architecture": "lexical", "backend": "none", "precision": "float32", "choice": None}
    assert told == lexical
    assert info["scan"]["kind"] == "stored rows"
    [model] = server.client.get("/v1/models").json()["data"]
    assert model["capabilities"] == ["rerank"]


def test_no_vectors_are_kept_that_say_nothing(server: Served) -> None:
    server.rank(context=CONTEXT, candidates=["item33", "c"])
    assert server.app.state.resources.live.current.texts is None


def test_rerank_routes_rank_by_words(server: Served) -> None:
    texts = [POOL[8].text, POOL[33].text]
    answer = server.client.post("/v1/rerank", json={"query": CONTEXT[1], "documents": texts})
    assert [each["index"] for each in answer.json()["results"]] == [1, 0]


@pytest.mark.parametrize(("path", "body"), [
    ("/v1/embeddings", {"input": "a", "model": "lexical"}),
    ("/embed", {"inputs": "a"}),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}),
    ("/tokenize", {"inputs": "a"}),
])  # fmt: skip
def test_embedding_routes_say_what_to_do(server: Served, path: str, body: dict[str, Any]) -> None:
    answer = server.client.post(path, json=body)
    assert answer.status_code == 422
    why = f"it has no vectors and no tokens; activate a generation of a {names_in_words(retrieves=True)}"
    assert f"lexical is a lexical model, which ranks by words alone: {why}" in answer.text


def test_admission_estimates_what_batches_count() -> None:
    texts = ["", "abcd", "word " * 1000]
    tokens, _ = LEXICAL.tokenize_candidates(texts)
    assert sum(map(len, tokens)) == text_tokens(texts)


def test_the_command_evaluates_and_ranks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each reply has a word of its context that no other has; weights of the other sign rank it last."""
    pool = write_rows(tmp_path / "pool.jsonl", [{"id": each.id, "text": each.text} for each in POOL])
    rows = [
        {
            "dialogue": f"d{n}", "context": [f"where is item{n}"], "response": row(n).text,
            "candidates": [row(n + at).text for at in range(1, 20)] + [row(n).text], "label": 19,
        }
        for n in range(60)
    ]  # fmt: skip
    data = write_rows(tmp_path / "data.jsonl", rows)
    averse = LexicalConfig(weights={"last": -1.0})
    polyrank.LexicalRanker("", replace(LEXICAL.config, evidence=averse)).save(tmp_path / "averse")
    for source in ([], ["--pool", pool]):
        given = ["--model", "lexical", "--against", tmp_path / "averse", "--data", data, *source]
        result = call(capsys, "evaluate", *given, "--json").result
        assert (result["recall@1"], result["against"]["recall@1"]) == (1.0, 0.0)
    built = call(capsys, "build", "--model", "lexical", "--pool", pool, "--store", tmp_path / "store", "--json").result
    assert (built["index"], built["count"], built["truncated"]) == ("exact", len(POOL), 0)
    found = call(capsys, "rank", "--store", tmp_path / "store", *CONTEXT, "--json").result
    assert answered(found) == expected(POOL)


def test_auto_scans_however_large_the_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrank.index_builder.index.choice.MEASURED_FROM", 1)
    monkeypatch.setattr("polyrank.index_builder.index.choice.HNSW_BYTES", 1)  # else a large pool gets lists
    built = build(LEXICAL, POOL, tmp_path)
    assert built.worst.index.kind == "exact"
    assert GenerationStore(tmp_path).manifest(built.generation).dim == 1
