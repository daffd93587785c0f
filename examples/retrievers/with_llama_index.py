"""A retriever for LlamaIndex: `PolyrankRetriever(polyrank.Client(URL), top_k=10)`."""

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

import polyrank


class PolyrankRetriever(BaseRetriever):
    """The replies that a polyrank server ranks best."""

    def __init__(self, client: polyrank.Client, top_k: int = 10) -> None:
        self.client, self.top_k = client, top_k
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = self.client.rank(query_bundle.query_str, top_k=self.top_k).results
        return [
            NodeWithScore(node=TextNode(id_=reply.id, text=reply.text, metadata=reply.metadata), score=reply.score)
            for reply in found
        ]
