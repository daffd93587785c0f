"""POST /rank/batch: rankings in one call are answered as they are alone, and fail alone."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import TestClient
from service_fakes import WordRanker, build_store, load, pool

from polyrank.service.api import findings
from polyrank.service.api.answers import BatchOut
from polyrank.service.api.requests import MAX_BATCH
from polyrank.service.app import create_app
from polyrank.service.auth.keys import hashed
from polyrank.service.http.plumbing.problems import Problem
from polyrank.service.settings import Settings

COUNT = 60
PATH = "/rank/batch"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    build_store(tmp_path, pool(COUNT))
    with TestClient(create_app(Settings(store=tmp_path, max_candidates=50), load)) as client:
        yield client


def batch(client: TestClient, *requests: Any, **fields: Any) -> list[dict[str, Any]]:
    answer = client.post(PATH, json={"requests": requests, **fields})
    assert answer.status_code == 200, answer.text
    BatchOut.model_validate_json(answer.content, strict=True)
    return list(answer.json()["answers"])


def metric(client: TestClient, name: str, **labels: str) -> float:
    registry = client.app.state.resources.metrics.registry
    return float(registry.get_sample_value(f"polyrank_{name}", labels) or 0.0)


def test_each_is_answered_as_alone_and_in_order(client: TestClient) -> None:
    requests = [
        {"context": "w1 w2", "top_k": 3},
        {"context": [{"role": "user", "content": "w3"}], "candidates": ["w3", "w4"]},
        {"context": "w5", "filter": {"lang": "en"}, "top_k": 5},
    ]
    together = batch(client, *requests)
    assert [entry["status"] for entry in together] == [200, 200, 200]
    for sent, entry in zip(requests, together, strict=True):
        alone = client.post("/rank", json=sent).json()
        for name in ("timings_ms", "request_id"):
            del alone[name], entry["answer"][name]
        assert entry["answer"] == alone


def test_each_is_refused_alone(client: TestClient) -> None:
    entries = batch(
        client,
        {"context": "w1"},
        {"context": "w1", "topk": 5},
        5,
        {"context": "w1", "expect": {"generation": "other"}},
        {"context": "w1", "rerank": True},
        {"context": "w1", "candidates": [{"id": "nobody"}]},
    )
    assert [entry["status"] for entry in entries] == [200, 422, 422, 409, 422, 422]
    details = [entry["problem"]["detail"] for entry in entries[1:3]]
    assert details == ["topk: unknown field; did you mean top_k?", "the body must be an object, not a number"]
    assert entries[4]["problem"]["type"].endswith("not-configured")
    assert metric(client, "batch_entries_total", code="200") == 1
    assert metric(client, "batch_entries_total", code="422") == 4
    assert metric(client, "batch_entries_total", code="409") == 1


def test_contexts_share_forward_passes(client: TestClient) -> None:
    ranker = client.app.state.resources.live.require().ranker
    assert isinstance(ranker, WordRanker)
    passes: list[int] = []

    def encode() -> None:
        passes.append(1)
        time.sleep(0.02)  # as a model takes its time: the others arrive meanwhile

    ranker.on_encode = encode
    assert {entry["status"] for entry in batch(client, *({"context": f"w{n}"} for n in range(30)))} == {200}
    assert len(passes) < 15


def test_a_time_that_is_over_is_that_of_one_entry(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    ranker = client.app.state.resources.live.require().ranker
    before = metric(client, "rejected_total", reason="deadline")
    steps = type(ranker).context_steps

    def slow(self: WordRanker, conversation: Any) -> Any:
        if "slow" in conversation.turns[0].text:
            while True:
                yield
        return (yield from steps(self, conversation))

    monkeypatch.setattr(WordRanker, "context_steps", slow)
    entries = batch(client, {"context": "slow " * 300, "timeout_ms": 200}, {"context": "w1"})
    assert [entry["status"] for entry in entries] == [504, 200]
    assert metric(client, "rejected_total", reason="deadline") == before + 1


def test_what_fails_unforeseen_fails_alone(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = client.app.state.resources.engine
    rank = engine.rank

    async def broken(serving: Any, request: Any, journey: Any) -> Any:
        if request.top_k == 2:
            raise ZeroDivisionError("secret")
        return await rank(serving, request, journey)

    monkeypatch.setattr(engine, "rank", broken)
    entries = batch(client, {"context": "w1", "top_k": 2}, {"context": "w1"})
    assert [entry["status"] for entry in entries] == [500, 200]
    assert "secret" not in str(entries)


@pytest.mark.parametrize(("body", "status", "says"), [
    ({"requests": []}, 422, "requests: must not be empty"),
    ({"requests": [{"context": "a"}] * (MAX_BATCH + 1)}, 422, f"requests: must have at most {MAX_BATCH} items"),
    ({"request": ["a"]}, 422, "request: unknown field; did you mean requests?"),
    ({"requests": [{"context": "a", "candidates": ["b"] * 26}] * 2}, 413, "at most 50 candidates"),
    ([{"context": "a"}], 422, "the body must be an object, not a list"),
])  # fmt: skip
def test_bounds_hold_for_all_together(client: TestClient, body: Any, status: int, says: str) -> None:
    answer = client.post(PATH, json=body)
    assert answer.status_code == status, answer.text
    assert says in Problem.model_validate_json(answer.content).detail


def test_each_counts_for_the_rate(tmp_path: Path) -> None:
    build_store(tmp_path / "store", pool(COUNT))
    key = {"name": "k", "sha256": hashed(b"prk_k"), "scopes": ["rank"], "rate_per_s": 0.01, "burst": 3}
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [key]}))
    settings = Settings(store=tmp_path / "store", keys_file=tmp_path / "keys.json")
    with TestClient(create_app(settings, load)) as client:
        client.headers["X-API-Key"] = "prk_k"
        entries = batch(client, *({"context": "w1"} for _ in range(5)))
        assert sorted(entry["status"] for entry in entries) == [200, 200, 200, 429, 429]
        assert all(entry["retry_after"] >= 1 for entry in entries if entry["status"] == 429)
        assert client.post("/rank", json={"context": "w1"}).status_code == 429


@pytest.mark.parametrize("fields", [20, 990])
def test_naming_what_is_wrong_with_all_is_bounded_as_for_one(client: TestClient, fields: int, monkeypatch) -> None:
    guessed: list[str] = []
    monkeypatch.setattr(findings, "get_close_matches", lambda name, *_, **__: guessed.append(name) or [])
    wrong = {"context": "hi", **{f"x{number}": 1 for number in range(fields)}}
    entries = batch(client, *[wrong] * MAX_BATCH)
    assert {entry["status"] for entry in entries} == {422}
    assert all(entry["problem"]["errors"] for entry in entries)
    assert len(guessed) <= findings.MAX_ERRORS + MAX_BATCH


def test_checking_ends_with_the_time_of_the_batch(client: TestClient) -> None:
    """What another request has checked on the one thread for that holds it up no longer than it may take."""
    over = threading.Event()
    reading = client.app.state.resources.reading
    reading._thread.submit(over.wait)
    try:
        answer = client.post(PATH, json={"requests": [{"context": "w1"}] * 3, "timeout_ms": 50})
        assert (answer.status_code, answer.json()["type"]) == (504, "urn:polyrank:problem:deadline-exceeded")
    finally:
        over.set()
    assert [entry["status"] for entry in batch(client, {"context": "w1"})] == [200]
