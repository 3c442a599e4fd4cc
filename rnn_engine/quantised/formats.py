"""The quantised weight formats of 8 and 4 bits: their codes, and a scale or a range for each block.

A block's figures are f16 numbers and the integers are exact. So a matrix that was stored in one of these formats
before, here or in a file, has the same values again after `quantise`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.quantised.blocks import (
    F32,
    BlockFormat,
    Codes,
    Figures,
    divide,
    nearest_steps,
    search_ranges,
    search_scales,
    to_half,
)

_INT4_SHARES: Final = (1.0, 0.9, -1.0, -0.9)  # of the scale that reaches the farthest weight; see `search_scales`
_CODEBOOK_SHARES: Final = (1.1, 1.0, 0.9, 0.8)
_TABLE: Final = 512  # entries between 0 and 1 of the table that finds the nearest level


@dataclass(frozen=True, slots=True)
class RangeInt8:
    """ai00's Int8, 8.25 bits a weight: 8-bit codes that divide the range of a block's weights evenly."""

    name: str = "int8"
    block_columns: int = 128
    code_bits: int = 8
    num_figures: int = 2
    num_scales: int = 2

    def quantise(self, blocks: F32, _num_whole: int, /) -> tuple[Codes, Figures]:
        ranges = to_half(np.stack([blocks.min(axis=-1), blocks.max(axis=-1)], axis=-1))
        step, offset = _step_and_offset(ranges)
        return _steps(blocks, step, offset, 0, 255).astype(np.uint8), ranges

    def dequantise(self, codes: Codes, figures: Figures) -> F32:
        step, offset = _step_and_offset(figures)
        return codes * step + offset


@dataclass(frozen=True, slots=True)
class ScaledInt8:
    """GGUF's Q8_0, 8.5 bits a weight: signed 8-bit codes, multiplied by the scale of their block."""

    name: str = "q8_0"
    block_columns: int = 32
    code_bits: int = 8
    num_figures: int = 1
    num_scales: int = 1

    def quantise(self, blocks: F32, _num_whole: int, /) -> tuple[Codes, Figures]:
        scales = to_half(np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127))
        return _steps(blocks, scales.astype(np.float32), np.float32(0), -127, 127).astype(np.int8), scales

    def dequantise(self, codes: Codes, figures: Figures) -> F32:
        return codes.view(np.int8).astype(np.float32) * figures.astype(np.float32)


@dataclass(frozen=True, slots=True)
class ScaledInt4:
    """GGUF's Q4_0, 4.5 bits a weight: 4-bit codes minus 8, multiplied by the scale of their block."""

    name: str = "q4_0"
    block_columns: int = 32
    code_bits: int = 4
    num_figures: int = 1
    num_scales: int = 1

    def quantise(self, blocks: F32, _num_whole: int, /) -> tuple[Codes, Figures]:
        farthest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1, keepdims=True), axis=-1)
        scales = to_half(farthest[..., 0] * np.float32(-0.125))
        scales = search_scales(blocks, scales, _INT4_SHARES, 8, _nearest_int4)
        steps = _nearest_int4(divide(blocks, scales.astype(np.float32)))
        return (steps + 8).astype(np.uint8), scales[..., np.newaxis]

    def dequantise(self, codes: Codes, figures: Figures) -> F32:
        return (codes.astype(np.float32) - 8) * figures.astype(np.float32)


@dataclass(frozen=True, slots=True)
class AffineInt4:
    """A 4-bit format: codes multiplied by the scale of their block, plus its offset. Blocks of 32 are GGUF's Q4_1."""

    name: str
    block_columns: int
    code_bits: int = 4
    num_figures: int = 2
    num_scales: int = 2

    def quantise(self, blocks: F32, num_whole: int, /) -> tuple[Codes, Figures]:
        least = to_half(blocks.min(axis=-1))
        scales = np.stack([to_half((blocks.max(axis=-1) - least) / np.float32(15)), least], axis=-1)
        # Only full blocks: if a found range left out the zeros of the padding, a second search would not find it again.
        whole = np.s_[..., :num_whole, :]
        scales[whole] = search_ranges(blocks[whole], scales[whole])
        return nearest_steps(blocks, *np.moveaxis(scales.astype(np.float32), -1, 0)).astype(np.uint8), scales

    def dequantise(self, codes: Codes, figures: Figures) -> F32:
        scale, offset = _two_figures(figures)
        return codes * scale + offset


@dataclass(frozen=True, slots=True)
class Codebook4:
    """A 4-bit format, 4.25 bits a weight: each code selects one of 16 levels, multiplied by the scale of its block."""

    name: str
    levels: tuple[float, ...]  # ascending, from -1 to 1
    block_columns: int = 64
    code_bits: int = 4
    num_figures: int = 1
    num_scales: int = 1

    def quantise(self, blocks: F32, _num_whole: int, /) -> tuple[Codes, Figures]:
        find = _level_finder(self.levels)
        levels = np.array(self.levels, np.float32)
        scales = to_half(np.abs(blocks).max(axis=-1))
        scales = search_scales(blocks, scales, _CODEBOOK_SHARES, 1, lambda scaled: levels[find(scaled)])
        return find(divide(blocks, scales.astype(np.float32))), scales[..., np.newaxis]

    def dequantise(self, codes: Codes, figures: Figures) -> F32:
        return np.array(self.levels, np.float32)[codes] * figures.astype(np.float32)


NF4_LEVELS: Final = (
    *(-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0),
    *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
)
"""The 16 levels of NF4: quantiles of the normal distribution (Dettmers et al. 2023, QLoRA)."""

SF4_LEVELS: Final = (
    *(-1.0, -0.62778056, -0.454736, -0.33433074, -0.23743437, -0.15289871, -0.07498246, 0.0),
    *(0.06551307, 0.13296473, 0.20466101, 0.2838347, 0.37580484, 0.49107558, 0.65678114, 1.0),
)
"""The 16 levels of SF4: quantiles of Student's t distribution with 5 degrees of freedom (Dotzel et al. 2024)."""

PLAIN_FORMATS: Final[Mapping[str, BlockFormat]] = {
    each.name: each
    for each in (
        RangeInt8(),
        ScaledInt8(),
        AffineInt4("int4", 64),
        AffineInt4("q4_1", 32),
        ScaledInt4(),
        Codebook4("nf4", NF4_LEVELS),
        Codebook4("sf4", SF4_LEVELS),
    )
}


def _nearest_int4(scaled: F32) -> F32:
    return np.rint(scaled, out=scaled).clip(-8, 7, out=scaled)


def _level_finder(levels: tuple[float, ...]) -> Callable[[F32], NDArray[np.uint8]]:
    """Return a function that maps numbers between -1 and 1 to the index of the nearest of `levels`.

    The function overwrites its argument.

    It looks the index up in a table. That is several times as quick as a search, and as exact except close to the
    middle of two levels.
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


def _two_figures(pairs: Figures) -> tuple[F32, F32]:
    """Split figures [..., 2] of blocks into the first and the second of each pair, both [..., 1], as f32."""
    wide = pairs.astype(np.float32)
    return wide[..., :1], wide[..., 1:]


def _step_and_offset(ranges: Figures) -> tuple[F32, F32]:
    """Return the step between two codes, and the least weight, of blocks with these `ranges` [..., 2] of weights."""
    least, greatest = _two_figures(ranges)
    return (greatest - least) / np.float32(255), least


def _steps(blocks: F32, scale: F32, offset: F32 | np.float32, least: int, greatest: int) -> F32:
    """Quantise blocks of weights by their `scale` and `offset` to the nearest integers from `least` to `greatest`."""
    divisor = np.where(scale == 0, np.float32(1), scale)
    steps: F32 = np.rint((blocks - offset) / divisor).clip(least, greatest)
    return steps
