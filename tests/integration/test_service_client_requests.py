"""What known clients send, literally, and what each of them looks for in the answer.

docs/how-to/other-clients.md lists the clients; those that install are also run themselves (tests/clients).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx2
import pytest
from in_process import TestClient
from service_fakes import build_store, words_app

QUERY = "w1 w2 w3"
TEXTS = ["w9", "w1 w2 w3", "w1 w8"]
BEST = [1, 2, 0]  # by the words shared with the query
DOCUMENTS = {"query": QUERY, "documents": TEXTS, "model": "m"}
OF_TEI = {"query": QUERY, "texts": TEXTS}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    root = tmp_path_factory.mktemp("store")
    build_store(root)
    with TestClient(words_app(root, reranker="cross")) as client:
        yield client


def sent(client: TestClient, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
    response: httpx2.Response = client.post(path, json=body, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()


class Reranking(NamedTuple):
    """A client's request to rerank, beside what all send, and where it finds what it looks for.

    Attributes:
        most: how many results come.
        results: the field that lists them; empty: the answer is the list.
        text: the fields of a result that lead to the document's text; None: the client takes only the index.
    """

    client: str
    path: str
    fields: dict[str, Any]
    most: int = 3
    body: dict[str, Any] = DOCUMENTS
    headers: dict[str, str] | None = None
    results: str = "results"
    text: tuple[str, ...] | None = None


def of_tei(client: str, most: int = 3, text: tuple[str, ...] | None = None, **fields: Any) -> Reranking:
    return Reranking(client, "/rerank", fields, most, OF_TEI, results="", text=text)


def of_voyage(client: str, most: int, text: tuple[str, ...] | None = None, **fields: Any) -> Reranking:
    return Reranking(client, "/v1/rerank", fields, most, results="data", text=text)


KEY = {"Authorization": "Bearer k"}
INFINITY = {"X-Rerank-Dialect": "infinity"}
LITELLM = {"User-Agent": "litellm/1.109.1"}
RETURNED = {"return_documents": True}
OBJECT, STRING = ("document", "text"), ("document",)
TO_HUGGING_FACE = {"raw_scores": False, "truncate": False, "truncation_direction": "Right"}

RERANKINGS = [
    *(
        Reranking(
            "langchain_cohere, Haystack", "/v2/rerank", {"top_n": 3, **extra}, headers={**KEY, "X-Client-Name": "a"}
        )
        for extra in ({"max_tokens_per_doc": None}, {"max_tokens_per_doc": 4096}, {"priority": 0})
    ),
    Reranking(
        "Dify, Cohere v1",
        "/v1/rerank",
        {"top_n": 2, "rank_fields": None, "max_chunks_per_doc": None, **RETURNED},
        most=2,
        text=OBJECT,
    ),
    *(Reranking("LiteLLM", path, {"top_n": 2, **RETURNED}, 2) for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
    Reranking("LiteLLM, infinity", "/rerank", RETURNED, headers={**LITELLM, **INFINITY}, text=STRING),
    Reranking("LiteLLM, Jina", "/v1/rerank", RETURNED, headers=LITELLM, text=OBJECT),
    Reranking("LangChain, LlamaIndex, LibreChat, Jina", "/v1/rerank", {"top_n": 3}, headers=KEY),
    Reranking("Haystack, Jina", "/v1/rerank", {"top_n": 3}, headers={"X-Rerank-Dialect": "jina"}),
    Reranking("Haystack, vLLM", "/v1/rerank", {"top_n": 3, "truncate_prompt_tokens": -1}),
    Reranking("Open WebUI", "/v1/rerank", {"top_n": 3}, headers={"Authorization": "Bearer "}),
    Reranking("Dify, OpenAI-compatible", "/rerank", {"top_n": 3}),
    Reranking("Dify, its older base class", "/rerank", {"top_n": 0, **RETURNED}, text=OBJECT),
    Reranking("Dify, SiliconFlow and Xinference", "/v1/rerank", {"top_n": 3, **RETURNED}, text=OBJECT),
    of_voyage("Dify, Voyage", 2, STRING, top_k=2, **RETURNED),
    of_voyage("Voyage's own", 3, top_k=None, truncation=True),
    of_voyage("Voyage's own, some", 2, top_k=2, truncation=True),
    of_voyage("rerankers, Voyage", 3, top_k=3, **RETURNED),
    Reranking("rerankers", "/v1/rerank", {"top_n": 3, **RETURNED}, text=OBJECT),
    Reranking("RAGFlow", "/v1/rerank", {"return_documents": "true", "return_len": "true"}, text=OBJECT),
    Reranking("langchain, infinity", "/rerank", {}),
    Reranking("langchain, infinity by the header", "/rerank", {}, headers=INFINITY),
    of_tei("Dify, TEI", text=("text",), return_text=True),
    of_tei("LlamaIndex, rerankers"),
    of_tei("LiteLLM, Hugging Face", 2, ("text",), top_n=2, return_text=True, **TO_HUGGING_FACE),
]


@pytest.mark.parametrize("asked", RERANKINGS, ids=lambda asked: f"{asked.client} {asked.path} {asked.fields}")
def test_a_client_that_reranks_finds_what_it_looks_for(client: TestClient, asked: Reranking) -> None:
    told = sent(client, asked.path, {**asked.body, **asked.fields}, asked.headers)
    results = told[asked.results] if asked.results else told
    scores = [result["relevance_score" if asked.results else "score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < each < 1 for each in scores)
    assert [result["index"] for result in results] == BEST[: asked.most]
    if asked.results:
        assert told["model"]
        assert told["usage"]["total_tokens"] > 0
    if asked.results == "results":
        assert {"id", "meta"} <= set(told)
        tokens = told["meta"]["tokens"]
        assert tokens["input_tokens"] + tokens["output_tokens"] == told["usage"]["total_tokens"]
    if asked.text is None and not asked.fields.get("return_documents"):
        assert not {"document", "text"} & {name for result in results for name in result}
    for result, at in zip(results, BEST, strict=False):
        found = result
        for name in asked.text or ():
            found = found[name]
        assert asked.text is None or found == TEXTS[at]


@pytest.mark.parametrize("direction", ["Left", "Right", "left", None])
def test_haystack_tei_ranker(client: TestClient, direction: str | None) -> None:
    told = sent(client, "/rerank", {**OF_TEI, "raw_scores": True, "truncate": None, "truncation_direction": direction})
    assert [(each["index"], each["score"]) for each in told] == [(1, 3.0), (2, 1.0), (0, 0.0)]
