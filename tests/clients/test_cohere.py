"""Cohere's own clients of both versions; run with an earlier and a later series of the SDK."""

import cohere
import pytest


def test_version_2(url: str, query: str, texts: list[str]) -> None:
    answer = cohere.ClientV2("key", base_url=url).rerank(model="any", query=query, documents=texts)
    assert sorted(each.index for each in answer.results) == [0, 1, 2]
    assert answer.results[0].index == 1
    scores = [each.relevance_score for each in answer.results]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)
    assert answer.id
    assert answer.meta.billed_units.search_units == 1
    assert answer.meta.tokens.input_tokens > 20


def test_top_n_and_the_models_bound_on_tokens(url: str, query: str, texts: list[str]) -> None:
    client = cohere.ClientV2("key", base_url=url)
    answer = client.rerank(model="any", query=query, documents=texts, top_n=1, max_tokens_per_doc=100)
    assert [each.index for each in answer.results] == [1]
    assert client.rerank(model="any", query=query, documents=[]).results == []


def test_version_1_with_documents_as_objects(url: str, query: str, texts: list[str]) -> None:
    documents = [{"text": text, "id": f"d{at}"} for at, text in enumerate(texts)]
    answer = cohere.Client("key", base_url=url).rerank(
        model="any", query=query, documents=documents, return_documents=True, top_n=2
    )
    assert answer.results[0].index == 1
    assert answer.results[0].document.text == texts[1]
    assert len(answer.results) == 2


def test_version_1_without_documents(url: str, query: str, texts: list[str]) -> None:
    answer = cohere.Client("key", base_url=url).rerank(query=query, documents=texts, return_documents=False)
    assert answer.results[0].document is None


def test_what_is_cut_is_told(url: str, query: str, texts: list[str]) -> None:
    long = [*texts, "wool " * 500]
    answer = cohere.ClientV2("key", base_url=url).rerank(model="any", query=query, documents=long)
    assert any("1 documents" in warning for warning in answer.meta.warnings)


def test_errors_are_the_sdks_own(url: str, texts: list[str]) -> None:
    with pytest.raises(cohere.UnprocessableEntityError) as raised:
        cohere.ClientV2("key", base_url=url).rerank(model="any", query=" ", documents=texts)
    assert "query: must not be empty" in str(raised.value.body)


def test_async(url: str, query: str, texts: list[str]) -> None:
    import asyncio

    async def call() -> int:
        answer = await cohere.AsyncClientV2("key", base_url=url).rerank(model="any", query=query, documents=texts)
        return answer.results[0].index

    assert asyncio.run(call()) == 1
