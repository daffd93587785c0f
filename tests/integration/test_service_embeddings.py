"""Embeddings, similarities, tokens and models, as clients of OpenAI and TEI ask for them, over real models."""

import base64
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from in_process import TestClient
from numpy.typing import NDArray
from service_fakes import build_store, load, pool
from tiny import CLS, SEP, tiny_app, word_ids, write_checkpoint

import polyrank
from polyrank.index_builder.building.pipeline import build
from polyrank.model.rankers.networks import VectorRanker
from polyrank.service.app import create_app
from polyrank.service.http.compat import embeddings
from polyrank.service.http.compat.cohere import AnyErrorOut, CohereEmbedOut
from polyrank.service.http.compat.openai import EmbeddingsOut, ModelsOut, OpenAiErrorOut
from polyrank.service.http.compat.tei import EmbedOut, SimilarityOut, TeiErrorOut, TokenizeOut
from polyrank.service.http.plumbing import bodies
from polyrank.service.settings import Settings

TEXTS = ["w1 w2", "w3", "w1 w2 w4 w5"]


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> VectorRanker:
    """A model whose vectors have no length in common."""
    directory = tmp_path_factory.mktemp("checkpoint")
    loaded = polyrank.load(write_checkpoint(directory, "plain", 3, architecture="poly", n_codes=2, normalize=False))
    assert isinstance(loaded, VectorRanker)
    return loaded


@pytest.fixture(scope="module")
def client(ranker: VectorRanker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    root = tmp_path_factory.mktemp("store")
    build(ranker, pool(5), root)
    with TestClient(tiny_app(store=root, max_candidates=5, max_text_chars=400)) as client:
        yield client


@pytest.fixture(scope="module")
def vectors(ranker: VectorRanker) -> NDArray[np.float32]:
    return ranker.encode_candidates(ranker.tokenize_candidates(TEXTS)[0])


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def post(client: TestClient, path: str, **body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def refused(response: httpx2.Response, status: int, kind: Any) -> str:
    assert response.status_code == status, response.text
    kind.model_validate(response.json())
    return response.text


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
def test_vectors_of_length_one_in_the_order_sent(client: TestClient, vectors: Any, path: str) -> None:
    told = post(client, path, input=TEXTS, model="text-embedding-3")
    EmbeddingsOut.model_validate(told)
    assert [each["index"] for each in told["data"]] == [0, 1, 2]
    np.testing.assert_allclose([each["embedding"] for each in told["data"]], unit(vectors), atol=1e-6)
    assert told["model"] == client.get("/v1/models").json()["data"][0]["id"]


def test_base64_is_float32_in_little_endian(client: TestClient) -> None:
    floats = post(client, "/v1/embeddings", input=TEXTS, encoding_format="float")["data"]
    coded = post(client, "/v1/embeddings", input=TEXTS, encoding_format="base64")["data"]
    for one, other in zip(floats, coded, strict=True):
        read = np.frombuffer(base64.b64decode(other["embedding"]), "<f4")
        np.testing.assert_allclose(read, one["embedding"], atol=1e-6)


def test_one_text_and_the_tokens_that_were_read(client: TestClient) -> None:
    told = post(client, "/v1/embeddings", input="w1 w2")
    assert len(told["data"]) == 1
    assert told["usage"] == {"prompt_tokens": 4, "total_tokens": 4}  # with [CLS] and [SEP]
    assert len(post(client, "/v1/embeddings", input=["", "w1"])["data"]) == 2


def test_texts_that_are_too_long_are_cut_and_told(client: TestClient) -> None:
    response = client.post("/v1/embeddings", json={"input": ["w1 " * 30, "w2"]})
    assert response.headers["x-truncated-texts"] == "1"
    assert response.json()["usage"]["total_tokens"] == 16 + 3
    assert float(response.headers["x-inference-time"]) > 0


@pytest.mark.parametrize(("letters", "is_beside"), [(100, False), (20_000, True)])
def test_many_letters_are_checked_beside_the_event_loop(tmp_path, letters: int, is_beside: bool, monkeypatch) -> None:
    build_store(tmp_path / "store")
    checked_by: set[str] = set()
    monkeypatch.setattr(bodies, "INLINE_VALUES", 200)  # fewer letters than with the usual bound do
    monkeypatch.setattr(embeddings, "check_limit", lambda *_: checked_by.add(threading.current_thread().name))
    with TestClient(create_app(Settings(store=tmp_path / "store"), load)) as client:
        for path, body in (("/embed", {"inputs": []}), ("/v2/embed", {"texts": [], "max_tokens": 5})):
            sent = {name: ["w1 " * (letters // 3)] * 60 if value == [] else value for name, value in body.items()}
            assert client.post(path, json=sent).status_code == 200
    assert [name == "reading_0" for name in checked_by] == [is_beside]


def test_what_cannot_be_embedded(client: TestClient) -> None:
    def told(status: int, **body: Any) -> str:
        return refused(client.post("/v1/embeddings", json=body), status, OpenAiErrorOut)

    for ids in ([1, 2], [[1], [2, 3]]):
        assert "input.0: must be a string" in told(422, input=ids)
    assert "input.1: must be a string" in told(422, input=["w1", 1])
    for wrong in ([[]], [-1], [1.5], [2**70], [[True]], 5, {"text": "a"}, None):
        told(422, input=wrong)
    told(422, input=["w1"], encoding_format="int8")
    told(422, input="w" * 401)
    told(400, input=[])
    told(413, input=["w1"] * 6)
    assert "other" in told(404, input="w1", model="other", strict_model=True)
    refused(
        client.post("/v1/embeddings", content=b"[", headers={"content-type": "application/json"}), 400, OpenAiErrorOut
    )


def test_the_root_embeds_as_tei_does_and_needs_no_content_type(client: TestClient) -> None:
    embedded = post(client, "/embed", inputs=TEXTS)
    again = post(client, "/", inputs=TEXTS, normalize=None)
    np.testing.assert_allclose(again, embedded, atol=1e-6)  # what is in a batch may differ
    bare = client.post("/", content=b'{"inputs": "w1 w2"}')
    assert (bare.request.headers.get("content-type"), bare.status_code) == (None, 200)
    np.testing.assert_allclose(bare.json(), embedded[:1], atol=1e-6)
    refused(client.post("/", json={"inputs": []}), 400, TeiErrorOut)
    refused(client.post("/", content=b"{}", headers={"content-type": "text/plain"}), 415, TeiErrorOut)


def test_cohere_embeds_in_each_type(client: TestClient, vectors: Any) -> None:
    types = ["float", "base64", "binary", "ubinary"]
    told = post(client, "/v2/embed", texts=TEXTS, model="m", input_type="search_document", embedding_types=types)
    CohereEmbedOut.model_validate(told)
    made = told["embeddings"]
    assert [*made] == types
    np.testing.assert_allclose(made["float"], unit(vectors), atol=1e-6)
    decoded = [np.frombuffer(base64.b64decode(each), "<f4") for each in made["base64"]]
    np.testing.assert_allclose(decoded, made["float"], atol=1e-7)
    assert made["ubinary"] == np.packbits(np.asarray(made["float"]) > 0, axis=1).tolist()
    assert [[value + 128 for value in each] for each in made["binary"]] == made["ubinary"]
    assert (told["texts"], told["response_type"]) == (TEXTS, "embeddings_by_type")
    assert told["meta"]["billed_units"]["input_tokens"] > 0


def test_cohere_embeds_as_each_version_does(client: TestClient) -> None:
    bare = post(client, "/v1/embed", texts=TEXTS, embedding_types=None, truncate="END")
    assert (bare["response_type"], bare["meta"]["api_version"]) == ("embeddings_floats", {"version": "1"})
    second = post(client, "/v2/embed", texts=TEXTS)
    assert (second["embeddings"], second["meta"]["api_version"]) == ({"float": bare["embeddings"]}, {"version": "2"})
    warned = post(client, "/v2/embed", texts=["w1 " * 30, "w2"])["meta"]["warnings"]
    assert warned == ["truncated: 1 texts lost their end"]


def test_what_cohere_cannot_embed(client: TestClient) -> None:
    def told(status: int, **body: Any) -> str:
        return refused(client.post("/v2/embed", json={"texts": ["w1"], **body}), status, AnyErrorOut)

    assert "several vectors of one query" in told(422, input_type="search_query")
    assert "texts.0" in told(422, texts=[" "], input_type="search_query")
    assert "output_dimension" in told(422, output_dimension=3)
    told(422, embedding_types=["int8"])
    told(422, input_type="image")
    told(400, texts=[])


def test_one_name_for_all_models(tmp_path: Path) -> None:
    build_store(tmp_path)
    settings = Settings(store=tmp_path, reranker="cross", served_model_name="support", strict_model=True)
    with TestClient(create_app(settings, load, load)) as client:
        [listed] = client.get("/v1/models").json()["data"]
        assert (listed["id"], listed["capabilities"]) == ("support", ["rerank", "embed"])
        assert post(client, "/v1/embeddings", input="w1", model="support")["model"] == "support"
        assert post(client, "/v2/rerank", query="w1", documents=["w1"], model="support")["model"] == "support"
        assert post(client, "/v2/rerank", query="w1", documents=["w1"], model="overlap")["model"] == "support"
        assert client.post("/v1/embeddings", json={"input": "w1", "model": "other"}).status_code == 404
        info = client.get("/info").json()
        assert (info["served_model_name"], info["model_id"]) == ("support", "overlap")


def test_tei_embeds(client: TestClient, vectors: Any) -> None:
    told = post(client, "/embed", inputs=TEXTS, truncate=True, prompt_name=None)
    EmbedOut.model_validate(told)
    np.testing.assert_allclose(told, unit(vectors), atol=1e-6)
    np.testing.assert_allclose(post(client, "/embed", inputs=TEXTS, normalize=False), vectors, atol=1e-5)
    assert len(post(client, "/embed", inputs="w1")) == 1
    refused(client.post("/embed", json={"inputs": []}), 400, TeiErrorOut)
    refused(client.post("/embed", json={}), 422, TeiErrorOut)


def test_tei_compares(client: TestClient, vectors: Any) -> None:
    told = post(client, "/similarity", inputs={"source_sentence": TEXTS[0], "sentences": TEXTS}, parameters=None)
    SimilarityOut.model_validate(told)
    np.testing.assert_allclose(told, unit(vectors) @ unit(vectors)[0], atol=1e-5)
    refused(client.post("/similarity", json={"inputs": {"source_sentence": "w1", "sentences": []}}), 400, TeiErrorOut)
    for wrong in ("w1", {"source_sentence": "w1"}):
        refused(client.post("/similarity", json={"inputs": wrong}), 422, TeiErrorOut)


def test_tei_tokenizes(client: TestClient) -> None:
    [told] = post(client, "/tokenize", inputs="w1  w39 [SEP]")
    TokenizeOut.model_validate([told])
    assert [each["id"] for each in told][:3] == [CLS, *word_ids("w1 w39")]
    assert told[0] == {"id": CLS, "text": "[CLS]", "special": True, "start": None, "stop": None}
    assert told[2] == {**told[2], "text": "w39", "special": False, "start": 4, "stop": 7}
    assert told[-1]["id"] == SEP
    assert not any(each["special"] for each in told[1:-1])
    [bare] = post(client, "/tokenize", inputs=["w1 " * 30], add_special_tokens=False)
    assert [each["id"] for each in bare] == word_ids("w1 " * 30)


@pytest.fixture
def words(tmp_path: Path) -> Iterator[TestClient]:
    """A server with a model of words."""
    build_store(tmp_path)
    with TestClient(create_app(Settings(store=tmp_path), load)) as client:
        yield client


def test_what_tokenizing_may_cost_is_bounded(words: TestClient) -> None:
    texts = ["w1 " * 5000] * 27  # 405,000 characters
    assert "405000 characters" in refused(words.post("/tokenize", json={"inputs": texts}), 422, TeiErrorOut)
    assert len(post(words, "/tokenize", inputs=texts[:2])) == 2


def test_tokenizing_keeps_to_its_deadline_and_to_the_tokenizers_thread(words: TestClient, monkeypatch) -> None:
    threads: list[str] = []

    def slow(texts: list[str], wrapped: bool) -> list[Any]:
        threads.append(threading.current_thread().name)
        time.sleep(0.05)
        return [[] for _ in texts]

    monkeypatch.setattr(words.app.state.resources.live.current.ranker, "pieces", slow)
    late = words.post("/tokenize", json={"inputs": ["w1 w2 w3 w4"] * 100}, headers={"X-Request-Timeout-Ms": "120"})
    assert late.status_code == 504, "the texts are read one at a time"
    assert len(threads) < 10, "what had not begun was dropped"
    assert {name.split("_")[0] for name in threads} == {"tokenizer"}


def test_nothing_is_served_yet(tmp_path: Path) -> None:
    with TestClient(create_app(Settings(store=tmp_path))) as client:
        refused(client.post("/v1/embeddings", json={"input": "w1"}), 503, OpenAiErrorOut)
        for path in ("/embed", "/tokenize"):
            assert "Unhealthy" in refused(client.post(path, json={"inputs": "w1"}), 503, TeiErrorOut)
        for path in ("/v1/models", "/models"):
            assert ModelsOut.model_validate(client.get(path).json()).data == []
