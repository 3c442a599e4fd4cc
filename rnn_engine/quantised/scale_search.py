"""Search for the scales of 4-bit blocks that lose the least: less than the scales that just reach the farthest weight.

Each start of the search gives every weight its nearest code; the scale and the offset that fit these codes best follow
from least squares. A block keeps the scale that it had before unless the one found makes its squared error less and
uses the greatest code, by which a block that was quantised before is known again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rnn_engine.quantised.blocks import F32

Nearest: TypeAlias = Callable[[F32], F32]
"""Replaces each number by the nearest that a code stands for. May write to its argument."""

Halves: TypeAlias = NDArray[np.float16]

_F16_MAX: Final = np.float32(np.finfo(np.float16).max)
_STEPS: Final = np.float32(15)
_CHUNK: Final = 1 << 16  # weights that are looked at together: what a core's cache holds
_RANGE_SHARES: Final = (1.0, 0.9, 0.8)


def search_scales(blocks: F32, scales: Halves, shares: tuple[float, ...], greatest: float, nearest: Nearest) -> Halves:
    """Return a scale for each of `blocks` [..., B], searched for from `scales` [...] times each of `shares`.

    `scales` are those with which the farthest weight of a block has the code `greatest`, up to its sign.
    """
    found = np.empty(scales.shape, np.float16)
    for chunk, part in _chunks(blocks):
        before = scales.reshape(-1)[part].astype(np.float32)
        found.reshape(-1)[part] = _search_scale(chunk, before, shares, greatest, nearest)
    return found


def search_ranges(blocks: F32, scales: Halves) -> Halves:
    """Return a scale and an offset [..., 2] for each of `blocks` [..., B], whose codes are 0 to 15.

    `scales` are those that reach from the least weight of a block to its greatest.
    """
    found = np.empty(scales.shape, np.float16)
    for chunk, part in _chunks(blocks):
        before = scales.reshape(-1, 2)[part].astype(np.float32)
        found.reshape(-1, 2)[part] = np.stack(_search_range(chunk, before[:, 0], before[:, 1]), axis=-1)
    return found


def divide(blocks: F32, scales: F32) -> F32:
    """Return `blocks` [..., B] in parts of their `scales` [...]; 0 where a scale is 0."""
    return blocks * _inverse(scales)[..., np.newaxis]


def nearest_steps(blocks: F32, scales: F32, offsets: F32) -> F32:
    """Return the codes, 0 to 15, that come nearest to `blocks` [..., B] with `scales` and `offsets` [...]."""
    codes = divide(blocks, scales)
    codes -= (offsets * _inverse(scales))[..., np.newaxis]
    np.rint(codes, out=codes)
    return codes.clip(0, _STEPS, out=codes)


def to_half(values: F32) -> Halves:
    """Return `values` as the nearest that 16 bits hold, the greatest of them for those beyond."""
    return np.clip(values, -_F16_MAX, _F16_MAX).astype(np.float16)


def _search_scale(blocks: F32, before: F32, shares: tuple[float, ...], greatest: float, nearest: Nearest) -> F32:
    best = np.full(len(blocks), -1, np.float32)
    found = before

    def fit(scales: F32) -> None:
        nonlocal best, found
        codes = nearest(divide(blocks, scales))
        product, square = _dot(blocks, codes), _inverse(_dot(codes, codes))
        explained = product * product * square  # what the codes, scaled at best, take off the squares' sum
        is_better = explained > best
        best = np.where(is_better, explained, best)
        found = np.where(is_better, product * square, found)

    def error(scales: F32) -> tuple[F32, F32]:
        codes = nearest(divide(blocks, scales))
        miss = codes * scales[:, np.newaxis] - blocks
        return _dot(miss, miss), np.abs(codes).max(axis=-1)

    with np.errstate(all="ignore"):  # what overflows is never less
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
        covariance = _dot(blocks, codes) - total * sum_ / width
        variance = _inverse(_dot(codes, codes) - sum_ * sum_ / width)
        explained = covariance * covariance * variance
        is_better = explained > best
        best = np.where(is_better, explained, best)
        slope = covariance * variance
        fitted = slope, (total - slope * sum_) / width
        found = np.where(is_better, fitted[0], found[0]), np.where(is_better, fitted[1], found[1])

    def error(scale: F32, offset: F32) -> tuple[F32, F32]:
        codes = nearest_steps(blocks, scale, offset)
        miss = codes * scale[:, np.newaxis] + offset[:, np.newaxis] - blocks
        return _dot(miss, miss), codes.max(axis=-1) - codes.min(axis=-1)

    with np.errstate(all="ignore"):  # what overflows is never less
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


def _chunks(blocks: F32) -> Iterator[tuple[F32, slice]]:
    """Yield `blocks` [..., B] as [M, B], a chunk at a time, and which of all blocks they are."""
    flat = blocks.reshape(-1, blocks.shape[-1])
    step = _CHUNK // blocks.shape[-1]
    for start in range(0, len(flat), step):
        part = slice(start, start + step)
        yield flat[part], part


def _dot(left: F32, right: F32) -> F32:
    product: F32 = np.einsum("...i,...i->...", left, right)
    return product


def _inverse(values: F32) -> F32:
    """Return 1 / `values`, 0 for those that are 0."""
    return np.divide(1, values, out=np.zeros_like(values), where=values != 0)
