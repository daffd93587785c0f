"""LiteLLM, as each of the clients that it has for rerankers."""

import os

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # not from the network

import litellm


@pytest.mark.parametrize("provider", ["hosted_vllm", "cohere", "jina_ai", "huggingface"])
def test_it_reranks(url: str, query: str, texts: list[str], provider: str) -> None:
    served = {"model": f"{provider}/any", "api_base": url, "api_key": "key"}
    found = litellm.rerank(**served, query=query, documents=texts).results
    scores = [each["relevance_score"] for each in found]
    assert sorted(each["index"] for each in found) == [0, 1, 2]
    assert found[0]["index"] == 1
    assert scores == sorted(scores, reverse=True)


def test_it_embeds(url: str, texts: list[str]) -> None:
    made = litellm.embedding(model="openai/any", input=texts, api_base=f"{url}/v1", api_key="key")
    assert [len(each["embedding"]) for each in made.data] == [384] * 3
