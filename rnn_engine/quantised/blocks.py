"""Quantised matrices: a code for each weight, f16 figures for each block, and the search for the best figures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Codes = NDArray[np.uint8] | NDArray[np.int8]
Figures = NDArray[np.float16]

_PIECE_BYTES: Final = 16 << 20  # of weights in f32 that are quantised at once


class BlockFormat(Protocol):
    """The protocol of a quantised weight format: a block of weights becomes integer codes and a few f16 figures."""

    @property
    def name(self) -> str: ...

    @property
    def block_columns(self) -> int:
        """The number of weights in a block, which lie next to each other in a row: a multiple of 8."""

    @property
    def code_bits(self) -> int:
        """The number of bits of each weight's integer code: 8, or 2 to 6."""

    @property
    def num_figures(self) -> int:
        """The number of f16 figures, such as a scale, of each block of weights; some may be bits of others."""

    @property
    def num_scales(self) -> int:
        """The number of figures, the first ones of a block, by which its weights are multiplied."""

    def quantise(self, blocks: F32, num_whole: int, /) -> tuple[Codes, Figures]:
        """Quantise blocks of weights [R, C / B, B]; return codes [R, C / B, B] and n figures a block [R, C / B, n].

        A code takes a byte here. A figure is a number such as a scale.

        The first `num_whole` blocks of each row are full. Later ones are padded with zeros.
        """

    def dequantise(self, codes: Codes, figures: Figures, /) -> F32:
        """Return the weights [..., B] of blocks with these codes, unsigned below 8 bits, and figures (scales)."""


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """A quantised matrix [R, C], in blocks of B consecutive weights of a row. A row's last block may be padded."""

    format: BlockFormat
    num_columns: int
    codes: NDArray[np.uint8]  # [R, C / B, bytes]; see `pack_codes`
    figures: Figures  # [R, C / B, n]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.codes), self.num_columns

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice | NDArray[np.integer[Any]]) -> Blocks:
        """Return the matrix of some of the rows: for a slice as a view of this matrix, for their numbers as a copy."""
        return replace(self, codes=self.codes[rows], figures=self.figures[rows])

    @property
    def is_sound(self) -> bool:
        """False if a scale is infinite or not a number, as in a damaged file."""
        exponents = self.figures[..., : self.format.num_scales].view(np.uint16) & np.uint16(0x7C00)
        return not (exponents == 0x7C00).any()

    def numbers(self) -> F32:
        """Dequantise the matrix: return the weights [R, C] as f32."""
        with np.errstate(all="ignore"):  # the figures of a damaged file may be anything
            weights = self.format.dequantise(unpack_codes(self.codes, self.format.code_bits), self.figures)
        return weights.reshape(len(self), -1)[:, : self.num_columns]

    def scaled(self, factor: float) -> Blocks | None:
        """Return the matrix times `factor`, a power of 2; None if a block's scale would exceed f16."""
        figures = self.figures.copy()
        scales = figures[..., : self.format.num_scales]
        with np.errstate(over="ignore"):
            scales *= np.float16(factor)
        return replace(self, figures=figures) if np.isfinite(scales).all() else None


_HIGH_BITS: Final = {3: 1, 5: 1, 6: 2}  # of a code, above its low bits


def columns_of_item(code_bits: int) -> int:
    """Return how many consecutive weights of a row have their codes in one item of bytes; see `pack_codes`."""
    return 32 // _HIGH_BITS[code_bits] if code_bits in _HIGH_BITS else max(8, 32 // code_bits)


def pack_codes(codes: NDArray[np.uint8], code_bits: int) -> NDArray[np.uint8]:
    """Pack codes [..., B], a byte each, to items of bytes [..., bytes].

    A code of 8 bits is a byte. Two codes of 4 bits, or four of 2 bits, share a byte; the first is in the lowest bits.
    Other codes are packed in items of 32, or of 16 if they have 6 bits. An item begins with their low four bits, or low
    two of codes of 3 bits, packed like codes of so many bits. Four bytes with their other bits follow, those of the
    first code in the lowest bits.
    """
    if code_bits == 8:
        return codes
    low_bits = _low_bits(code_bits)
    low = codes & np.uint8((1 << low_bits) - 1)
    count = 8 // low_bits
    packed = low[..., ::count].copy()
    for place in range(1, count):
        packed |= low[..., place::count] << np.uint8(place * low_bits)
    if code_bits == low_bits:
        return packed
    num_high, items = _HIGH_BITS[code_bits], columns_of_item(code_bits)
    high = (codes >> np.uint8(low_bits)).reshape(*codes.shape[:-1], -1, items)
    bits = np.stack([(high >> bit) & 1 for bit in range(num_high)], axis=-1)
    highs = np.packbits(bits.reshape(*high.shape[:-1], 32), axis=-1, bitorder="little")
    lows = packed.reshape(*highs.shape[:-1], items // count)
    return np.concatenate([lows, highs], axis=-1).reshape(*codes.shape[:-1], -1)


def unpack_codes(packed: NDArray[np.uint8], code_bits: int) -> NDArray[np.uint8]:
    """Return the codes [..., B], a byte each, that `pack_codes` packed."""
    if code_bits == 8:
        return packed
    low_bits = _low_bits(code_bits)
    if code_bits == low_bits:
        shifts, mask = range(0, 8, low_bits), np.uint8((1 << low_bits) - 1)
        codes = np.stack([(packed >> np.uint8(shift)) & mask for shift in shifts], axis=-1)
        return codes.reshape(*packed.shape[:-1], -1)
    num_high, items = _HIGH_BITS[code_bits], columns_of_item(code_bits)
    parts = packed.reshape(*packed.shape[:-1], -1, items * low_bits // 8 + 4)
    low = unpack_codes(parts[..., :-4], low_bits)
    bits = np.unpackbits(parts[..., -4:], axis=-1, bitorder="little").reshape(*low.shape, num_high)
    for bit in range(num_high):
        low |= bits[..., bit] << np.uint8(low_bits + bit)
    return low.reshape(*packed.shape[:-1], -1)


def _low_bits(code_bits: int) -> int:
    return 2 if code_bits < 4 else 4


def bytes_of_codes(block_format: BlockFormat) -> int:
    """Return how many bytes the codes of one block of weights take."""
    return block_format.block_columns * block_format.code_bits // 8


def blocks_of_row(num_columns: int, block_columns: int) -> int:
    """Return the number of blocks in a row of `num_columns` weights, the last of which may be padded."""
    return -(-num_columns // block_columns)


def quantise(block_format: BlockFormat, matrix: NDArray[Any]) -> Blocks:
    """Quantise a matrix [R, C] of any float type. Uses all cores, and 1.5 times the memory of the result."""
    num_rows, num_columns = matrix.shape
    step = max(1, _PIECE_BYTES // (4 * num_columns))
    starts = range(0, num_rows, step)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pieces = list(pool.map(lambda start: quantise_rows(block_format, matrix[start : start + step]), starts))
    codes, figures = ([getattr(piece, part) for piece in pieces] for part in ("codes", "figures"))
    return Blocks(block_format, num_columns, np.concatenate(codes), np.concatenate(figures))


def quantise_rows(block_format: BlockFormat, matrix: NDArray[Any]) -> Blocks:
    """Quantise a matrix [R, C] of any float type, as `quantise` does, but on the calling thread alone."""
    num_rows, num_columns = matrix.shape
    row_blocks = blocks_of_row(num_columns, block_format.block_columns)
    padded = np.zeros((num_rows, row_blocks * block_format.block_columns), np.float32)
    padded[:, :num_columns] = matrix
    codes, figures = block_format.quantise(
        padded.reshape(num_rows, row_blocks, -1), num_columns // block_format.block_columns
    )
    return Blocks(block_format, num_columns, pack_codes(codes.view(np.uint8), block_format.code_bits), figures)


# Search for the scales of 4-bit blocks with the least error. Scales that just reach the farthest weight have more.
#
# Each start of the search gives every weight its nearest code. The scale and the offset that fit these codes best
# follow from least squares. A found scale replaces the one before only if it makes the squared error less and uses the
# greatest code. So a block that was quantised before gets the same scale again.

Nearest: TypeAlias = Callable[[F32], F32]
"""A function that replaces each number by the nearest number that a code stands for. May write to its argument."""

Halves: TypeAlias = NDArray[np.float16]

_F16_MAX: Final = np.float32(np.finfo(np.float16).max)
_STEPS: Final = np.float32(15)
_CHUNK: Final = 1 << 16  # weights that are searched together: as many as a core's cache holds
_RANGE_SHARES: Final = (1.0, 0.9, 0.8)


def search_scales(blocks: F32, scales: Halves, shares: tuple[float, ...], greatest: float, nearest: Nearest) -> Halves:
    """Return the scale [...] of each block of weights `blocks` [..., B] that gives the least squared error found.

    The search starts from `scales` [...] times each of `shares`. With `scales`, the farthest weight of a block has the
    code `greatest`, up to its sign.
    """
    found = np.empty(scales.shape, np.float16)
    for chunk, part in chunks(blocks):
        before = scales.reshape(-1)[part].astype(np.float32)
        found.reshape(-1)[part] = _search_scale(chunk, before, shares, greatest, nearest)
    return found


def search_ranges(blocks: F32, scales: Halves) -> Halves:
    """Return the scale and offset [..., 2] of each block of weights [..., B] that give the least squared error found.

    The codes are 0 to 15. `scales` [..., 2] reach from the least weight of a block to its greatest.
    """
    found = np.empty(scales.shape, np.float16)
    for chunk, part in chunks(blocks):
        before = scales.reshape(-1, 2)[part].astype(np.float32)
        found.reshape(-1, 2)[part] = np.stack(_search_range(chunk, before[:, 0], before[:, 1]), axis=-1)
    return found


def divide(blocks: F32, scales: F32) -> F32:
    """Divide the weights of each block [..., B] by the block's scale in `scales` [...]; a scale of 0 gives 0."""
    return blocks * inverse(scales)[..., np.newaxis]


def nearest_steps(blocks: F32, scales: F32, offsets: F32) -> F32:
    """Quantise blocks of weights [..., B] to the nearest codes, 0 to 15, for the given `scales` and `offsets` [...]."""
    codes = divide(blocks, scales)
    codes -= (offsets * inverse(scales))[..., np.newaxis]
    np.rint(codes, out=codes)
    return codes.clip(0, _STEPS, out=codes)


def to_half(values: F32) -> Halves:
    """Round `values` to f16. Values out of its range are clamped to it."""
    return np.clip(values, -_F16_MAX, _F16_MAX).astype(np.float16)


def _search_scale(blocks: F32, before: F32, shares: tuple[float, ...], greatest: float, nearest: Nearest) -> F32:
    best = np.full(len(blocks), -1, np.float32)
    found = before

    def fit(scales: F32) -> None:
        nonlocal best, found
        codes = nearest(divide(blocks, scales))
        product, square = dot(blocks, codes), inverse(dot(codes, codes))
        explained = product * product * square  # by this the best-scaled codes reduce the sum of squares
        is_better = explained > best
        best = np.where(is_better, explained, best)
        found = np.where(is_better, product * square, found)

    def error(scales: F32) -> tuple[F32, F32]:
        codes = nearest(divide(blocks, scales))
        miss = codes * scales[:, np.newaxis] - blocks
        return dot(miss, miss), np.abs(codes).max(axis=-1)

    with np.errstate(all="ignore"):  # an error that overflows is never the lesser one
        for share in shares:
            fit(before * np.float32(share))
        fit(found)
        found = to_half(found).astype(np.float32)
        (old, _), (new, reached) = error(before), error(found)
        return np.where((new < old) & (reached == greatest), found, before)


def _search_range(blocks: F32, scales: F32, offsets: F32) -> tuple[F32, F32]:
    best = np.full(len(blocks), -1, np.float32)
    found = scales, offsets
    width, total = np.float32(blocks.shape[-1]), blocks.sum(axis=-1)

    def fit(scale: F32, offset: F32) -> None:
        nonlocal best, found
        codes = nearest_steps(blocks, scale, offset)
        sum_ = codes.sum(axis=-1)
        covariance = dot(blocks, codes) - total * sum_ / width
        variance = inverse(dot(codes, codes) - sum_ * sum_ / width)
        explained = covariance * covariance * variance
        is_better = explained > best
        best = np.where(is_better, explained, best)
        slope = covariance * variance
        fitted = slope, (total - slope * sum_) / width
        found = np.where(is_better, fitted[0], found[0]), np.where(is_better, fitted[1], found[1])

    def error(scale: F32, offset: F32) -> tuple[F32, F32]:
        codes = nearest_steps(blocks, scale, offset)
        miss = codes * scale[:, np.newaxis] + offset[:, np.newaxis] - blocks
        return dot(miss, miss), codes.max(axis=-1) - codes.min(axis=-1)

    with np.errstate(all="ignore"):  # an error that overflows is never the lesser one
        least, greatest = blocks.min(axis=-1), blocks.max(axis=-1)
        middle, half_range = (least + greatest) / 2, (greatest - least) / 2
        for share in _RANGE_SHARES:
            part = half_range * np.float32(share)
            fit(2 * part / _STEPS, middle - part)
        fit(*found)
        found = to_half(found[0]).astype(np.float32), to_half(found[1]).astype(np.float32)
        (old, _), (new, reached) = error(scales, offsets), error(*found)
        is_better = (new < old) & (reached == _STEPS)
        return np.where(is_better, found[0], scales), np.where(is_better, found[1], offsets)


def chunks(blocks: F32) -> Iterator[tuple[F32, slice]]:
    """Yield blocks of weights [..., B] in chunks of M blocks [M, B], each with the slice of blocks that it covers."""
    flat = blocks.reshape(-1, blocks.shape[-1])
    step = _CHUNK // blocks.shape[-1]
    for start in range(0, len(flat), step):
        part = slice(start, start + step)
        yield flat[part], part


def dot(left: F32, right: F32) -> F32:
    product: F32 = np.einsum("...i,...i->...", left, right)
    return product


def inverse(values: F32) -> F32:
    """Return 1 / `values`, or 0 for values of 0."""
    return np.divide(1, values, out=np.zeros_like(values), where=values != 0)
