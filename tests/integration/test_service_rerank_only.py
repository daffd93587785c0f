"""A server with a reranker and no store: ready, and clear about what it cannot do."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import Served, serve
from service_fakes import load

from polyrank.service.app import create_app
from polyrank.service.errors import SettingsError
from polyrank.service.settings import Settings


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve(create_app(Settings(reranker="cross"), load, load)) as server:
        yield server


def test_it_is_ready_and_says_what_it_serves(server: Served) -> None:
    answer = server.client.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready", "generation": None})
    info = server.client.get("/info").json()
    assert (info["generation"], info["reranker"]["name"]) == (None, "overlap")


def test_it_reranks_for_every_client(server: Served) -> None:
    body: dict[str, Any] = {"query": "w1 w2", "documents": ["w5", "w1 w2", "w2"]}
    found = server.client.post("/v1/rerank", json=body).json()["results"]
    assert [each["index"] for each in found] == [1, 2, 0]
    tei = server.client.post("/rerank", json={"query": "w1 w2", "texts": body["documents"]}).json()
    assert [each["index"] for each in tei] == [1, 2, 0]


@pytest.mark.parametrize(("method", "path", "body", "status", "said"), [
    ("POST", "/rank", {"context": "w1"}, 503, "this server has no store; start it with --store"),
    ("POST", "/v1/embeddings", {"input": "w1"}, 503, "this server has no store"),
    ("PUT", "/index/candidates", [{"id": "a", "text": "w1"}], 503, "this server has no store"),
    ("POST", "/index", {"candidates": [{"text": "w1"}], "model": "lexical"}, 503, "start it with --store"),
])  # fmt: skip
def test_what_needs_a_pool_is_refused_with_a_reason(
    server: Served, method: str, path: str, body: Any, status: int, said: str
) -> None:
    answer = server.client.request(method, path, json=body)
    assert answer.status_code == status
    assert said in answer.text


def test_it_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with serve(create_app(Settings(reranker="cross"), load, load)) as server:
        assert server.client.get("/index").status_code == 200
        assert not list(tmp_path.iterdir()), "a worker that is killed would leave it"
    assert not list(tmp_path.iterdir())


def test_neither_store_nor_reranker_is_a_mistake() -> None:
    with pytest.raises(SettingsError, match=r"store: name the store directory .* or a reranker or a classifier alone"):
        Settings.load({})
