"""RWKV-4's tensors, in BlinkDL's names and orientation. D width."""

from __future__ import annotations

from collections.abc import Iterator

from rnn_engine.model.layout import TensorSpec
from rnn_engine.versions.shared.tensors import (
    list_channel_mix,
    list_model,
    list_norm,
    list_projections,
    list_static_mixes,
)


def list_tensors(num_layers: int) -> tuple[TensorSpec, ...]:
    """Return every tensor of a model with so many layers."""
    return list_model(spec for layer in range(num_layers) for spec in _layer_specs(f"blocks.{layer}"))


def _layer_specs(block: str) -> Iterator[TensorSpec]:
    yield from list_norm(f"{block}.ln1")
    yield from list_static_mixes(f"{block}.att", "kvr")
    yield TensorSpec(f"{block}.att.time_decay", ("D",))
    yield TensorSpec(f"{block}.att.time_first", ("D",))
    yield from list_projections(block, "receptance", "key", "value", "output")
    yield from list_norm(f"{block}.ln2")
    yield from list_static_mixes(f"{block}.ffn", "kr")
    yield from list_channel_mix(block)
