"""The sizes of an RWKV-6 model, and the list of its tensors in BlinkDL's names and orientation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from rnn_engine.errors import ModelError
from rnn_engine.model.layout import Sizes, TensorSpec
from rnn_engine.versions.shared.layout import (
    HeadsShape,
    check_heads,
    list_channel_mix,
    list_norm,
    list_projections,
    tuned_state,
)

NUM_MIXES: Final = 5  # the mixes of w, k, v, r and g, which depend on the token


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeV6(HeadsShape):
    """The sizes of an RWKV-6 model."""

    version: str = field(default="v6", init=False)
    mix_rank: int  # inner size of the adapter of each mix
    decay_rank: int


def make_shape(num_layers: int, sizes: Sizes) -> ShapeV6:
    """Return the shape for the sizes of tensor dimensions. Raises ModelError if they contradict each other."""
    check_heads("blocks.0.att.time_faaaa", sizes["H"], sizes["N"], sizes["D"])
    return ShapeV6(num_layers=num_layers, **read_sizes(sizes))


def read_sizes(sizes: Sizes) -> dict[str, int]:
    """Return a shape's fields from tensor dimensions. Raises ModelError if those of adapters contradict each other."""
    if sizes["M"] != NUM_MIXES:
        raise ModelError(f"blocks.0.att.time_maa_w2 has {sizes['M']} matrices; expected {NUM_MIXES}")
    if sizes["R_mixes"] != NUM_MIXES * sizes["R_mix"]:
        raise ModelError(
            f"blocks.0.att.time_maa_w1 has {sizes['R_mixes']} columns; expected {NUM_MIXES * sizes['R_mix']}, "
            f"{NUM_MIXES} times the {sizes['R_mix']} of time_maa_w2"
        )
    return {
        "width": sizes["D"],
        "num_heads": sizes["H"],
        "head_size": sizes["N"],
        "ffn_width": sizes["F"],
        "vocab_size": sizes["V"],
        "mix_rank": sizes["R_mix"],
        "decay_rank": sizes["R_decay"],
    }


# RWKV-6's tensors, in BlinkDL's names and orientation.
#
# D width, H heads, N head size, R the inner size of each adapter, M the number of mixes that depend on the token.
# ai00's files have the names of RWKV-5 for the mixes and the bonus, and the adapters transposed.


def list_layer(layer: int) -> Iterator[TensorSpec]:
    block = f"blocks.{layer}"
    yield from list_norm(f"{block}.ln1")
    yield from list_mixes(f"{block}.att")
    yield TensorSpec(f"{block}.att.time_decay", ("D",))
    yield TensorSpec(f"{block}.att.time_faaaa", ("H", "N"), ai00_name=f"{block}.att.time_first")
    yield from list_projections(block, "receptance", "key", "value", "gate", "output")
    yield from list_norm(f"{block}.att.ln_x")
    yield tuned_state(block)
    yield from list_norm(f"{block}.ln2")
    for kind in "kr":
        yield _mix(f"{block}.ffn", kind, ("D",))
    yield from list_channel_mix(block)


def list_mixes(att: str) -> Iterator[TensorSpec]:
    """Yield the specs of a time mix's token shift and adapters; names of its tensors begin with `att`."""
    for kind in "xwkvrg":
        yield _mix(att, kind, ("D",))
    yield _mix(att, "w1", ("D", "R_mixes"), swaps=True)
    yield _mix(att, "w2", ("M", "R_mix", "D"), swaps=True)
    yield TensorSpec(f"{att}.time_decay_w1", ("D", "R_decay"), ai00_swaps=True)
    yield TensorSpec(f"{att}.time_decay_w2", ("R_decay", "D"), ai00_swaps=True)


def _mix(part: str, kind: str, dims: tuple[str, ...], *, swaps: bool = False) -> TensorSpec:
    return TensorSpec(f"{part}.time_maa_{kind}", dims, ai00_name=f"{part}.time_mix_{kind}", ai00_swaps=swaps)
