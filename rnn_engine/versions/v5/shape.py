"""The sizes of an RWKV-5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from rnn_engine.errors import ModelError
from rnn_engine.model.layout import Sizes
from rnn_engine.versions.shared.shape import HeadsShape, check_heads

VersionV5: TypeAlias = Literal["v5.0", "v5.1", "v5.2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeV5(HeadsShape):
    """The sizes of an RWKV-5."""

    version: VersionV5

    @property
    def has_gate(self) -> bool:
        return self.version != "v5.0"


def make_shape(num_layers: int, sizes: Sizes, version: VersionV5) -> ShapeV5:
    """Return the shape that follows from the sizes of the tensors' dimensions. Raises ModelError where none does."""
    width, num_heads = sizes["D"], sizes["H"]
    if "N" in sizes:
        check_heads("blocks.0.att.time_decay", num_heads, sizes["N"], width)
    elif width % num_heads:
        raise ModelError(
            f"blocks.0.att.time_decay has {num_heads} heads; expected a divisor of {width}, the model's width"
        )
    return ShapeV5(
        version=version,
        num_layers=num_layers,
        width=width,
        num_heads=num_heads,
        head_size=width // num_heads,
        ffn_width=sizes["F"],
        vocab_size=sizes["V"],
    )
