"""What known clients send, literally, and what each of them looks for in the answer.

docs/how-to/other-clients.md lists the clients; those that install are also run themselves (tests/clients).
"""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from in_process import TestClient
from service_fakes import build_store, load

from polyrank.service.app import create_app
from polyrank.service.settings import Settings

QUERY = "w1 w2 w3"
TEXTS = ["w9", "w1 w2 w3", "w1 w8"]
BEST = [1, 2, 0]  # by the words shared with the query


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    root = tmp_path_factory.mktemp("store")
    build_store(root)
    with TestClient(create_app(Settings(store=root, reranker="cross"), load, load)) as client:
        yield client


def sent(client: TestClient, path: str, body: dict[str, Any], **headers: str) -> Any:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response: httpx2.Response = client.post(path, json=body, headers=named)
    assert response.status_code == 200, response.text
    return response.json()


def ordered(results: list[dict[str, Any]], score: str = "relevance_score") -> list[int]:
    """The indices, checked to be in the order of scores between 0 and 1."""
    scores = [result[score] for result in results]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < each < 1 for each in scores)
    return [result["index"] for result in results]


# --- Cohere's interface


@pytest.mark.parametrize("extra", [{"max_tokens_per_doc": None}, {"max_tokens_per_doc": 4096}, {"priority": 0}])
def test_langchain_cohere_rerank_and_haystack_cohere_ranker(client: TestClient, extra: dict[str, Any]) -> None:
    body = {"model": "rerank-v3.5", "query": QUERY, "documents": TEXTS, "top_n": 3, **extra}
    told = sent(client, "/v2/rerank", body, Authorization="Bearer k", X_Client_Name="langchain:partner")
    assert ordered(told["results"]) == BEST


def test_cohere_v1_as_dify_calls_it(client: TestClient) -> None:
    body = {
        "query": QUERY,
        "documents": TEXTS,
        "model": "rerank-english-v2.0",
        "top_n": 2,
        "rank_fields": None,
        "return_documents": True,
        "max_chunks_per_doc": None,
    }
    results = sent(client, "/v1/rerank", body)["results"]
    assert ordered(results) == BEST[:2]
    assert results[0]["document"]["text"] == TEXTS[1]


def test_litellm_over_infinity_cohere_and_vllm(client: TestClient) -> None:
    body = {"model": "m", "query": QUERY, "documents": TEXTS, "top_n": 2, "return_documents": True}
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        told = sent(client, path, body)
        assert ordered(told["results"]) == BEST[:2]
        assert told["usage"]["total_tokens"] > 0
        assert {"id", "meta"} <= set(told)


# --- Jina's and vLLM's


def test_litellm_as_infinitys_or_vllms_client_gets_no_documents(client: TestClient) -> None:
    body = {"model": "m", "query": QUERY, "documents": TEXTS, "return_documents": True}
    agent = {"User_Agent": "litellm/1.109.1"}
    told = sent(client, "/rerank", body, **agent)
    assert ordered(told["results"]) == BEST
    assert not any("document" in result for result in told["results"])
    named = sent(client, "/rerank", body, X_Rerank_Dialect="infinity", **agent)
    assert [result["document"] for result in named["results"]] == [TEXTS[at] for at in BEST]
    assert "document" in sent(client, "/v1/rerank", body, **agent)["results"][0]


def test_jina_as_langchain_llama_index_and_librechat_call_it(client: TestClient) -> None:
    body = {"query": QUERY, "documents": TEXTS, "model": "jina-reranker-v1", "top_n": 3}
    assert ordered(sent(client, "/v1/rerank", body, Authorization="Bearer k")["results"]) == BEST


def test_jina_as_haystack_calls_it(client: TestClient) -> None:
    body = {"query": QUERY, "documents": TEXTS, "model": "jina-reranker-v1", "top_n": 3}
    told = sent(client, "/v1/rerank", body, X_Rerank_Dialect="jina")
    assert ordered(told["results"]) == BEST
    assert told["model"]
    assert told["usage"]["total_tokens"] > 0


def test_vllm_as_haystack_calls_it(client: TestClient) -> None:
    body = {"model": "m", "query": QUERY, "documents": TEXTS, "top_n": 3, "truncate_prompt_tokens": -1}
    assert ordered(sent(client, "/v1/rerank", body)["results"]) == BEST


def test_jina_errors_have_a_detail(client: TestClient) -> None:
    told = client.post("/v1/rerank", json={"query": "", "documents": TEXTS, "model": "m"})
    assert "results" not in told.json()
    assert told.json()["detail"] == "query: must not be empty"


# --- Open WebUI, Dify, RAGFlow


def test_open_webui_finds_every_index_with_an_empty_key(client: TestClient) -> None:
    body = {"model": "reranker", "query": QUERY, "documents": TEXTS, "top_n": len(TEXTS)}
    headers = {"Authorization": "Bearer ", "X_OpenWebUI_User_Id": "1"}
    results = sent(client, "/v1/rerank", body, **headers)["results"]
    assert sorted(result["index"] for result in results) == [0, 1, 2]


def test_dify_openai_compatible(client: TestClient) -> None:
    body = {"model": "m", "query": QUERY, "documents": TEXTS, "top_n": 3}
    assert ordered(sent(client, "/rerank", body)["results"]) == BEST
    body = {**body, "top_n": 0, "return_documents": True}  # its older base class
    results = sent(client, "/rerank", body)["results"]
    assert [result["document"]["text"] for result in results] == [TEXTS[at] for at in BEST]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
def test_dify_localai_and_gpustack_take_a_document_that_is_there_for_an_object(client: TestClient, path: str) -> None:
    body: dict[str, Any] = {"model": "m", "query": QUERY, "documents": TEXTS, "top_n": 3}
    for result in sent(client, path, body)["results"]:
        text = result["document"]["text"] if "document" in result else TEXTS[result["index"]]
        assert text == TEXTS[result["index"]]


def test_dify_siliconflow_and_xinference(client: TestClient) -> None:
    body = {"model": "m", "query": QUERY, "documents": TEXTS, "top_n": 3, "return_documents": True}
    for result in sent(client, "/v1/rerank", body)["results"]:
        assert result["document"]["text"] == TEXTS[result["index"]]


def test_dify_voyage(client: TestClient) -> None:
    body = {"model": "rerank-2", "query": QUERY, "documents": TEXTS, "top_k": 2, "return_documents": True}
    told = sent(client, "/v1/rerank", body)
    assert ordered(told["data"]) == BEST[:2]
    assert [each["document"] for each in told["data"]] == [TEXTS[at] for at in BEST[:2]]
    assert told["usage"]["total_tokens"] > 0


def test_dify_huggingface_tei(client: TestClient) -> None:
    info = client.get("/info").json()
    assert list(info["model_type"]) == ["reranker"]
    assert min(info["max_input_length"], info["max_client_batch_size"]) > 0
    told = sent(client, "/rerank", {"query": QUERY, "texts": TEXTS, "return_text": True})
    assert ordered(told, "score") == BEST
    assert [each["text"] for each in told] == [TEXTS[at] for at in BEST]
    assert len(sent(client, "/v1/embeddings", {"input": TEXTS})["data"]) == 3


def test_ragflow_sends_booleans_as_strings(client: TestClient) -> None:
    body = {"model": "m", "query": QUERY, "return_documents": "true", "return_len": "true", "documents": TEXTS}
    told = sent(client, "/v1/rerank", body)
    tokens = told["meta"]["tokens"]
    assert tokens["input_tokens"] + tokens["output_tokens"] == told["usage"]["total_tokens"]
    assert sorted(result["index"] for result in told["results"]) == [0, 1, 2]


# --- TEI's


def test_llama_index_tei_with_a_bare_key(client: TestClient) -> None:
    told = sent(client, "/rerank", {"query": QUERY, "texts": TEXTS}, Authorization="k")
    assert len(told) == len(TEXTS)
    assert ordered(told, "score") == BEST
    assert all(set(each) == {"index", "score"} for each in told)


@pytest.mark.parametrize("direction", ["Left", "Right", "left", None])
def test_haystack_tei_ranker(client: TestClient, direction: str | None) -> None:
    body = {"query": QUERY, "texts": TEXTS, "raw_scores": True, "truncate": None, "truncation_direction": direction}
    told = sent(client, "/rerank", body)
    assert [(each["index"], each["score"]) for each in told] == [(1, 3.0), (2, 1.0), (0, 0.0)]


def test_litellm_huggingface(client: TestClient) -> None:
    body = {
        "query": QUERY,
        "texts": TEXTS,
        "top_n": 2,
        "return_text": True,
        "raw_scores": False,
        "truncate": False,
        "truncation_direction": "Right",
    }
    assert ordered(sent(client, "/rerank", body), "score") == BEST[:2]


# --- infinity's, Voyage's, the rerankers package


def test_infinity_client_as_langchain_calls_it(client: TestClient) -> None:
    body = {"query": QUERY, "documents": TEXTS, "model": "m"}
    for dialect in ({}, {"X_Rerank_Dialect": "infinity"}):
        told = sent(client, "/rerank", body, **dialect)
        assert ordered(told["results"]) == BEST
        assert told["model"]
        assert {"prompt_tokens", "total_tokens"} <= set(told["usage"])
    told = sent(client, "/embeddings", {"input": TEXTS, "model": "m"})
    assert [len(each["embedding"]) for each in told["data"]] == [16, 16, 16]


@pytest.mark.parametrize("top_k", [None, 2])
def test_voyages_own_client(client: TestClient, top_k: int | None) -> None:
    body = {"query": QUERY, "documents": TEXTS, "model": "rerank-2", "top_k": top_k, "truncation": True}
    assert ordered(sent(client, "/v1/rerank", body)["data"]) == BEST[:top_k]


def test_rerankers_package(client: TestClient) -> None:
    body = {"model": "m", "query": QUERY, "documents": TEXTS, "return_documents": True}
    assert ordered(sent(client, "/v1/rerank", {**body, "top_n": 3})["results"]) == BEST
    assert ordered(sent(client, "/v1/rerank", {**body, "top_k": 3})["data"]) == BEST
    assert ordered(sent(client, "/rerank", {"query": QUERY, "texts": TEXTS}), "score") == BEST


def test_openais_own_client(client: TestClient) -> None:
    body = {"input": TEXTS, "model": "text-embedding-3-small", "encoding_format": "base64"}
    told = sent(client, "/v1/embeddings", body, Authorization="Bearer k")
    assert all(isinstance(each["embedding"], str) for each in told["data"])
