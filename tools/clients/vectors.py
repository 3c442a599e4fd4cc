"""Checks of packages that make vectors and rankings of texts: a function for each."""

from __future__ import annotations

from functools import partial
from typing import Any

from tools.clients.checks import MODEL, TEXTS, Checks, Ranking, embeds_texts, ranks_texts, root_of


def cohere() -> Checks:
    """Return the checks of `rerank` of both versions of Cohere's API."""
    import cohere

    def rank(url: str, query: str, client: Any) -> Ranking:  # noqa: ANN401
        found = client("-", base_url=root_of(url)).rerank(query=query, documents=TEXTS, model=MODEL)
        return [(result.index, result.relevance_score) for result in found.results]

    return {
        f"`{client.__name__}.rerank`": ranks_texts(partial(rank, client=client))
        for client in (cohere.Client, cohere.ClientV2)
    }


def haystack() -> Checks:
    """Return the checks of embedders with a retriever, and of rankers."""
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

    key, documents = Secret.from_token("-"), [Document(content=text) for text in TEXTS]

    def retrieve(url: str) -> str:
        embedder = OpenAIDocumentEmbedder(api_key=key, model=MODEL, api_base_url=url, progress_bar=False)
        store = InMemoryDocumentStore(embedding_similarity_function="cosine")
        store.write_documents(embedder.run(documents)["documents"])
        vector = OpenAITextEmbedder(api_key=key, model=MODEL, api_base_url=url).run(TEXTS[1])["embedding"]
        [nearest, *_] = InMemoryEmbeddingRetriever(store).run(query_embedding=vector)["documents"]
        assert nearest.content == TEXTS[1], nearest
        return str(nearest.content)

    def vectors(embedder: Any) -> list[list[float]]:  # noqa: ANN401
        return [each.embedding for each in embedder.run(documents=documents)["documents"]]

    def embed_by_tei(url: str) -> list[list[float]]:
        place = {"url": f"{root_of(url)}/embed"}
        api = "text_embeddings_inference"
        return vectors(HuggingFaceAPIDocumentEmbedder(api, place, token=None, progress_bar=False))

    def embed_by_jina(url: str) -> list[list[float]]:
        place = f"{url}/embeddings"
        return vectors(JinaDocumentEmbedder(api_key=key, model=MODEL, base_url=place, progress_bar=False))

    def ranking(ranker: Any, query: str) -> Ranking:  # noqa: ANN401
        found = ranker.run(query=query, documents=documents, top_k=len(TEXTS))["documents"]
        return [(TEXTS.index(each.content), each.score) for each in found]

    def rank_by_tei(url: str, query: str) -> Ranking:
        return ranking(HuggingFaceTEIRanker(url=root_of(url), token=None), query)

    def rank_by_cohere(url: str, query: str) -> Ranking:
        return ranking(CohereRanker(MODEL, api_key=key, api_base_url=root_of(url)), query)

    def rank_by_jina(url: str, query: str) -> Ranking:
        return ranking(JinaRanker(MODEL, key, base_url=f"{url}/rerank"), query)

    return {
        "`OpenAIDocumentEmbedder`, `OpenAITextEmbedder` and a retriever": retrieve,
        "`HuggingFaceAPIDocumentEmbedder`": embeds_texts(embed_by_tei),
        "`JinaDocumentEmbedder`": embeds_texts(embed_by_jina),
        "`HuggingFaceTEIRanker`": ranks_texts(rank_by_tei),
        "`CohereRanker`": ranks_texts(rank_by_cohere),
        "`JinaRanker`": ranks_texts(rank_by_jina),
    }


def huggingface_hub() -> Checks:
    """Return the checks of `InferenceClient`, the client of text-embeddings-inference."""
    from huggingface_hub import InferenceClient

    def embed(url: str) -> list[list[float]]:
        vectors: list[list[float]] = InferenceClient(f"{root_of(url)}/embed").feature_extraction(TEXTS).tolist()
        return vectors

    def compare(url: str) -> list[float]:
        found = InferenceClient(f"{root_of(url)}/similarity").sentence_similarity(TEXTS[0], other_sentences=TEXTS)
        assert found[0] == max(found), found
        return found

    return {"`feature_extraction`": embeds_texts(embed), "`sentence_similarity`": compare}
