"""Describe a model on the terminal."""

from __future__ import annotations

from rnn_engine.types import ModelShape


def describe_shape(shape: ModelShape) -> str:
    """Return a model's version and all its sizes on one line."""
    sizes = ", ".join(f"{name.removeprefix('num_').replace('_', ' ')} {size}" for name, size in shape.sizes.items())
    return f"RWKV {shape.version}, {sizes}"
