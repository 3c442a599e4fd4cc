"""Checks of LangChain's embeddings and rerankers of Cohere, Jina, Infinity and text-embeddings-inference.

Those of Jina have their server's address in a constant of their modules, which the checks replace.
`HuggingFaceEndpointEmbeddings` takes no address from 1.2.2 on; the checks replace its client.
"""

from __future__ import annotations

from unittest.mock import patch

from huggingface_hub import InferenceClient
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_cohere import CohereRerank
from langchain_community.document_compressors import jina_rerank
from langchain_community.embeddings import InfinityEmbeddings, jina
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_huggingface import HuggingFaceEndpointEmbeddings

from tools.clients.questions import MODEL, TEXTS, Checks, Ranking, embeds_texts, ranks_texts, root_of

_DOCUMENTS = [Document(text) for text in TEXTS]


def _ranking(found: list[Document]) -> Ranking:
    return [(TEXTS.index(each.page_content), each.metadata["relevance_score"]) for each in found]


def _cohere(url: str) -> CohereRerank:
    return CohereRerank(cohere_api_key="-", base_url=root_of(url), model=MODEL, top_n=len(TEXTS))


def _rerank_by_cohere(url: str, query: str) -> Ranking:
    return _ranking(_cohere(url).compress_documents(_DOCUMENTS, query))


def _rerank_by_jina(url: str, query: str) -> Ranking:
    reranker = jina_rerank.JinaRerank(jina_api_key="-", model=MODEL, top_n=len(TEXTS))
    with patch.object(jina_rerank, "JINA_API_URL", f"{url}/rerank"):
        return _ranking(reranker.compress_documents(_DOCUMENTS, query))


def _retrieve(url: str, query: str) -> Ranking:
    store = InMemoryVectorStore.from_documents(_DOCUMENTS, _infinity(url))
    retriever = ContextualCompressionRetriever(base_compressor=_cohere(url), base_retriever=store.as_retriever())
    return _ranking(retriever.invoke(query))


def _infinity(url: str) -> InfinityEmbeddings:
    return InfinityEmbeddings(model=MODEL, infinity_api_url=url)


def _embed_by_infinity(url: str) -> list[list[float]]:
    vectors: list[list[float]] = _infinity(url).embed_documents(TEXTS)
    return vectors


def _embed_by_jina(url: str) -> list[list[float]]:
    with patch.object(jina, "JINA_API_URL", f"{url}/embeddings"):
        vectors: list[list[float]] = jina.JinaEmbeddings(jina_api_key="-", model_name=MODEL).embed_documents(TEXTS)
    return vectors


def _embed_by_tei(url: str) -> list[list[float]]:
    embeddings = HuggingFaceEndpointEmbeddings(model=MODEL, huggingfacehub_api_token="-")
    embeddings.client = InferenceClient(f"{root_of(url)}/embed")
    vectors: list[list[float]] = embeddings.embed_documents(TEXTS)
    return vectors


CHECKS: Checks = {
    "`CohereRerank`": ranks_texts(_rerank_by_cohere),
    "`JinaRerank`": ranks_texts(_rerank_by_jina),
    "`ContextualCompressionRetriever` of `CohereRerank` and `InfinityEmbeddings`": ranks_texts(_retrieve),
    "`InfinityEmbeddings`": embeds_texts(_embed_by_infinity),
    "`JinaEmbeddings`": embeds_texts(_embed_by_jina),
    "`HuggingFaceEndpointEmbeddings` (text-embeddings-inference)": embeds_texts(_embed_by_tei),
}
