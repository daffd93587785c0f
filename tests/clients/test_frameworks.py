"""Rerankers of LangChain, LlamaIndex and Haystack."""

from haystack import Document as HaystackDocument
from haystack.utils import Secret
from haystack_integrations.components.rankers.cohere import CohereRanker
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from haystack_integrations.components.rankers.jina import JinaRanker
from haystack_integrations.components.rankers.vllm import VLLMRanker
from langchain_cohere import CohereRerank
from langchain_core.documents import Document
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.postprocessor.jinaai_rerank import JinaRerank
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference


def test_langchain(url: str, query: str, texts: list[str]) -> None:
    reranker = CohereRerank(base_url=url, cohere_api_key="key", model="any", top_n=2)
    documents = [Document(page_content=text, metadata={"at": at}) for at, text in enumerate(texts)]
    found = reranker.compress_documents(documents, query)
    assert [found[0].page_content, len(found)] == [texts[1], 2]
    assert 0 < found[1].metadata["relevance_score"] <= found[0].metadata["relevance_score"] < 1


def test_llama_index(url: str, query: str, texts: list[str]) -> None:
    reranker = TextEmbeddingInference(base_url=url, top_n=2, auth_token="key")
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.5) for text in texts]
    found = reranker.postprocess_nodes(nodes, QueryBundle(query))
    assert [found[0].node.text, len(found)] == [texts[1], 2]
    assert 0 < found[1].score <= found[0].score < 1


def test_llama_index_for_jina(url: str, query: str, texts: list[str]) -> None:
    reranker = JinaRerank(base_url=f"{url}/v1", top_n=2, api_key="key")
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.5) for text in texts]
    found = reranker.postprocess_nodes(nodes, QueryBundle(query))
    assert [found[0].node.text, len(found)] == [texts[1], 2]
    assert 0 < found[1].score <= found[0].score < 1


def test_haystack_for_jina(url: str, query: str, texts: list[str]) -> None:
    ranker = JinaRanker(model="any", top_k=2, api_key=Secret.from_token("key"), base_url=f"{url}/v1/rerank")
    found = ranker.run(query=query, documents=[HaystackDocument(content=text) for text in texts])["documents"]
    assert [found[0].content, len(found)] == [texts[1], 2]


def test_haystack_for_tei_and_vllm(url: str, query: str, texts: list[str]) -> None:
    key = Secret.from_token("key")
    for ranker in (
        HuggingFaceTEIRanker(url=url, top_k=2, token=key),
        VLLMRanker(model="any", top_k=2, api_base_url=f"{url}/v1", api_key=key),
    ):
        found = ranker.run(query=query, documents=[HaystackDocument(content=text) for text in texts])["documents"]
        assert [found[0].content, len(found)] == [texts[1], 2]
        assert 0 < found[1].score <= found[0].score < 1


def test_haystack(url: str, query: str, texts: list[str]) -> None:
    ranker = CohereRanker(model="any", top_k=2, api_key=Secret.from_token("key"), api_base_url=url)
    ranker.warm_up()
    found = ranker.run(query=query, documents=[HaystackDocument(content=text) for text in texts])["documents"]
    assert [found[0].content, len(found)] == [texts[1], 2]
    assert 0 < found[1].score <= found[0].score < 1
