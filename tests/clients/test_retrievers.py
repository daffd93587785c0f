"""The retrievers of `examples/retrievers`, and the client in an environment without torch."""

import asyncio
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from conftest import ROOT
from haystack import Pipeline

import polyrank


def retriever_of(framework: str) -> Any:
    """The retriever of `examples/retrievers`."""
    code = (ROOT / "examples" / "retrievers" / f"with_{framework}.py").read_text(encoding="utf-8")
    defined: dict[str, Any] = {"__name__": f"with_{framework}"}
    exec(code, defined)
    return defined["PolyrankRetriever"]


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[polyrank.Client]:
    with polyrank.Client(url) as client:
        yield client


@pytest.fixture(scope="module")
def best(client: polyrank.Client, query: str) -> list[Any]:
    return client.rank(query, top_k=3).results


def test_the_client_needs_no_torch(client: polyrank.Client, query: str, texts: list[str]) -> None:
    assert client.rerank(query, texts)[0].index == 1
    assert client.embed(texts).shape == (3, 384)
    assert find_spec("torch") is None
    assert "fastapi" not in sys.modules


def test_langchain(client: polyrank.Client, query: str, best: list[Any]) -> None:
    retriever = retriever_of("langchain")(client=client, top_k=3)
    for found in (retriever.invoke(query), asyncio.run(retriever.ainvoke(query))):
        assert [each.page_content for each in found] == [reply.text for reply in best]
        assert [each.id for each in found] == [reply.id for reply in best]
        assert found[0].metadata["score"] == pytest.approx(best[0].score, abs=1e-4)


def test_llama_index(client: polyrank.Client, query: str, best: list[Any]) -> None:
    found = retriever_of("llama_index")(client, top_k=3).retrieve(query)
    assert [each.node.text for each in found] == [reply.text for reply in best]
    assert [each.score for each in found] == pytest.approx([reply.score for reply in best], abs=1e-4)


def test_haystack_in_a_pipeline(url: str, query: str, best: list[Any]) -> None:
    pipeline = Pipeline()
    pipeline.add_component("retriever", retriever_of("haystack")(url, top_k=3))
    found = pipeline.run({"retriever": {"query": query}})["retriever"]["documents"]
    assert [each.content for each in found] == [reply.text for reply in best]
    assert [each.score for each in found] == pytest.approx([reply.score for reply in best], abs=1e-4)
    assert pipeline.to_dict()["components"]["retriever"]["init_parameters"] == {"url": url, "top_k": 3}
