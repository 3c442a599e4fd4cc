"""The sizes of versions whose state is one matrix a head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isclose
from typing import Final, Self

from rnn_engine.errors import ModelError
from rnn_engine.types import FieldKind, ModelShape, StateField

GROUP_NORM_EPSILON: Final = 64e-5
"""That of BlinkDL's package, for RWKV-5 since 0.8.21; 1e-5 before, and in rwkv.cpp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsShape(ModelShape):
    """The sizes of a version whose state is one matrix a head, besides the two shifts, and its group norm's epsilon."""

    num_heads: int  # H
    head_size: int  # N; H * N == D
    group_norm_epsilon: float = GROUP_NORM_EPSILON

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

    @property
    def settings(self) -> str:
        usual = self.group_norm_epsilon == GROUP_NORM_EPSILON
        return "" if usual else f"group norm epsilon {self.group_norm_epsilon!r}"

    def with_group_norm_epsilon(self, epsilon: float) -> Self:
        """See `ModelShape.with_group_norm_epsilon`; one that rounding alone keeps from the usual one is that one."""
        usual = isclose(epsilon, GROUP_NORM_EPSILON, rel_tol=1e-6)
        return replace(self, group_norm_epsilon=GROUP_NORM_EPSILON if usual else epsilon)


def check_heads(tensor: str, num_heads: int, head_size: int, width: int) -> None:
    """Raise ModelError where the heads that `tensor` [H, N] shows do not make up the width."""
    if num_heads * head_size != width:
        raise ModelError(
            f"{tensor} is [{num_heads}, {head_size}], {num_heads} heads of size {head_size}; "
            f"expected a product of {width}, the model's width"
        )
