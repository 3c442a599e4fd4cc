"""Checks of Haystack against the server: embedders of texts and documents with a retriever, and rankers."""

from __future__ import annotations

from typing import Any, Protocol

from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.utils import Secret
from haystack_integrations.components.embedders.huggingface_api import HuggingFaceAPIDocumentEmbedder
from haystack_integrations.components.embedders.jina import JinaDocumentEmbedder
from haystack_integrations.components.rankers.cohere import CohereRanker
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from haystack_integrations.components.rankers.jina import JinaRanker

from tools.clients.questions import MODEL, TEXTS, Checks, Ranking, embeds_texts, ranks_texts, root_of

_KEY = Secret.from_token("-")


class _OnDocuments(Protocol):
    """An embedder or a ranker of documents."""

    def run(self, **inputs: Any) -> dict[str, Any]: ...  # noqa: ANN401


def _documents() -> list[Document]:
    return [Document(content=text) for text in TEXTS]


def _retrieve(url: str) -> str:
    documents = OpenAIDocumentEmbedder(api_key=_KEY, model=MODEL, api_base_url=url, progress_bar=False)
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    store.write_documents(documents.run(_documents())["documents"])
    vector = OpenAITextEmbedder(api_key=_KEY, model=MODEL, api_base_url=url).run(TEXTS[1])["embedding"]
    [nearest, *_] = InMemoryEmbeddingRetriever(store).run(query_embedding=vector)["documents"]
    assert nearest.content == TEXTS[1], nearest
    return str(nearest.content)


def _vectors(embedder: _OnDocuments) -> list[list[float]]:
    return [each.embedding for each in embedder.run(documents=_documents())["documents"]]


def _embed_by_tei(url: str) -> list[list[float]]:
    place = {"url": f"{root_of(url)}/embed"}
    return _vectors(HuggingFaceAPIDocumentEmbedder("text_embeddings_inference", place, token=None, progress_bar=False))


def _embed_by_jina(url: str) -> list[list[float]]:
    place = f"{url}/embeddings"
    return _vectors(JinaDocumentEmbedder(api_key=_KEY, model=MODEL, base_url=place, progress_bar=False))


def _ranking(ranker: _OnDocuments, query: str) -> Ranking:
    found = ranker.run(query=query, documents=_documents(), top_k=len(TEXTS))["documents"]
    return [(TEXTS.index(each.content), each.score) for each in found]


def _rank_by_tei(url: str, query: str) -> Ranking:
    return _ranking(HuggingFaceTEIRanker(url=root_of(url), token=None), query)


def _rank_by_cohere(url: str, query: str) -> Ranking:
    return _ranking(CohereRanker(MODEL, api_key=_KEY, api_base_url=root_of(url)), query)


def _rank_by_jina(url: str, query: str) -> Ranking:
    return _ranking(JinaRanker(MODEL, _KEY, base_url=f"{url}/rerank"), query)


CHECKS: Checks = {
    "`OpenAIDocumentEmbedder`, `OpenAITextEmbedder` and a retriever": _retrieve,
    "`HuggingFaceAPIDocumentEmbedder`": embeds_texts(_embed_by_tei),
    "`JinaDocumentEmbedder`": embeds_texts(_embed_by_jina),
    "`HuggingFaceTEIRanker`": ranks_texts(_rank_by_tei),
    "`CohereRanker`": ranks_texts(_rank_by_cohere),
    "`JinaRanker`": ranks_texts(_rank_by_jina),
}
