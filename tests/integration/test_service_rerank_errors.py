"""Errors of compatible routes, each in the form that the dialect's clients read."""

import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from in_process import TestClient
from service_fakes import build_store, load

from polyrank.service.app import create_app
from polyrank.service.auth import keys
from polyrank.service.auth.keys import Key
from polyrank.service.errors import Overloaded
from polyrank.service.http.compat import rerank as routes_rerank
from polyrank.service.http.compat.cohere import AnyErrorOut, DetailErrorOut
from polyrank.service.http.compat.openai import OpenAiErrorOut
from polyrank.service.http.compat.tei import TeiErrorOut
from polyrank.service.settings import Settings

FORMS = {
    "tei": TeiErrorOut, "cohere": AnyErrorOut, "jina": AnyErrorOut,
    "infinity": OpenAiErrorOut, "voyage": DetailErrorOut,
}  # fmt: skip


def ask(client: TestClient, path: str = "/v2/rerank", dialect: str | None = None, **fields: Any) -> httpx2.Response:
    headers = {} if dialect is None else {"X-Rerank-Dialect": dialect}
    return client.post(path, json={"query": "w1 w2", **fields}, headers=headers)


@pytest.mark.parametrize("dialect", FORMS)
def test_errors_have_the_dialects_form(words: TestClient, dialect: str) -> None:
    def refused(status: int, **fields: Any) -> None:
        response = ask(words, "/rerank", dialect, **fields)
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/json"
        FORMS[dialect].model_validate(response.json())

    refused(422, documents=["w1"], query="")
    refused(422, documents=["w1"], texts=["w1"])
    refused(422, documents=[{"id": "x"}])
    refused(413, documents=["w1"] * 6)
    refused(413, documents=["w" * 5000])
    refused(404, documents=["w1"], model="other", strict_model=True)
    words.app.state.resources.live.current = None
    refused(503, documents=["w1"])


def test_fields_that_are_read_again_and_again_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_store(tmp_path)
    with TestClient(create_app(Settings(store=tmp_path, max_candidates=5, max_text_chars=100), load)) as client:
        told = ask(client, documents=[{"a": "w" * 60, "b": "w" * 60}], rank_fields=["a", "b"])
        assert (told.status_code, "documents.0: has 120 characters" in told.text) == (422, True)
        assert ask(client, documents=[{"a": "w" * 60}], rank_fields=["a"] * 64).status_code == 200, "named again"
        told = ask(client, documents=[{"a": "w1"}], rank_fields=["a"] * 65)
        assert (told.status_code, "rank_fields" in told.text) == (422, True)
        monkeypatch.setattr(routes_rerank, "document_of", None)
        assert ask(client, documents=[{"a": "w1"}] * 6).status_code == 413, "before any is read"


@pytest.mark.parametrize(("fields", "is_beside"), [(1, False), (30, True)])
def test_documents_of_many_fields_are_read_beside_the_event_loop(
    tmp_path: Path, fields: int, is_beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_store(tmp_path)
    read_by: set[str] = set()
    read = routes_rerank.document_of
    monkeypatch.setattr(
        routes_rerank, "document_of", lambda *sent: read_by.add(threading.current_thread().name) or read(*sent)
    )
    with TestClient(create_app(Settings(store=tmp_path), load)) as client:
        document = {**{f"f{number}": number for number in range(fields - 1)}, "text": "w1"}
        assert ask(client, documents=[document] * 100).status_code == 200
        assert ("reading_0" in read_by) is is_beside
        answer = ask(client, documents=[{f"f{number}": "w" for number in range(60)}] * 10_000)
        assert (answer.status_code, len(read_by)) == (413, 1), "counted before any is read"


def test_errors_before_the_dialect_is_known_suit_all(words: TestClient) -> None:
    json = {"content-type": "application/json"}
    malformed = words.post("/v1/rerank", content=b"{", headers=json)
    assert malformed.status_code == 400
    body = AnyErrorOut.model_validate(malformed.json())
    assert body.code == 400
    assert body.request_id == malformed.headers["x-request-id"]
    for response, status in (
        (words.post("/rerank", content=b"{}", headers={"content-type": "text/plain"}), 415),
        (words.get("/v2/rerank"), 405),
        (words.post("/rerank", json={"query": "q", "documents": ["a"]}, headers={"X-Rerank-Dialect": "x"}), 400),
        (words.post("/rerank", json={"query": "q", "documents": ["a"]}, headers={"X-Client-Timeout-Ms": "x"}), 400),
        (words.post("/rerank", content=b" " * 5000, headers=json), 413),
    ):
        assert response.status_code == status
        AnyErrorOut.model_validate(response.json())


def test_a_body_in_no_dialect_is_a_problem(words: TestClient) -> None:
    for response in (ask(words), ask(words, dialect="infinity", documents=None)):
        assert response.status_code == 422
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["type"].endswith("dialect-unknown")


def test_a_full_queue_is_429_here_and_503_on_rank(words: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    admission = words.app.state.resources.runtime.admission

    def full(*_: object) -> None:
        raise Overloaded(3, 7)

    monkeypatch.setattr(admission, "admitted", full)
    for dialect, kind in FORMS.items():
        response = ask(words, dialect=dialect, documents=["w1"])
        assert (response.status_code, response.headers["retry-after"]) == (429, "7")
        kind.model_validate(response.json())
    assert ask(words, texts=["w1"]).json()["error_type"] == "Overloaded"
    assert words.post("/v1/embeddings", json={"input": "w1"}).status_code == 429
    response = words.post("/tokenize", json={"inputs": "w1"})
    assert (response.status_code, response.headers["retry-after"]) == (429, "7")
    TeiErrorOut.model_validate(response.json())
    native = words.post("/rank", json={"context": "w1"})
    assert (native.status_code, native.headers["retry-after"]) == (503, "7")


def test_the_deadline_is_a_header(words: TestClient) -> None:
    ranker = words.app.state.resources.live.current.ranker
    ranker.on_encode = lambda: time.sleep(0.1)
    for path, body in (("/rerank", {"query": "w1", "texts": ["w1"]}), ("/rank", {"context": "w1"})):
        for header in ("X-Request-Timeout-Ms", "X-Client-Timeout-Ms"):
            assert words.post(path, json=body, headers={header: "50"}).status_code == 504, path
            assert words.post(path, json=body, headers={header: "5000"}).status_code == 200, path


def test_an_unexpected_failure_has_the_dialects_form(words: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(words.app.state.resources.engine, "rank", broken)
    response = ask(words, texts=["w1"])
    assert response.status_code == 500
    assert TeiErrorOut.model_validate(response.json()).error_type == "Backend"
    assert "secret" not in response.text


def test_keys_and_rates_are_refused_in_the_form_that_the_header_names(tmp_path: Path) -> None:
    build_store(tmp_path / "store")
    held = [Key(name="slow", sha256=keys.hashed(b"slow"), scopes=("rank",), rate_per_s=0.01, burst=1)]
    with keys.changing(tmp_path / "keys.json") as rows:
        rows[:] = held
    settings = Settings(store=tmp_path / "store", keys_file=tmp_path / "keys.json")
    with TestClient(create_app(settings, load)) as client:
        for dialect, kind in FORMS.items():
            response = ask(client, dialect=dialect, documents=["w1"])
            assert response.status_code == 401
            kind.model_validate(response.json())
        AnyErrorOut.model_validate(ask(client, documents=["w1"]).json())
        OpenAiErrorOut.model_validate(client.post("/v1/embeddings", json={"input": "w1"}).json())
        codes = [
            client.post("/rerank", json={"query": "w1", "texts": ["w1"]}, headers={"Authorization": "slow"})
            for _ in range(2)
        ]
        assert [each.status_code for each in codes] == [200, 429]
        assert int(codes[1].headers["retry-after"]) > 0
