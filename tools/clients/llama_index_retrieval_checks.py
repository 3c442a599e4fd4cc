"""Checks of LlamaIndex's rerankers of Cohere, Jina and text-embeddings-inference, and of its embeddings by the last."""

from __future__ import annotations

from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.cohere_rerank import CohereRerank
from llama_index.postprocessor.jinaai_rerank import JinaRerank
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

from tools.clients.questions import MODEL, TEXTS, Checks, Ranking, embeds_texts, ranks_texts, root_of


def _ranking(reranker: BaseNodePostprocessor, query: str) -> Ranking:
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in TEXTS]
    found = reranker.postprocess_nodes(nodes, query_str=query)
    return [(TEXTS.index(each.node.get_content()), each.get_score()) for each in found]


def _cohere(url: str, query: str) -> Ranking:
    return _ranking(CohereRerank(api_key="-", base_url=root_of(url), model=MODEL, top_n=len(TEXTS)), query)


def _jina(url: str, query: str) -> Ranking:
    return _ranking(JinaRerank(top_n=len(TEXTS), model=MODEL, base_url=url, api_key="-"), query)


def _tei(url: str, query: str) -> Ranking:
    return _ranking(TextEmbeddingInference(base_url=root_of(url), top_n=len(TEXTS)), query)


def _embed(url: str) -> list[list[float]]:
    embeddings = TextEmbeddingsInference(model_name=MODEL, base_url=root_of(url))
    vectors: list[list[float]] = embeddings.get_text_embedding_batch(TEXTS)
    return vectors


CHECKS: Checks = {
    "`CohereRerank`": ranks_texts(_cohere),
    "`JinaRerank`": ranks_texts(_jina),
    "`TextEmbeddingInference` reranker": ranks_texts(_tei),
    "`TextEmbeddingsInference`": embeds_texts(_embed),
}
