"""What the terminal says of a model."""

from __future__ import annotations

from rnn_engine.types import ModelShape


def describe_shape(shape: ModelShape) -> str:
    return (
        f"RWKV {shape.version}, {shape.num_layers} layers, width {shape.width}, {shape.num_heads} heads of "
        f"{shape.head_size}, ffn width {shape.ffn_width}, vocabulary {shape.vocab_size}"
    )
