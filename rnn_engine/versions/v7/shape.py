"""The sizes of an RWKV-7, and the tensors of its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rnn_engine.errors import ModelError
from rnn_engine.model.layout import Sizes
from rnn_engine.types import FieldKind, ModelShape, StateField


@dataclass(frozen=True, slots=True)
class AdapterRanks:
    """Inner sizes R of the low-rank adapters: decay (w), in-context rate (a), value residual (v), gate (g)."""

    w: int
    a: int
    v: int
    g: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeV7(ModelShape):
    """The sizes of an RWKV-7."""

    version: str = field(default="v7", init=False)
    num_heads: int  # H
    head_size: int  # N; H * N == D
    ranks: AdapterRanks

    @property
    def state_fields(self) -> tuple[StateField, ...]:
        return (
            StateField("att_shift", FieldKind.SHIFT, (self.width,)),
            StateField("wkv", FieldKind.MATRIX, (self.num_heads, self.head_size, self.head_size)),
            StateField("ffn_shift", FieldKind.SHIFT, (self.width,)),
        )

    @property
    def sizes(self) -> Mapping[str, int]:
        return {
            "num_layers": self.num_layers,
            "width": self.width,
            "num_heads": self.num_heads,
            "head_size": self.head_size,
            "ffn_width": self.ffn_width,
            "vocab_size": self.vocab_size,
        }


def make_shape(num_layers: int, sizes: Sizes) -> ShapeV7:
    """Return the shape that follows from the sizes of the tensors' dimensions. Raises ModelError where none does."""
    width, num_heads, head_size = sizes["D"], sizes["H"], sizes["N"]
    if num_heads * head_size != width:
        raise ModelError(
            f"blocks.0.att.r_k is [{num_heads}, {head_size}], {num_heads} heads of size {head_size}; "
            f"expected a product of {width}, the model's width"
        )
    return ShapeV7(
        num_layers=num_layers,
        width=width,
        num_heads=num_heads,
        head_size=head_size,
        ffn_width=sizes["F"],
        vocab_size=sizes["V"],
        ranks=AdapterRanks(w=sizes["R_w"], a=sizes["R_a"], v=sizes.get("R_v", 0), g=sizes["R_g"]),
    )
