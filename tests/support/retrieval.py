"""The golden EmbeddingRWKV and its reranker in an engine with texts of bytes, and what their package computed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from rnn_engine.engine import Engine
from rnn_engine.loading.parts import open_parts
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine.types import F32
from rnn_engine_states.cache.config import CacheConfig
from tests.support.byte_tokenizer import ByteTokenizer
from tests.support.golden import FOLDER

EMBEDDING = FOLDER / "retrieval" / "embedding.pth"
RERANKER = FOLDER / "retrieval" / "reranker.pth"
NUM_TEXTS = 4
END = 299  # the last token of the vocabulary, which ends a sentence


def golden(name: str) -> F32:
    """Return an array of the golden file: `tokens.N`, a task and `.N`, `score.N`, or the state `wkv.1`."""
    with np.load(FOLDER / "retrieval" / "retrieval.npz", allow_pickle=False) as arrays:
        array: F32 = arrays[name]
        return array


@asynccontextmanager
async def retrieving(
    device: str = "cpu",
    *,
    reranker: Path | None = RERANKER,
    cache: CacheConfig | None = None,
    num_slots: int = 3,
    weights: str = "f32",
) -> AsyncGenerator[Engine, None]:
    settings = LoadSettings(device, "none", weights=weights, reranker=reranker)
    parts = open_parts(
        EMBEDDING,
        settings,
        name="embedding",
        num_slots=num_slots,
        cache=cache,
        states=StateSettings(),
        progress=lambda *_: None,
    )
    parts.tokenizer = ByteTokenizer()
    async with asyncio.timeout(120), Engine(parts) as engine:
        yield engine
