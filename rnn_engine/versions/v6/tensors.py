"""RWKV-6's tensors, in BlinkDL's names and orientation.

D width, H heads, N head size, R the inner size of each adapter, M how many mixes depend on the token. ai00's files
have the names of RWKV-5 for the mixes and the bonus, and the adapters transposed.
"""

from __future__ import annotations

from collections.abc import Iterator

from rnn_engine.model.layout import TensorSpec
from rnn_engine.versions.shared.tensors import (
    list_channel_mix,
    list_model,
    list_norm,
    list_projections,
    tuned_state,
)


def list_tensors(num_layers: int) -> tuple[TensorSpec, ...]:
    """Return every tensor of a model with so many layers."""
    return list_model(spec for layer in range(num_layers) for spec in _layer_specs(layer))


def _layer_specs(layer: int) -> Iterator[TensorSpec]:
    block = f"blocks.{layer}"
    yield from list_norm(f"{block}.ln1")
    for kind in "xwkvrg":
        yield _mix(f"{block}.att", kind, ("D",))
    yield _mix(f"{block}.att", "w1", ("D", "R_mixes"), swaps=True)
    yield _mix(f"{block}.att", "w2", ("M", "R_mix", "D"), swaps=True)
    yield TensorSpec(f"{block}.att.time_decay", ("D",))
    yield TensorSpec(f"{block}.att.time_decay_w1", ("D", "R_decay"), ai00_swaps=True)
    yield TensorSpec(f"{block}.att.time_decay_w2", ("R_decay", "D"), ai00_swaps=True)
    yield TensorSpec(f"{block}.att.time_faaaa", ("H", "N"), ai00_name=f"{block}.att.time_first")
    yield from list_projections(block, "receptance", "key", "value", "gate", "output")
    yield from list_norm(f"{block}.att.ln_x")
    yield tuned_state(block)
    yield from list_norm(f"{block}.ln2")
    for kind in "kr":
        yield _mix(f"{block}.ffn", kind, ("D",))
    yield from list_channel_mix(block)


def _mix(part: str, kind: str, dims: tuple[str, ...], *, swaps: bool = False) -> TensorSpec:
    return TensorSpec(f"{part}.time_maa_{kind}", dims, ai00_name=f"{part}.time_mix_{kind}", ai00_swaps=swaps)
