"""Models as ai00 tells of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from rnn_engine.types import ModelShape
from rnn_engine.versions.v7.shape import ShapeV7
from server.schemas.ai00.models import Ai00ModelInfo


def model_info(shape: ModelShape) -> Ai00ModelInfo:
    """Return the sizes of a model under ai00's names."""
    version = shape.version.split(".")[0].upper()
    custom: dict[str, dict[str, int]] | Literal["None"] = "None"
    if isinstance(shape, ShapeV7):
        custom = {version: asdict(shape.ranks)}
    return {
        "version": version,
        "num_layer": shape.num_layers,
        "num_emb": shape.width,
        "num_hidden": shape.ffn_width,
        "num_vocab": shape.vocab_size,
        "num_head": shape.sizes.get("num_heads", 1),
        "custom": custom,
    }
