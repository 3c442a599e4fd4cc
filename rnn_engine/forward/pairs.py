"""Low-rank pairs beside matrices, as LoRA: y = W x + alpha / R * B A x, with A [R, in] and B [out, R]."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rnn_engine.types import F32


@dataclass(frozen=True, slots=True)
class Pairs:
    """The matrices of a model that have a low-rank pair, and the size of the pairs."""

    matrices: Mapping[str, tuple[int, int]]  # name -> [out, in]
    rank: int  # R
    scale: float | None  # alpha / R; None if each token has its own, 0 or 1, for each of the ranks: see `DeviceLoras`

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """The shapes of all A and B by their names, which are RWKV-PEFT's."""
        return {
            name: shape
            for matrix, (outer, inner) in self.matrices.items()
            for name, shape in zip(half_names(matrix), ((self.rank, inner), (outer, self.rank)), strict=True)
        }

    def draw(self, seed: int) -> dict[str, F32]:
        """Return pairs to start from: A is random, as PEFT draws it, and B is zero, so the model is as without them."""
        chance = np.random.default_rng(seed)
        start: dict[str, F32] = {}
        for matrix, (outer, inner) in self.matrices.items():
            down, up = half_names(matrix)
            bound = 1 / math.sqrt(inner)
            start[down] = chance.uniform(-bound, bound, (self.rank, inner)).astype(np.float32)
            start[up] = np.zeros((outer, self.rank), np.float32)
        return start


def half_names(matrix: str) -> tuple[str, str]:
    """Return the names of A and B of the matrix called `matrix`."""
    module = matrix.removesuffix(".weight")
    return f"{module}.lora_A", f"{module}.lora_B"
