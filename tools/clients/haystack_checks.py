"""Checks of Haystack against the server: embedders of texts and documents, and a retriever over both."""

from __future__ import annotations

from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.utils import Secret

from tools.clients.questions import MODEL, TEXTS, Checks


def _retrieve(url: str) -> str:
    key = Secret.from_token("-")
    documents = OpenAIDocumentEmbedder(api_key=key, model=MODEL, api_base_url=url, progress_bar=False)
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    store.write_documents(documents.run([Document(content=text) for text in TEXTS])["documents"])
    vector = OpenAITextEmbedder(api_key=key, model=MODEL, api_base_url=url).run(TEXTS[1])["embedding"]
    [nearest, *_] = InMemoryEmbeddingRetriever(store).run(query_embedding=vector)["documents"]
    assert nearest.content == TEXTS[1], nearest
    return str(nearest.content)


CHECKS: Checks = {"`OpenAIDocumentEmbedder`, `OpenAITextEmbedder` and a retriever": _retrieve}
