"""Low-rank pairs beside matrices, as LoRA: y = W x + alpha / R * B A x, with A [R, in] and B [out, R]."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.types import F32, State

_MORE_COLUMNS: Final = 8  # of the random basis in which singular values are found, than these
_POWERS: Final = 4  # times that the basis is turned towards the greatest of them


@dataclass(frozen=True, slots=True)
class Pairs:
    """The matrices of a model that have a low-rank pair, and the size of the pairs."""

    matrices: Mapping[str, tuple[int, int]]  # name -> [out, in]
    rank: int  # R
    scale: float | None  # alpha / R; None if each token has its own, 0 or 1, for each of the ranks: see `DeviceLoras`
    num_fixed: int = 0  # of the ranks, the last ones, which training does not change
    vectors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of the model, that are trained along

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all that is trained: A and B by their names, which are RWKV-PEFT's, then the vectors."""
        return {**self.halves, **self.vectors}

    @property
    def halves(self) -> dict[str, tuple[int, int]]:
        """The shapes of all A and B."""
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

    def decompose(self, tensor: Callable[[str], NDArray[Any]], seed: int) -> dict[str, F32]:
        """Return pairs to start from as PiSSA (Meng et al., 2024) has them, from the matrices that `tensor` returns.

        The trained half of the ranks begins as a matrix's part with the greatest singular values. The fixed half
        subtracts this part, so the model is as without the pairs.
        """
        assert self.scale is not None
        chance = np.random.default_rng(seed)
        start: dict[str, F32] = {}
        for matrix in self.matrices:
            left, values, right = _singular_triples(tensor(matrix).astype(np.float32), self.num_fixed, chance)
            roots = np.sqrt(values / np.float32(self.scale))
            down, up = half_names(matrix)
            start[down] = np.tile(roots[:, np.newaxis] * right, (2, 1))
            start[up] = np.hstack([left * roots, -left * roots])
        return start

    def scaled(self, arrays: State) -> dict[str, tuple[F32, F32]]:
        """Return A, and B times the scale, by the name of each matrix."""
        assert self.scale is not None
        halves = {matrix: half_names(matrix) for matrix in self.matrices}
        return {matrix: (arrays[down], np.float32(self.scale) * arrays[up]) for matrix, (down, up) in halves.items()}


def _singular_triples(matrix: F32, count: int, chance: np.random.Generator) -> tuple[F32, F32, F32]:
    """Return U [out, n], S [n] and V [n, in] of the greatest singular values, by subspace iteration (Halko, 2011)."""
    basis = chance.standard_normal((matrix.shape[1], min(count + _MORE_COLUMNS, *matrix.shape)), np.float32)
    for _ in range(_POWERS):
        basis, _ = np.linalg.qr(matrix.T @ np.linalg.qr(matrix @ basis)[0])
    left, values, turn = np.linalg.svd(matrix @ basis, full_matrices=False)
    return left[:, :count], values[:count], (turn @ basis.T)[:count]


def half_names(matrix: str) -> tuple[str, str]:
    """Return the names of A and B of the matrix called `matrix`."""
    module = matrix.removesuffix(".weight")
    return f"{module}.lora_A", f"{module}.lora_B"
