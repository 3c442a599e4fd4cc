"""RWKV-7 made for retrieval: EmbeddingRWKV, which turns texts into vectors, and the rerankers that read its states.

Their layers are those of RWKV-7. In place of logits, a row of theirs is the last layer's output after the norm, and
small heads, which run in numpy, turn it into a vector or a score.
"""

from rnn_engine.versions.v7_retrieval.layout import (
    EMBEDDING_LAYOUT,
    LAYER_INDEX,
    RERANKER_LAYOUT,
    TASKS,
    ScoreHead,
    ShapeV7Embedding,
    ShapeV7Reranker,
    TaskHeads,
)

__all__ = [
    "EMBEDDING_LAYOUT",
    "LAYER_INDEX",
    "RERANKER_LAYOUT",
    "TASKS",
    "ScoreHead",
    "ShapeV7Embedding",
    "ShapeV7Reranker",
    "TaskHeads",
]
