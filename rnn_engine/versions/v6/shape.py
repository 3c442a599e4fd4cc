"""The sizes of an RWKV-6."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rnn_engine.errors import ModelError
from rnn_engine.model.layout import Sizes
from rnn_engine.versions.shared.shape import HeadsShape, check_heads

NUM_MIXES: Final = 5  # those of w, k, v, r and g, which depend on the token


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeV6(HeadsShape):
    """The sizes of an RWKV-6."""

    version: str = field(default="v6", init=False)
    mix_rank: int  # inner size of the adapter of each mix
    decay_rank: int


def make_shape(num_layers: int, sizes: Sizes) -> ShapeV6:
    """Return the shape that follows from the sizes of the tensors' dimensions. Raises ModelError where none does."""
    check_heads("blocks.0.att.time_faaaa", sizes["H"], sizes["N"], sizes["D"])
    if sizes["M"] != NUM_MIXES:
        raise ModelError(f"blocks.0.att.time_maa_w2 has {sizes['M']} matrices; expected {NUM_MIXES}")
    if sizes["R_mixes"] != NUM_MIXES * sizes["R_mix"]:
        raise ModelError(
            f"blocks.0.att.time_maa_w1 has {sizes['R_mixes']} columns; expected {NUM_MIXES * sizes['R_mix']}, "
            f"{NUM_MIXES} times the {sizes['R_mix']} of time_maa_w2"
        )
    return ShapeV6(
        num_layers=num_layers,
        width=sizes["D"],
        num_heads=sizes["H"],
        head_size=sizes["N"],
        ffn_width=sizes["F"],
        vocab_size=sizes["V"],
        mix_rank=sizes["R_mix"],
        decay_rank=sizes["R_decay"],
    )
