"""Voyage's own client."""

import pytest
import voyageai
from voyageai import error


def test_rerank(url: str, query: str, texts: list[str]) -> None:
    client = voyageai.Client(api_key="key", base_url=f"{url}/v1")
    answer = client.rerank(query, texts, model="any")
    assert [answer.results[0].index, answer.results[0].document] == [1, texts[1]]
    assert len(answer.results) == 3
    assert answer.total_tokens > 20
    assert [each.index for each in client.rerank(query, texts, model="any", top_k=1).results] == [1]


def test_errors_are_the_sdks_own(url: str, texts: list[str]) -> None:
    client = voyageai.Client(api_key="key", base_url=f"{url}/v1")
    with pytest.raises(error.VoyageError, match="must not be empty"):
        client.rerank("", texts, model="any")
