"""The sizes of an RWKV-7 model with DeepEmbed, and the list of its tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rnn_engine.errors import ModelError
from rnn_engine.model.layout import Sizes, TensorSpec
from rnn_engine.versions import v7
from rnn_engine.versions.shared.layout import list_model
from rnn_engine.versions.v7.layout import ShapeV7, shape_of

SIDE: Final = 32  # S, the side of each token's matrix
MATRIX_SIZE: Final = SIDE * SIDE  # E


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeV7DeepEmbed(ShapeV7):
    """The sizes of an RWKV-7 model with DeepEmbed."""

    version: str = field(default="v7-deepembed", init=False)


def make_shape(num_layers: int, sizes: Sizes) -> ShapeV7DeepEmbed:
    """Return the shape for the sizes of tensor dimensions. Raises ModelError if they contradict each other."""
    shape = shape_of(ShapeV7DeepEmbed, num_layers, sizes)
    if (sizes["S"], sizes["E"]) != (SIDE, MATRIX_SIZE):
        raise ModelError(
            f"blocks.0.ffn.s1 has {sizes['S']} columns and blocks.0.ffn.s_emb.weight {sizes['E']}; "
            f"expected {SIDE} and {MATRIX_SIZE}"
        )
    return shape


# The tensors that DeepEmbed adds to RWKV-7's, in BlinkDL's names and orientation.
#
# D width, V vocabulary, F ffn width, S the side of each token's matrix, E its size S * S.


def list_tensors(num_layers: int) -> tuple[TensorSpec, ...]:
    added = [
        spec
        for block in (f"blocks.{layer}.ffn" for layer in range(num_layers))
        for spec in (
            TensorSpec(f"{block}.s_emb.weight", ("V", "E")),
            TensorSpec(f"{block}.s_emb_x.weight", ("E", "D")),
            TensorSpec(f"{block}.s1", ("D", "S")),
            TensorSpec(f"{block}.s2", ("S", "F")),
            TensorSpec(f"{block}.s0", ("F",)),
        )
    ]
    return (*list_model(v7.list_layer, num_layers), *added)
