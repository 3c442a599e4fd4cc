"""Which variant of a kernel to run, by the kind of device and the number of tokens.

The figures behind the choices are in docs/performance.md. Everything here changes speed alone, never a result's
meaning: any variant is right on any device.
"""

from __future__ import annotations

from dataclasses import dataclass

from rnn_engine.gpu import DeviceInfo
from rnn_engine.types import ModelShape


@dataclass(frozen=True, slots=True)
class MatMulVariant:
    """The constants of matmul.wgsl, where their meaning is explained."""

    tokens: int
    groups: int
    panels: int
    splits: int

    @property
    def rows(self) -> int:
        """Rows of a workgroup."""
        return 8 * self.groups * self.panels


@dataclass(frozen=True, slots=True)
class Tuning:
    """The variants for one kind of device."""

    matmuls: tuple[MatMulVariant, ...]  # by ascending token count; the first that takes all tokens is run
    broadcast: bool  # lanes share what they load; needs splits == 1
    tiled: bool  # beyond that: matmul_tiled.wgsl, or the last variant again and again
    norm_threads: int
    candidate_threads: int
    max_tokens: int  # of a step
    max_step_operations: float  # multiplications and additions of a step: a driver ends a submit that takes seconds

    def matmul(self, num_tokens: int) -> MatMulVariant | None:
        """Return the variant for `num_tokens` tokens; None for the tiled kernel."""
        for variant in self.matmuls:
            if num_tokens <= variant.tokens:
                return variant
        return None if self.tiled else self.matmuls[-1]

    def step_tokens(self, shape: ModelShape) -> int:
        """The most tokens of a step of such a model, where the user does not say."""
        layer = 4 * shape.width**2 + 2 * shape.width * shape.ffn_width
        tokens = int(self.max_step_operations / (2 * shape.num_layers * layer))
        return min(self.max_tokens, max(16, tokens // 16 * 16))


def tuning_for(device: DeviceInfo, *, can_broadcast: bool) -> Tuning:
    """The choices for `device`. `can_broadcast`: its subgroups have at least 8 lanes."""
    if device.is_software:
        return Tuning(
            matmuls=(
                MatMulVariant(tokens=1, groups=2, panels=4, splits=1),
                MatMulVariant(tokens=2, groups=1, panels=4, splits=1),
                MatMulVariant(tokens=4, groups=1, panels=4, splits=1),
                MatMulVariant(tokens=8, groups=1, panels=4, splits=1),
            ),
            broadcast=can_broadcast,
            tiled=False,
            norm_threads=8,
            candidate_threads=64,
            max_tokens=64,
            max_step_operations=2e10,
        )
    return Tuning(
        matmuls=(
            MatMulVariant(tokens=1, groups=1, panels=1, splits=16),
            MatMulVariant(tokens=2, groups=1, panels=1, splits=16),
            MatMulVariant(tokens=4, groups=1, panels=1, splits=16),
            MatMulVariant(tokens=8, groups=1, panels=1, splits=16),
            MatMulVariant(tokens=16, groups=1, panels=1, splits=16),
        ),
        broadcast=False,
        tiled=True,
        norm_threads=128,
        candidate_threads=256,
        max_tokens=256,
        max_step_operations=2e12 if device.kind == "discrete" else 3e11,
    )
