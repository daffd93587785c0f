"""A component for Haystack: `PolyrankRetriever(URL, top_k=10)`."""

from haystack import Document, component

import polyrank


@component
class PolyrankRetriever:
    """The replies that a polyrank server ranks best."""

    def __init__(self, url: str, top_k: int = 10) -> None:
        self.url, self.top_k = url, top_k
        self.client = polyrank.Client(url)

    @component.output_types(documents=list[Document])
    def run(self, query: str) -> dict[str, list[Document]]:
        found = self.client.rank(query, top_k=self.top_k).results
        return {
            "documents": [
                Document(id=reply.id, content=reply.text, meta=reply.metadata, score=reply.score) for reply in found
            ]
        }
