"""Quantise weights to Q4_K, Q5_K and Q6_K with llama.cpp's search for scales, over many blocks at once.

The search is that of ggml-quants.c without an importance matrix (make_qkx2_quants and make_qx_quants): each part of a
block tries several scales and keeps the one with the least weighted error.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.quantised.blocks import F32, Codes, Figures, chunks, divide, dot, inverse, to_half

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
