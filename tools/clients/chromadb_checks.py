"""Checks of chromadb against the server: collections of its own, whose vectors the server makes."""

from __future__ import annotations

from functools import partial
from typing import Any

import chromadb
from chromadb.utils.embedding_functions import HuggingFaceEmbeddingServer, OpenAIEmbeddingFunction

from tools.clients.questions import MODEL, TEXTS, Checks, root_of


def _finds(url: str, name: str) -> str:
    """Add the texts to a collection in memory, and check that each is nearest to itself."""
    function: Any = (
        OpenAIEmbeddingFunction(api_key="-", model_name=MODEL, api_base=url)
        if name == "openai"
        else HuggingFaceEmbeddingServer(url=f"{root_of(url)}/embed")
    )
    client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
    collection = client.create_collection(name, embedding_function=function)
    collection.add(ids=[str(number) for number in range(len(TEXTS))], documents=TEXTS)
    found = collection.query(query_texts=TEXTS, n_results=1)["ids"]
    assert found == [[str(number)] for number in range(len(TEXTS))], found
    return f"{len(TEXTS)} texts found"


CHECKS: Checks = {
    "`OpenAIEmbeddingFunction`": partial(_finds, name="openai"),
    "`HuggingFaceEmbeddingServer` (text-embeddings-inference)": partial(_finds, name="server"),
}
