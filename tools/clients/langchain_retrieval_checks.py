"""Checks of LangChain's reranker of Cohere against the server."""

from __future__ import annotations

import cohere
from langchain_cohere import CohereRerank
from langchain_core.documents import Document

from tools.clients.questions import MODEL, TEXTS, Checks, Ranking, ranks_texts, root_of


def _rerank(url: str, query: str) -> Ranking:
    client = cohere.ClientV2("-", base_url=root_of(url))
    compressor = CohereRerank(client=client, model=MODEL, top_n=len(TEXTS))
    found = compressor.compress_documents([Document(text) for text in TEXTS], query)
    return [(TEXTS.index(each.page_content), each.metadata["relevance_score"]) for each in found]


CHECKS: Checks = {"`CohereRerank`": ranks_texts(_rerank)}
