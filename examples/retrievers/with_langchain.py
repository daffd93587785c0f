"""A retriever for LangChain: `PolyrankRetriever(client=polyrank.Client(URL), top_k=10)`."""

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

import polyrank


class PolyrankRetriever(BaseRetriever):
    """The replies that a polyrank server ranks best."""

    client: polyrank.Client
    top_k: int = 10

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        found = self.client.rank(query, top_k=self.top_k).results
        return [
            Document(id=reply.id, page_content=reply.text, metadata={**reply.metadata, "score": reply.score})
            for reply in found
        ]
