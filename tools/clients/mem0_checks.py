"""Checks of mem0 against the server: memories that are found by their vectors."""

from __future__ import annotations

import tempfile

from mem0 import Memory
from openai import OpenAI

from tools.clients.questions import MODEL, TEXTS, Checks


def _find(url: str) -> str:
    length = len(OpenAI(base_url=url, api_key="-").embeddings.create(model=MODEL, input="One").data[0].embedding)
    served = {"model": MODEL, "api_key": "-", "openai_base_url": url}
    with tempfile.TemporaryDirectory() as folder:
        store = {"path": folder, "embedding_model_dims": length}
        memory = Memory.from_config(
            {
                "llm": {"provider": "openai", "config": served},
                "embedder": {"provider": "openai", "config": {**served, "embedding_dims": length}},
                "vector_store": {"provider": "qdrant", "config": store},
                "history_db_path": f"{folder}/history.db",
            }
        )
        for text in TEXTS:
            memory.add(text, user_id="1", infer=False)
        memory.add(TEXTS[0], user_id="2")
        found = memory.search(TEXTS[1], filters={"user_id": "1"})["results"]
    assert found[0]["memory"] == TEXTS[1], found
    return f"{len(found)} memories, the nearest first"


CHECKS: Checks = {"`add` and `search`": _find}
