"""The sizes of an RWKV-4 model, and the list of its tensors in BlinkDL's names and orientation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from rnn_engine.model.layout import Sizes, TensorSpec
from rnn_engine.types import FieldKind, StateField
from rnn_engine.versions.shared.layout import (
    RwkvShape,
    list_channel_mix,
    list_norm,
    list_projections,
    list_static_mixes,
)

LEAST_EXPONENT: Final = -1e30  # of an empty sum


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeV4(RwkvShape):
    """The sizes and state of an RWKV-4 model; the sums aa and bb are divided by e^pp, so as not to overflow."""

    version: str = field(default="v4", init=False)

    @property
    def state_fields(self) -> tuple[StateField, ...]:
        size = (self.width,)
        return (
            StateField("att_shift", FieldKind.SHIFT, size),
            StateField("aa", FieldKind.VECTOR, size),
            StateField("bb", FieldKind.VECTOR, size),
            StateField("pp", FieldKind.VECTOR, size, fill=LEAST_EXPONENT),
            StateField("ffn_shift", FieldKind.SHIFT, size),
        )

    @property
    def sizes(self) -> Mapping[str, int]:
        return {name: getattr(self, name) for name in ("num_layers", "width", "ffn_width", "vocab_size")}


def make_shape(num_layers: int, sizes: Sizes) -> ShapeV4:
    """Return the shape of an RWKV-4 model from the sizes of its tensor dimensions, such as D and F."""
    return ShapeV4(num_layers=num_layers, width=sizes["D"], ffn_width=sizes["F"], vocab_size=sizes["V"])


# RWKV-4's tensors, in BlinkDL's names and orientation. D width.


def list_layer(layer: int) -> Iterator[TensorSpec]:
    block = f"blocks.{layer}"
    yield from list_norm(f"{block}.ln1")
    yield from list_static_mixes(f"{block}.att", "kvr")
    yield TensorSpec(f"{block}.att.time_decay", ("D",))
    yield TensorSpec(f"{block}.att.time_first", ("D",))
    yield from list_projections(block, "receptance", "key", "value", "output")
    yield from list_norm(f"{block}.ln2")
    yield from list_static_mixes(f"{block}.ffn", "kr")
    yield from list_channel_mix(block)
