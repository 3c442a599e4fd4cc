"""The sizes of an RWKV-7 with DeepEmbed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rnn_engine.errors import ModelError
from rnn_engine.model.layout import Sizes
from rnn_engine.versions import v7
from rnn_engine.versions.v7.shape import ShapeV7

SIDE: Final = 32  # S, that of the matrix of each token
MATRIX_SIZE: Final = SIDE * SIDE  # E


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeV7DeepEmbed(ShapeV7):
    """The sizes of an RWKV-7 with DeepEmbed."""

    version: str = field(default="v7-deepembed", init=False)


def make_shape(num_layers: int, sizes: Sizes) -> ShapeV7DeepEmbed:
    """Return the shape that follows from the sizes of the tensors' dimensions. Raises ModelError where none does."""
    plain = v7.make_shape(num_layers, sizes)
    if (sizes["S"], sizes["E"]) != (SIDE, MATRIX_SIZE):
        raise ModelError(
            f"blocks.0.ffn.s1 has {sizes['S']} columns and blocks.0.ffn.s_emb.weight {sizes['E']}; "
            f"expected {SIDE} and {MATRIX_SIZE}"
        )
    return ShapeV7DeepEmbed(
        num_layers=num_layers,
        width=plain.width,
        num_heads=plain.num_heads,
        head_size=plain.head_size,
        ffn_width=plain.ffn_width,
        vocab_size=plain.vocab_size,
        ranks=plain.ranks,
    )
