"""Models are called by names: no answer, header, metric or list says where a server keeps their files."""

from pathlib import Path
from typing import Any

import orjson
import pytest
from command_line import call
from in_process import TestClient
from service_fakes import pool
from tiny import tiny_app

import polyrank
from polyrank.index_builder.building.pipeline import build

pytestmark = pytest.mark.quick


def test_no_answer_says_where_models_lie(checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(polyrank.load(checkpoints / "poly"), pool(9), tmp_path / "store")
    told: list[str] = []

    def ask(client: TestClient, path: str, body: Any = None) -> Any:
        answer = client.get(path) if body is None else client.post(path, json=body)
        told.append(f"{answer.headers} {answer.text}")
        return orjson.loads(answer.content) if path != "/metrics" else answer.text

    with TestClient(
        tiny_app(store=tmp_path / "store", reranker=str(checkpoints / "cross"), model_root=checkpoints)
    ) as client:
        assert ask(client, "/rank", {"context": "w1", "rerank": True})["model"]["name"] == "poly"
        assert ask(client, "/explain", {"context": "w1", "candidates": ["w2"]})["model"]["name"] == "poly"
        assert (
            "the model poly has no calibration" in ask(client, "/rank", {"context": "w1", "answer_if": 0.5})["detail"]
        )
        info = ask(client, "/info")
        assert (info["model"]["name"], info["reranker"]["name"], info["model_id"]) == ("poly", "cross", "cross")
        assert [each["id"] for each in ask(client, "/v1/models")["data"]] == ["cross", "poly"]
        for name in ("poly", "cross"):
            body = {"query": "w1", "documents": ["w2"], "model": name, "strict_model": True}
            assert ask(client, "/v1/rerank", body)["model"] == name
        assert ask(client, "/v1/embeddings", {"input": "w1"})["model"] == "poly"
        strict = {"input": "w1", "model": str(checkpoints / "poly"), "strict_model": True}
        assert client.post("/v1/embeddings", json=strict).status_code == 404, "where it lies is no name"
        assert ask(client, "/index")["active"]["model"]["name"] == "poly"
        metrics = ask(client, "/metrics")
        assert 'name="poly"' in metrics
        assert 'name="cross"' in metrics
    told.append(call(capsys, "store", "list", "--store", tmp_path / "store", "--json").out)
    told.append(call(capsys, "store", "list", "--store", tmp_path / "store").out)
    assert '"model":"poly"' in told[-2].replace(" ", "")
    for each in told:
        assert str(checkpoints) not in each


def test_names_of_directories_as_they_are_written(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkpoints / "poly")
    for name in (".", "../poly", "../poly/", checkpoints / "poly"):
        assert polyrank.load(name).name == "poly"
    monkeypatch.chdir(checkpoints)
    assert polyrank.load("poly").name == "poly"
    assert polyrank.load("lexical").name == "lexical"
