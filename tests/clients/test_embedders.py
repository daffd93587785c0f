"""Embedders of Hugging Face, Haystack and LangChain, and Cohere's."""

import cohere
import numpy as np
import pytest
from haystack.dataclasses import Document
from haystack.utils import Secret
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
)
from huggingface_hub import InferenceClient
from langchain_openai import OpenAIEmbeddings


@pytest.fixture(scope="module")
def vectors(url: str, texts: list[str]) -> np.ndarray:
    return np.array([embedded(url, text) for text in texts])


def embedded(url: str, text: str) -> list[float]:
    [vector] = InferenceClient(url).feature_extraction(text).tolist()
    return vector


def test_hugging_face(url: str, query: str, vectors: np.ndarray) -> None:
    assert vectors.shape == (3, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1], abs=1e-5)
    plain = InferenceClient(url).feature_extraction(query, normalize=False, truncate=True)
    assert plain.shape == (1, 384)


def test_haystack(url: str, texts: list[str], vectors: np.ndarray) -> None:
    served = {"api_type": "text_embeddings_inference", "api_params": {"url": url}, "token": Secret.from_token("key")}
    one = HuggingFaceAPITextEmbedder(**served).run(text=texts[0])["embedding"]
    assert one == pytest.approx(vectors[0].tolist(), abs=1e-6)
    documents = [Document(content=text) for text in texts]
    made = HuggingFaceAPIDocumentEmbedder(**served, progress_bar=False).run(documents=documents)["documents"]
    np.testing.assert_allclose([each.embedding for each in made], vectors, atol=1e-6)


def test_langchain(url: str, texts: list[str], vectors: np.ndarray) -> None:
    embedder = OpenAIEmbeddings(model="any", base_url=f"{url}/v1", api_key="key", check_embedding_ctx_length=False)
    np.testing.assert_allclose(embedder.embed_documents(texts), vectors, atol=1e-6)
    assert embedder.embed_query(texts[0]) == pytest.approx(vectors[0].tolist(), abs=1e-6)


def test_cohere(url: str, texts: list[str], vectors: np.ndarray) -> None:
    types = ["float", "base64", "binary", "ubinary"]
    second = cohere.ClientV2("key", base_url=url).embed(
        model="any", input_type="search_document", texts=texts, embedding_types=types
    )
    np.testing.assert_allclose(second.embeddings.float_, vectors, atol=1e-6)
    assert second.embeddings.ubinary == np.packbits(vectors > 0, axis=1).tolist()
    assert [[value + 128 for value in each] for each in second.embeddings.binary] == second.embeddings.ubinary
    assert second.meta.billed_units.input_tokens > 20
    first = cohere.Client("key", base_url=url).embed(texts=texts, model="any", input_type="search_document")
    np.testing.assert_allclose(first.embeddings, vectors, atol=1e-6)


def test_a_poly_encoder_says_why_it_embeds_no_queries(url: str, query: str) -> None:
    with pytest.raises(cohere.UnprocessableEntityError) as raised:
        cohere.ClientV2("key", base_url=url).embed(
            model="any", input_type="search_query", texts=[query], embedding_types=["float"]
        )
    assert "several vectors of one query" in str(raised.value.body)
