"""Weight formats of 8 and 4 bits: integers in blocks, with a scale or a range for each block.

A block's figures are halves and the integers are exact, so a matrix that was stored in one of these formats before,
here or in a file, comes out of `pack` with the same values again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.forward.packing import deinterleave, from_panels, interleave, to_panels
from rnn_engine.forward.scale_search import divide, nearest_steps, search_ranges, search_scales, to_half
from rnn_engine.types import F32
from shaders import Include

_INT4_SHARES: Final = (1.0, 0.9, -1.0, -0.9)  # of the scale that reaches the farthest weight; see `search_scales`
_CODEBOOK_SHARES: Final = (1.1, 1.0, 0.9, 0.8)
_TABLE: Final = 512  # entries from 0 to 1, by which the nearest level is found

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class RangeInt8:
    """A byte a weight, between the least and the greatest weight of its block: ai00's Int8, 8.25 bits a weight."""

    name: str = "int8"
    block_columns: int = 128
    include: Include = "weights_int8"

    @property
    def block_bytes(self) -> Mapping[str, int]:
        return {"weights": self.block_columns, "ranges": 4}

    def pack(self, matrix: NDArray[Any]) -> dict[str, NDArray[Any]]:
        panels = to_panels(matrix, self.block_columns, np.float32)
        ranges = to_half(np.stack([panels.min(axis=-1), panels.max(axis=-1)], axis=-1))
        return {
            "weights": interleave(_steps(panels, *_step_and_offset(ranges, 255), 0, 255).astype(np.uint8)),
            "ranges": ranges,
        }

    def unpack(self, arrays: Arrays, num_rows: int, num_columns: int) -> F32:
        step, offset = _step_and_offset(arrays["ranges"], 255)
        return from_panels(deinterleave(arrays["weights"]) * step + offset, num_rows, num_columns)


@dataclass(frozen=True, slots=True)
class ScaledInt8:
    """A signed byte a weight, times the scale of its block: GGUF's Q8_0, 8.5 bits a weight."""

    name: str = "q8_0"
    block_columns: int = 32
    include: Include = "weights_q8_0"

    @property
    def block_bytes(self) -> Mapping[str, int]:
        return {"weights": self.block_columns, "scales": 2}

    def pack(self, matrix: NDArray[Any]) -> dict[str, NDArray[Any]]:
        panels = to_panels(matrix, self.block_columns, np.float32)
        scales = to_half(np.abs(panels).max(axis=-1) / np.float32(127))
        steps = _steps(panels, scales[..., np.newaxis].astype(np.float32), np.float32(0), -127, 127)
        return {"weights": interleave(steps.astype(np.int8)), "scales": scales}

    def unpack(self, arrays: Arrays, num_rows: int, num_columns: int) -> F32:
        panels = deinterleave(arrays["weights"]) * arrays["scales"][..., np.newaxis].astype(np.float32)
        return from_panels(panels, num_rows, num_columns)


@dataclass(frozen=True, slots=True)
class ScaledInt4:
    """Four bits a weight, of which 8 is zero, times the scale of its block: GGUF's Q4_0, 4.5 bits a weight."""

    name: str = "q4_0"
    block_columns: int = 32
    include: Include = "weights_q4_0"

    @property
    def block_bytes(self) -> Mapping[str, int]:
        return {"weights": self.block_columns // 2, "scales": 2}

    def pack(self, matrix: NDArray[Any]) -> dict[str, NDArray[Any]]:
        panels = to_panels(matrix, self.block_columns, np.float32)
        farthest = np.take_along_axis(panels, np.abs(panels).argmax(axis=-1, keepdims=True), axis=-1)
        scales = to_half(farthest[..., 0] * np.float32(-0.125))
        scales = search_scales(panels, scales, _INT4_SHARES, 8, _nearest_int4)
        steps = _nearest_int4(divide(panels, scales.astype(np.float32)))
        return {"weights": _pack_nibbles(steps + 8), "scales": scales}

    def unpack(self, arrays: Arrays, num_rows: int, num_columns: int) -> F32:
        steps = _unpack_nibbles(arrays["weights"]).astype(np.float32) - 8
        panels = steps * arrays["scales"][..., np.newaxis].astype(np.float32)
        return from_panels(panels, num_rows, num_columns)


@dataclass(frozen=True, slots=True)
class AffineInt4:
    """Four bits a weight, times the scale of its block, plus its offset; blocks of 32 are GGUF's Q4_1."""

    name: str
    block_columns: int
    include: Include

    @property
    def block_bytes(self) -> Mapping[str, int]:
        return {"weights": self.block_columns // 2, "scales": 4}

    def pack(self, matrix: NDArray[Any]) -> dict[str, NDArray[Any]]:
        panels = to_panels(matrix, self.block_columns, np.float32)
        least = to_half(panels.min(axis=-1))
        scales = np.stack([to_half((panels.max(axis=-1) - least) / np.float32(15)), least], axis=-1)
        # Not the blocks that zeros fill up: where a range leaves these out, it would not be found again.
        whole = np.s_[:, : matrix.shape[1] // self.block_columns]
        scales[whole] = search_ranges(panels[whole], scales[whole])
        steps = nearest_steps(panels, *np.moveaxis(scales.astype(np.float32), -1, 0))
        return {"weights": _pack_nibbles(steps), "scales": scales}

    def unpack(self, arrays: Arrays, num_rows: int, num_columns: int) -> F32:
        scale, offset = _two_figures(arrays["scales"])
        return from_panels(_unpack_nibbles(arrays["weights"]) * scale + offset, num_rows, num_columns)


@dataclass(frozen=True, slots=True)
class Codebook4:
    """Four bits a weight, which choose one of 16 levels, times the greatest weight of its block: 4.25 bits a weight."""

    name: str
    levels: tuple[float, ...]  # ascending, from -1 to 1
    include: Include
    block_columns: int = 64

    @property
    def block_bytes(self) -> Mapping[str, int]:
        return {"weights": self.block_columns // 2, "scales": 2}

    def pack(self, matrix: NDArray[Any]) -> dict[str, NDArray[Any]]:
        panels = to_panels(matrix, self.block_columns, np.float32)
        find = _level_finder(self.levels)
        levels = np.array(self.levels, np.float32)
        scales = to_half(np.abs(panels).max(axis=-1))
        scales = search_scales(panels, scales, _CODEBOOK_SHARES, 1, lambda scaled: levels[find(scaled)])
        return {"weights": _pack_nibbles(find(divide(panels, scales.astype(np.float32)))), "scales": scales}

    def unpack(self, arrays: Arrays, num_rows: int, num_columns: int) -> F32:
        levels = np.array(self.levels, np.float32)[_unpack_nibbles(arrays["weights"])]
        return from_panels(levels * arrays["scales"][..., np.newaxis].astype(np.float32), num_rows, num_columns)


NF4_LEVELS: Final = (
    *(-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0),
    *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
)
"""Quantiles of the normal distribution (Dettmers et al. 2023, QLoRA)."""

SF4_LEVELS: Final = (
    *(-1.0, -0.62778056, -0.454736, -0.33433074, -0.23743437, -0.15289871, -0.07498246, 0.0),
    *(0.06551307, 0.13296473, 0.20466101, 0.2838347, 0.37580484, 0.49107558, 0.65678114, 1.0),
)
"""Quantiles of Student's t distribution with 5 degrees of freedom (Dotzel et al. 2024)."""


def _nearest_int4(scaled: F32) -> F32:
    return np.rint(scaled, out=scaled).clip(-8, 7, out=scaled)


def _level_finder(levels: tuple[float, ...]) -> Callable[[F32], NDArray[np.uint8]]:
    """Return a function that gives each number from -1 to 1 the index of the nearest level. It writes to its argument.

    It looks the index up in a table, which is several times as quick as a search and as good, save beside the middle
    of two levels.
    """
    ascending = np.array(levels, np.float32)
    places = np.linspace(-1, 1, 2 * _TABLE + 1, dtype=np.float32)
    table = np.searchsorted((ascending[1:] + ascending[:-1]) / 2, places).astype(np.uint8)

    def find(scaled: F32) -> NDArray[np.uint8]:
        scaled *= _TABLE
        scaled += np.float32(_TABLE + 0.5)
        found: NDArray[np.uint8] = table[scaled.clip(0, 2 * _TABLE, out=scaled).astype(np.int16)]
        return found

    return find


def _two_figures(pairs: NDArray[np.float16]) -> tuple[F32, F32]:
    """Return the first and the second of pairs [..., 2], each as [..., 1]."""
    wide = pairs.astype(np.float32)
    return wide[..., :1], wide[..., 1:]


def _step_and_offset(ranges: NDArray[np.float16], num_steps: int) -> tuple[F32, F32]:
    """Return the width of a step and the least weight of blocks with these ranges."""
    least, greatest = _two_figures(ranges)
    return (greatest - least) / np.float32(num_steps), least


def _not_zero(values: F32) -> F32:
    """Return `values` with 1 for 0, to divide by."""
    return np.where(values == 0, np.float32(1), values)


def _steps(panels: F32, scale: F32, offset: F32 | np.float32, least: int, greatest: int) -> F32:
    """Return the whole numbers that come nearest to `panels` when they are scaled and offset."""
    steps: F32 = np.rint((panels - offset) / _not_zero(scale)).clip(least, greatest)
    return steps


def _pack_nibbles(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return numbers below 16, interleaved, as half as many bytes: the first of two in the lower half."""
    bytes_ = interleave(values.astype(np.uint8))
    packed: NDArray[np.uint8] = bytes_[..., ::2] + np.uint8(16) * bytes_[..., 1::2]
    return packed


def _unpack_nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return what `_pack_nibbles` made `packed` of."""
    return deinterleave(np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1))
