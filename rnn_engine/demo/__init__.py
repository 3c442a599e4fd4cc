"""Find the files of the demo models, small RWKV-7 models that are part of this package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

_FOLDER = Path(__file__).parent


def model_path() -> Path:
    """Return the path of the demo model's weights: RWKV-7, safetensors, f16."""
    return _FOLDER / "demo.safetensors"


def tokenizer_path() -> Path:
    """Return the path of the demo model's tokenizer.json: byte-level BPE."""
    return _FOLDER / "tokenizer.json"


def embedding_path() -> Path:
    """Return the path of the small EmbeddingRWKV; its tokenizer.json is in the same folder."""
    return _FOLDER / "retrieval" / "demo-embed.safetensors"


def find_reranker(model: Path) -> Path | None:
    """Return the path of the reranker that belongs to `model`, or None if that isn't the small EmbeddingRWKV."""
    return _FOLDER / "retrieval" / "demo-rerank.safetensors" if model == embedding_path() else None


def pirate_state_path() -> Path:
    """Return the path of a tuned initial state, with which the demo model answers like a pirate."""
    return _FOLDER / "pirate.safetensors"


DEMO: Final = "demo"
"""The name of the demo model."""

MODELS: Final[Mapping[str, Path]] = {DEMO: model_path(), "demo-embed": embedding_path()}
"""The names by which the models of this package can be loaded -> their files of weights."""
