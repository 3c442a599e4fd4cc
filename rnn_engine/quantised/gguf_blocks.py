"""GGUF's blocks of quantised weights: their numbers, and the way between a file's order of bytes and this project's.

A matrix in such blocks is only kept: no bit of it changes, they only change places. `dequantize` of the package gguf is
the reference for the numbers, to the bit in f32. With these orders a device reads the codes of eight columns at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.quantised.blocks import (
    F32,
    BlockFormat,
    Blocks,
    Codes,
    Figures,
    chunks,
    divide,
    dot,
    inverse,
    to_half,
    unpack_codes,
)
from rnn_engine.quantised.formats import PLAIN_FORMATS

# The quantising of weights to Q4_K, Q5_K and Q6_K with llama.cpp's search for scales, over many blocks at once.
#
# The search is that of ggml-quants.c without an importance matrix (make_qkx2_quants and make_qx_quants): each part of a
# block tries several scales and keeps the one with the least weighted error.

_PART, _SIGNED_PART = 32, 16  # columns that share a scale of their own
_MOST_SCALE: Final = 63  # of a part of Q4_K and Q5_K: an integer of 6 bits
_STEP: Final = 0.1  # between two scales that are tried, in codes
_SIGNED_STEPS: Final = range(-9, 10)

_Bytes: TypeAlias = NDArray[np.uint8]


def quantise_range(blocks: F32, code_bits: int) -> tuple[Codes, Figures]:
    """Quantise blocks of weights [..., 256] to Q4_K or Q5_K: return codes [..., 256] and figures [..., 8]."""
    greatest = (1 << code_bits) - 1
    first, count = {4: (-1.0, 20), 5: (-0.5, 15)}[code_bits]
    parts = blocks.reshape(*blocks.shape[:-1], -1, _PART)
    with np.errstate(all="ignore"):  # an error that overflows is never the lesser one
        scales, minima = np.empty(parts.shape[:-1], np.float32), np.empty(parts.shape[:-1], np.float32)  # [..., 8]
        for chunk, part in chunks(parts):
            found = _search_range(chunk, greatest, first, count)
            scales.reshape(-1)[part], minima.reshape(-1)[part] = found
        scale, whole_scales = _in_steps(scales)
        minimum, whole_minima = _in_steps(minima)
        step = scale.astype(np.float32) * whole_scales
        offset = minimum.astype(np.float32) * whole_minima
        codes = np.rint(divide(parts + offset[..., np.newaxis], step)).clip(0, greatest)
    bits = _pack_scales(whole_scales.astype(np.uint8), whole_minima.astype(np.uint8)).view(np.float16)
    return codes.reshape(blocks.shape).astype(np.uint8), np.concatenate([scale, minimum, bits], axis=-1)


def quantise_signed(blocks: F32) -> tuple[Codes, Figures]:
    """Quantise blocks of weights [..., 256] to Q6_K: return codes [..., 256] and figures [..., 10]."""
    parts = blocks.reshape(*blocks.shape[:-1], -1, _SIGNED_PART)
    with np.errstate(all="ignore"):
        scales = np.empty(parts.shape[:-1], np.float32)  # [..., 16]
        for chunk, part in chunks(parts):
            scales.reshape(-1)[part] = _search_signed(chunk)
        farthest = np.take_along_axis(scales, np.abs(scales).argmax(axis=-1, keepdims=True), axis=-1)
        scale = to_half(farthest / np.float32(-128))
        whole = np.rint(divide(scales, farthest[..., 0] / np.float32(-128))).clip(-128, 127).astype(np.int8)
        codes = np.rint(divide(parts, scale.astype(np.float32) * whole)).clip(-32, 31) + 32
    figures = np.concatenate([scale, np.zeros_like(scale), whole.view(np.float16)], axis=-1)
    return codes.reshape(blocks.shape).astype(np.uint8), figures


def _search_range(parts: F32, greatest: int, first: float, count: int) -> tuple[F32, F32]:
    """Return the scale and the minimum, which is not negative, of each part of weights [M, 32]: both [M]."""
    weights = np.sqrt(dot(parts, parts) / np.float32(_PART))[:, np.newaxis] + np.abs(parts)
    sum_weights, sum_parts = weights.sum(axis=-1), dot(weights, parts)
    most, least = parts.max(axis=-1), np.minimum(parts.min(axis=-1), 0)
    scale = (most - least) / np.float32(greatest)

    def codes_of(per_step: F32) -> F32:
        codes: F32 = np.rint((parts - least[:, np.newaxis]) * per_step[:, np.newaxis]).clip(0, greatest)
        return codes

    def error(codes: F32, scale: F32, least: F32) -> F32:
        miss = codes * scale[:, np.newaxis] + least[:, np.newaxis] - parts
        return dot(weights, miss * miss)

    best = error(codes_of(inverse(scale)), scale, least)
    for number in range(count + 1):
        codes = codes_of(np.float32(first + _STEP * number + greatest) * inverse(most - least))
        weighted = weights * codes
        total, squares, products = weighted.sum(axis=-1), dot(weighted, codes), dot(weighted, parts)
        determinant = sum_weights * squares - total * total
        new_scale = (sum_weights * products - sum_parts * total) / determinant
        new_least = (squares * sum_parts - total * products) / determinant
        new_scale = np.where(new_least > 0, products * inverse(squares), new_scale)
        new_least = np.minimum(new_least, 0)
        new = error(codes, new_scale, new_least)
        is_better = (determinant > 0) & (new < best)
        best = np.where(is_better, new, best)
        scale, least = np.where(is_better, new_scale, scale), np.where(is_better, new_least, least)
    return scale, -least


def _search_signed(parts: F32) -> F32:
    """Return the scale of each part of weights [M, 16], [M]. Larger weights count more, by their squares."""
    farthest = np.take_along_axis(parts, np.abs(parts).argmax(axis=-1, keepdims=True), axis=-1)[:, 0]
    weights = parts * parts
    found, best = np.zeros_like(farthest), np.full_like(farthest, -1)
    for number in (0, *_SIGNED_STEPS):
        per_step = np.float32(-32 - _STEP * number) * inverse(farthest)
        codes = np.rint(parts * per_step[:, np.newaxis]).clip(-32, 31)
        weighted = weights * codes
        products, squares = dot(weighted, parts), inverse(dot(weighted, codes))
        explained = products * products * squares  # by this the best-scaled codes reduce the weighted sum of squares
        is_better = explained > best
        best, found = np.where(is_better, explained, best), np.where(is_better, products * squares, found)
    return found


def _in_steps(values: F32) -> tuple[Figures, F32]:
    """Return the scale of a block [..., 1] and the whole numbers [..., 8] by which it is multiplied for `values`."""
    most = values.max(axis=-1, keepdims=True)
    whole = np.rint(values * (_MOST_SCALE * inverse(most))).clip(0, _MOST_SCALE)
    return to_half(most / np.float32(_MOST_SCALE)), whole


def _pack_scales(scales: _Bytes, minima: _Bytes) -> _Bytes:
    """Pack scales and minima [..., 8] of 6 bits to 12 bytes, as `dequantise` of these formats reads them."""
    early, late = np.split(scales, 2, axis=-1)
    early_minima, late_minima = np.split(minima, 2, axis=-1)
    first, second = early | (late >> 4) << np.uint8(6), early_minima | (late_minima >> 4) << np.uint8(6)
    return np.concatenate([first, second, (late & 15) | (late_minima & 15) << np.uint8(4)], axis=-1)


IQ4_LEVELS: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The levels of IQ4_NL and IQ4_XS (ggml's kvalues_iq4nl)."""


@dataclass(frozen=True, slots=True)
class GgufFormat:
    """A block format of GGUF, see `BlockFormat`. Without `quantiser`, matrices are only kept in it as they are."""

    name: str
    code_bits: int
    block_columns: int
    num_figures: int
    num_scales: int
    dequantise: Callable[[Codes, Figures], F32] = field(compare=False)
    quantiser: Callable[[F32], tuple[Codes, Figures]] | None = field(default=None, compare=False)

    def quantise(self, blocks: F32, _num_whole: int, /) -> tuple[Codes, Figures]:
        """Do as `BlockFormat.quantise`. Raises ModelError if blocks are only kept."""
        if self.quantiser is None:
            raise ModelError(f"weights can't be converted to {self.name}: such blocks are only kept as a file has them")
        return self.quantiser(blocks)


# Numbers of blocks. Figures are f16 numbers, and after them, as bits, the bytes of the scales of a block's parts.


def _affine(steps: NDArray[np.float32], scales: F32, minima: F32 | None = None) -> F32:
    """Return weights [..., B]: the steps [..., B] times `scales` [..., parts], minus `minima`, for each part."""
    parts = steps.reshape(*scales.shape, -1)
    weights = parts * scales[..., np.newaxis]
    if minima is not None:
        weights -= minima[..., np.newaxis]
    return weights.reshape(steps.shape)


def _minus(codes: Codes, middle: int) -> F32:
    return codes.astype(np.float32) - np.float32(middle)


def _halves(figures: Figures, count: int) -> list[F32]:
    """Return the first figures of blocks, each [..., 1], as f32."""
    return np.split(figures[..., :count].astype(np.float32), count, axis=-1)


def _bytes(figures: Figures) -> _Bytes:
    return np.ascontiguousarray(figures).view(np.uint8)


def _q2_k(codes: Codes, figures: Figures) -> F32:
    scale, minimum = _halves(figures, 2)
    parts = _bytes(figures[..., 2:])
    return _affine(codes.astype(np.float32), scale * (parts & 15), minimum * (parts >> 4))


def _q3_k(codes: Codes, figures: Figures) -> F32:
    (scale,) = _halves(figures, 1)
    low, high = np.split(_bytes(figures[..., 2:]), [8], axis=-1)
    parts = _spread(low, 2, 4, 8) | _spread(high, 4, 2, 4) << np.uint8(4)
    return _affine(_minus(codes, 4), scale * _minus(parts, 32))


def _scales_and_minima(codes: Codes, figures: Figures) -> F32:
    scale, minimum = _halves(figures, 2)
    first, second, rest = np.split(_bytes(figures[..., 2:]), 3, axis=-1)
    scales = np.concatenate([first & 63, (rest & 15) | ((first >> 2) & 48)], axis=-1)
    minima = np.concatenate([second & 63, (rest >> 4) | ((second >> 2) & 48)], axis=-1)
    return _affine(codes.astype(np.float32), scale * scales, minimum * minima)


def _q6_k(codes: Codes, figures: Figures) -> F32:
    (scale,) = _halves(figures, 1)
    return _affine(_minus(codes, 32), scale * _bytes(figures[..., 2:]).view(np.int8))


def _iq4_xs(codes: Codes, figures: Figures) -> F32:
    (scale,) = _halves(figures, 1)
    high = figures[..., 1:2].view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16)
    low = _spread(_bytes(figures[..., 2:]), 2, 4, 1)
    parts = low | (high.astype(np.uint8) & np.uint8(3)) << np.uint8(4)
    return _affine(_levels(codes), scale * _minus(parts, 32))


def _levels(codes: Codes) -> F32:
    return np.array(IQ4_LEVELS, np.float32)[codes]


def _offset(codes: Codes, figures: Figures) -> F32:
    scale, offset = _halves(figures, 2)
    return _affine(codes.astype(np.float32), scale, -offset)


_GGUF_FORMATS: Final = (
    GgufFormat("q5_0", 5, 32, 1, 1, lambda codes, figures: _affine(_minus(codes, 16), *_halves(figures, 1))),
    GgufFormat("q5_1", 5, 32, 2, 2, _offset),
    GgufFormat("iq4_nl", 4, 32, 1, 1, lambda codes, figures: _affine(_levels(codes), *_halves(figures, 1))),
    GgufFormat("iq4_xs", 4, 256, 4, 1, _iq4_xs),
    GgufFormat("q2_k", 2, 256, 10, 2, _q2_k),
    GgufFormat("q3_k", 3, 256, 8, 1, _q3_k),
    GgufFormat("q4_k", 4, 256, 8, 2, _scales_and_minima, partial(quantise_range, code_bits=4)),
    GgufFormat("q5_k", 5, 256, 8, 2, _scales_and_minima, partial(quantise_range, code_bits=5)),
    GgufFormat("q6_k", 6, 256, 10, 1, _q6_k, quantise_signed),
)

BLOCK_FORMATS: Final[Mapping[str, BlockFormat]] = {
    **PLAIN_FORMATS,
    **{each.name: each for each in _GGUF_FORMATS if each.quantiser is not None},
}
"""The block formats to which weights can be converted."""

KEPT_FORMATS: Final[Mapping[str, BlockFormat]] = {**BLOCK_FORMATS, **{each.name: each for each in _GGUF_FORMATS}}
"""The same, and those in which matrices are only kept. A figure of zero is added to those of Q3_K and Q6_K, so that the
bytes after it begin at a multiple of four.
"""

# A file's bytes of blocks [..., bytes], split into this project's bytes of figures and of codes, and joined again.


class _Order(NamedTuple):
    split: Callable[[_Bytes], tuple[_Bytes, _Bytes]]
    join: Callable[[_Bytes, _Bytes], _Bytes]


def read_blocks(name: str, data: _Bytes, shape: tuple[int, ...]) -> Blocks:
    """Convert the bytes `data` of a GGUF matrix of `shape` in blocks called `name` to this project's blocks."""
    chosen = KEPT_FORMATS[name.lower()]
    num_rows, num_columns = shape
    blocks = data.reshape(num_rows, num_columns // chosen.block_columns, -1)
    figures, codes = _ORDERS[name].split(blocks)
    return Blocks(chosen, num_columns, codes, np.ascontiguousarray(figures).view(np.float16))


def write_blocks(blocks: Blocks) -> _Bytes:
    """Convert a matrix in this project's blocks to the bytes [R, bytes of a row] of a GGUF file, for R rows."""
    return _ORDERS[blocks.format.name.upper()].join(_bytes(blocks.figures), blocks.codes).reshape(len(blocks), -1)


def is_gguf_block(name: str) -> bool:
    """Return True if GGUF has blocks called `name`."""
    return name in _ORDERS


_HALF: Final = 16  # bytes that have the codes of 32 weights, those of the first 16 in their lower halves


def _split_nibbles(blocks: _Bytes) -> tuple[_Bytes, _Bytes]:
    return blocks[..., :-_HALF], _nibbles(blocks[..., -_HALF:], _HALF)


def _join_nibbles(figures: _Bytes, codes: _Bytes) -> _Bytes:
    return np.concatenate([figures, _gather(unpack_codes(codes, 4), 2, 4, _HALF)], axis=-1)


# These functions return codes in the order of columns, packed as by `pack_codes`, from bytes that have codes of columns
# far apart. They compute with 8 bytes at once: a shift brings the codes of neighbours into one byte, and of those bytes
# every second, fourth or eighth is taken.


def _nibbles(packed: _Bytes, columns: int) -> _Bytes:
    """Return codes [..., bytes] of which `columns` bytes have those of as many weights, and then of the next ones."""
    words = np.ascontiguousarray(packed).view(np.uint64)
    codes = np.empty((*packed.shape[:-1], packed.shape[-1] // columns, 2, columns // 16), np.uint64)
    for end in range(2):
        own = words >> np.uint64(4 * end)
        own &= np.uint64(0x0F0F0F0F0F0F0F0F)
        own |= own >> np.uint64(4)
        parts = own.view(np.uint16).astype(np.uint8).view(np.uint64).reshape(codes[..., end, :].shape)
        for place in range(columns // 16):  # numpy is slow along a short last dimension
            codes[..., end, place] = parts[..., place]
    return codes.view(np.uint8).reshape(packed.shape)


def _pairs(packed: _Bytes) -> _Bytes:
    """Return codes of 2 bits [..., bytes] of which 32 bytes have those of 4 times 32 weights."""
    words = np.ascontiguousarray(packed).view(np.uint64)
    codes = np.empty((*packed.shape[:-1], packed.shape[-1] // 32, 4), np.uint64)
    for part in range(4):
        own = words >> np.uint64(2 * part)
        own &= np.uint64(0x0303030303030303)
        own |= own >> np.uint64(6)
        own |= own >> np.uint64(12)
        codes[..., part] = own.view(np.uint32).astype(np.uint8).view(np.uint64)
    return codes.view(np.uint8).reshape(packed.shape)


def _bits(packed: _Bytes) -> _Bytes:
    """Return codes of 1 bit [..., 32 bytes] of which 32 bytes have those of 8 times 32 weights."""
    words = np.ascontiguousarray(packed).view(np.uint64)  # each is a matrix of 8 times 8 bits, which is transposed
    for shift, mask in ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0)):
        swapped = (words ^ (words >> np.uint64(shift))) & np.uint64(mask)
        words = words ^ swapped ^ (swapped << np.uint64(shift))
    parts = words.view(np.uint8).reshape(*packed.shape[:-1], 4, 8)
    return np.ascontiguousarray(parts.swapaxes(-1, -2)).reshape(packed.shape)


def _with_high(low: _Bytes, high: _Bytes) -> _Bytes:
    """Join low bits [..., bytes] and high bits to the items of `pack_codes`, of which each has 4 bytes of high bits."""
    highs = np.ascontiguousarray(high).view(np.uint32)
    lows = low.view(np.uint32).reshape(*highs.shape, -1)
    items = np.empty((*highs.shape, lows.shape[-1] + 1), np.uint32)
    for place in range(lows.shape[-1]):
        items[..., place] = lows[..., place]
    items[..., -1] = highs
    return items.view(np.uint8).reshape(*low.shape[:-1], -1)


def _spread(packed: _Bytes, num_parts: int, bits: int, columns: int) -> _Bytes:
    """Return the codes [..., parts * columns] of which each byte of `packed` [..., bytes] has several.

    `columns` bytes have the codes of the first `columns` weights in their lowest `bits` bits, then of the next ones.
    """
    groups = packed.reshape(*packed.shape[:-1], -1, 1, columns)
    shifts = (np.arange(num_parts, dtype=np.uint8) * np.uint8(bits))[:, np.newaxis]
    return ((groups >> shifts) & np.uint8((1 << bits) - 1)).reshape(*packed.shape[:-1], -1)


def _gather(codes: _Bytes, num_parts: int, bits: int, columns: int) -> _Bytes:
    parts = codes.reshape(*codes.shape[:-1], -1, num_parts, columns)
    packed = np.zeros((*parts.shape[:-2], columns), np.uint8)
    for part in range(num_parts):
        packed |= parts[..., part, :] << np.uint8(bits * part)
    return packed.reshape(*codes.shape[:-1], -1)


def _split_fives(blocks: _Bytes) -> tuple[_Bytes, _Bytes]:
    high = blocks[..., -_HALF - 4 : -_HALF]  # fifth bits lie in the order of columns already
    return blocks[..., : -_HALF - 4], _with_high(_nibbles(blocks[..., -_HALF:], _HALF), high)


def _join_fives(figures: _Bytes, codes: _Bytes) -> _Bytes:
    return np.concatenate([figures, codes[..., _HALF:], _gather(unpack_codes(codes[..., :_HALF], 4), 2, 4, _HALF)], -1)


def _split_q2_k(blocks: _Bytes) -> tuple[_Bytes, _Bytes]:
    return np.concatenate([blocks[..., 80:], blocks[..., :16]], axis=-1), _pairs(blocks[..., 16:80])


def _join_q2_k(figures: _Bytes, codes: _Bytes) -> _Bytes:
    return np.concatenate([figures[..., 4:], _gather(unpack_codes(codes, 2), 4, 2, 32), figures[..., :4]], axis=-1)


def _split_q3_k(blocks: _Bytes) -> tuple[_Bytes, _Bytes]:
    codes = _with_high(_pairs(blocks[..., 32:96]), _bits(blocks[..., :32]))
    return _padded(blocks[..., 108:], blocks[..., 96:108]), codes


def _join_q3_k(figures: _Bytes, codes: _Bytes) -> _Bytes:
    codes = unpack_codes(codes, 3)
    high, low = _gather(codes >> np.uint8(2), 8, 1, 32), _gather(codes & np.uint8(3), 4, 2, 32)
    return np.concatenate([high, low, figures[..., 4:], figures[..., :2]], axis=-1)


def _split_q4_k(blocks: _Bytes) -> tuple[_Bytes, _Bytes]:
    return blocks[..., :16], _nibbles(blocks[..., 16:], 32)


def _join_q4_k(figures: _Bytes, codes: _Bytes) -> _Bytes:
    return np.concatenate([figures, _gather(unpack_codes(codes, 4), 2, 4, 32)], axis=-1)


def _split_q5_k(blocks: _Bytes) -> tuple[_Bytes, _Bytes]:
    return blocks[..., :16], _with_high(_nibbles(blocks[..., 48:], 32), _bits(blocks[..., 16:48]))


def _join_q5_k(figures: _Bytes, codes: _Bytes) -> _Bytes:
    codes = unpack_codes(codes, 5)
    high, low = _gather(codes >> np.uint8(4), 8, 1, 32), _gather(codes & np.uint8(15), 2, 4, 32)
    return np.concatenate([figures, high, low], axis=-1)


def _split_q6_k(blocks: _Bytes) -> tuple[_Bytes, _Bytes]:
    codes = _with_high(_nibbles(blocks[..., :128], 64), _pairs(blocks[..., 128:192]))
    return _padded(blocks[..., 208:], blocks[..., 192:208]), codes


def _join_q6_k(figures: _Bytes, codes: _Bytes) -> _Bytes:
    codes = unpack_codes(codes, 6)
    low, high = _gather(codes & np.uint8(15), 2, 4, 64), _gather(codes >> np.uint8(4), 4, 2, 32)
    return np.concatenate([low, high, figures[..., 4:], figures[..., :2]], axis=-1)


def _padded(scale: _Bytes, parts: _Bytes) -> _Bytes:
    return np.concatenate([scale, np.zeros_like(scale), parts], axis=-1)


def _split_iq4_xs(blocks: _Bytes) -> tuple[_Bytes, _Bytes]:
    return blocks[..., :8], _nibbles(blocks[..., 8:], _HALF)


_ORDERS: Final[Mapping[str, _Order]] = {
    "Q8_0": _Order(
        lambda blocks: (blocks[..., :2], np.ascontiguousarray(blocks[..., 2:])),
        lambda figures, codes: np.concatenate([figures, codes], axis=-1),
    ),
    **dict.fromkeys(("Q4_0", "Q4_1", "IQ4_NL"), _Order(_split_nibbles, _join_nibbles)),
    **dict.fromkeys(("Q5_0", "Q5_1"), _Order(_split_fives, _join_fives)),
    "IQ4_XS": _Order(_split_iq4_xs, _join_nibbles),
    "Q2_K": _Order(_split_q2_k, _join_q2_k),
    "Q3_K": _Order(_split_q3_k, _join_q3_k),
    "Q4_K": _Order(_split_q4_k, _join_q4_k),
    "Q5_K": _Order(_split_q5_k, _join_q5_k),
    "Q6_K": _Order(_split_q6_k, _join_q6_k),
}
