"""The sizes of an RWKV-7 model, and the list of its tensors in BlinkDL's names and orientation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from rnn_engine.model.layout import Sizes, TensorSpec
from rnn_engine.versions.shared.layout import HeadsShape, check_heads, list_norm, list_projections, tuned_state


@dataclass(frozen=True, slots=True)
class AdapterRanks:
    """The ranks of RWKV-7's adapters: decay (w), in-context learning rate (a), value residual (v), gate (g)."""

    w: int
    a: int
    v: int
    g: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeV7(HeadsShape):
    """The sizes of an RWKV-7 model."""

    version: str = field(default="v7", init=False)
    ranks: AdapterRanks


AnyShapeV7 = TypeVar("AnyShapeV7", bound=ShapeV7)


def shape_of(kind: type[AnyShapeV7], num_layers: int, sizes: Sizes) -> AnyShapeV7:
    """Return the shape, of the class `kind`, for sizes of dimensions. Raises ModelError if they contradict each other.

    The class is that of RWKV-7 or of a variant.
    """
    width, num_heads, head_size = sizes["D"], sizes["H"], sizes["N"]
    check_heads("blocks.0.att.r_k", num_heads, head_size, width)
    return kind(
        num_layers=num_layers,
        width=width,
        num_heads=num_heads,
        head_size=head_size,
        ffn_width=sizes["F"],
        vocab_size=sizes["V"],
        ranks=AdapterRanks(w=sizes["R_w"], a=sizes["R_a"], v=sizes.get("R_v", 0), g=sizes.get("R_g", 0)),
    )


make_shape: Final = partial(shape_of, ShapeV7)


# RWKV-7's tensors, in BlinkDL's names and orientation.
#
# D width, V vocabulary, H heads, N head size, F ffn width, R the inner size of each adapter. Layer 0 also has the
# embedding's norm. It does not use the value residual's adapter, since the first value comes from this layer.


def list_layer(layer: int) -> Iterator[TensorSpec]:
    block = f"blocks.{layer}"
    yield from list_norm(f"{block}.ln1")
    yield from list_time_mix(layer)
    yield from list_norm(f"{block}.ln2")
    yield TensorSpec(f"{block}.ffn.x_k", ("D",))
    yield TensorSpec(f"{block}.ffn.key.weight", ("F", "D"))
    yield TensorSpec(f"{block}.ffn.value.weight", ("D", "F"))


def list_time_mix(layer: int) -> Iterator[TensorSpec]:
    block = f"blocks.{layer}"
    for name in ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "k_k", "k_a"):
        yield TensorSpec(f"{block}.att.{name}", ("D",))
    for adapter in ("w", "a", "g"):
        yield from _adapter(block, adapter, required=True)
    yield from _adapter(block, "v", required=layer > 0)
    yield TensorSpec(f"{block}.att.r_k", ("H", "N"))
    yield from list_projections(block, "receptance", "key", "value", "output")
    yield from list_norm(f"{block}.att.ln_x")
    yield tuned_state(block)


def _adapter(block: str, letter: str, *, required: bool) -> Iterator[TensorSpec]:
    inner = f"R_{letter}"
    if letter != "g":  # the gate has no bias
        yield TensorSpec(f"{block}.att.{letter}0", ("D",), required)
    yield TensorSpec(f"{block}.att.{letter}1", ("D", inner), required, ai00_swaps=True)
    yield TensorSpec(f"{block}.att.{letter}2", (inner, "D"), required, ai00_swaps=True)
