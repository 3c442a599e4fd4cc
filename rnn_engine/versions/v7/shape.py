"""The sizes of an RWKV-7."""

from __future__ import annotations

from dataclasses import dataclass, field

from rnn_engine.model.layout import Sizes
from rnn_engine.versions.shared.shape import HeadsShape, check_heads


@dataclass(frozen=True, slots=True)
class AdapterRanks:
    """Inner sizes R of the low-rank adapters: decay (w), in-context rate (a), value residual (v), gate (g)."""

    w: int
    a: int
    v: int
    g: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeV7(HeadsShape):
    """The sizes of an RWKV-7."""

    version: str = field(default="v7", init=False)
    ranks: AdapterRanks


def make_shape(num_layers: int, sizes: Sizes) -> ShapeV7:
    """Return the shape that follows from the sizes of the tensors' dimensions. Raises ModelError where none does."""
    width, num_heads, head_size = sizes["D"], sizes["H"], sizes["N"]
    check_heads("blocks.0.att.r_k", num_heads, head_size, width)
    return ShapeV7(
        num_layers=num_layers,
        width=width,
        num_heads=num_heads,
        head_size=head_size,
        ffn_width=sizes["F"],
        vocab_size=sizes["V"],
        ranks=AdapterRanks(w=sizes["R_w"], a=sizes["R_a"], v=sizes.get("R_v", 0), g=sizes["R_g"]),
    )
