"""The sizes of versions whose state is one matrix a head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rnn_engine.errors import ModelError
from rnn_engine.types import FieldKind, ModelShape, StateField


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsShape(ModelShape):
    """The sizes of a version whose state is one matrix a head, besides the two shifts."""

    num_heads: int  # H
    head_size: int  # N; H * N == D

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


def check_heads(tensor: str, num_heads: int, head_size: int, width: int) -> None:
    """Raise ModelError where the heads that `tensor` [H, N] shows do not make up the width."""
    if num_heads * head_size != width:
        raise ModelError(
            f"{tensor} is [{num_heads}, {head_size}], {num_heads} heads of size {head_size}; "
            f"expected a product of {width}, the model's width"
        )
