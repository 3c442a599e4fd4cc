"""A matrix in blocks: for each weight a code of 8 or 4 bits, and for each block the figures that give it its value."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Codes = NDArray[np.uint8] | NDArray[np.int8]
Figures = NDArray[np.float16]

_PIECE_BYTES: Final = 16 << 20  # of weights in f32 that are quantised at once


class BlockFormat(Protocol):
    """A way to write the weights of a block as integers and a few halves."""

    @property
    def name(self) -> str: ...

    @property
    def block_columns(self) -> int:
        """How many weights a block has; a multiple of 8."""
        ...

    @property
    def code_bits(self) -> int:
        """8, or 4."""
        ...

    @property
    def num_figures(self) -> int:
        """How many halves a block has besides its codes."""
        ...

    def quantise(self, blocks: F32, num_whole: int, /) -> tuple[Codes, Figures]:
        """Return codes [R, C / B, B], each in a byte, and figures [R, C / B, n], of `blocks` [R, C / B, B].

        The first `num_whole` blocks of each row have no zeros that only fill them up.
        """
        ...

    def dequantise(self, codes: Codes, figures: Figures) -> F32:
        """Return the weights [..., B] that a device computes with; `codes` are unsigned where they have 4 bits."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """A matrix [R, C] in blocks of B weights; the last of a row may reach beyond it."""

    format: BlockFormat
    num_columns: int
    codes: NDArray[np.uint8]  # [R, C / B, bytes]: a byte a code, or two codes, the first in the lower half
    figures: Figures  # [R, C / B, n]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.codes), self.num_columns

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice) -> Blocks:
        """Return some of the rows, as a view."""
        return replace(self, codes=self.codes[rows], figures=self.figures[rows])

    def numbers(self) -> F32:
        """Return the weights [R, C] that a device computes with."""
        codes = self.codes
        if self.format.code_bits == 4:
            codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)
        with np.errstate(all="ignore"):  # the figures of a damaged file may be anything
            weights = self.format.dequantise(codes, self.figures)
        return weights.reshape(len(self), -1)[:, : self.num_columns]

    def scaled(self, factor: float) -> Blocks | None:
        """Return the matrix times a power of 2; None where a figure would be too large."""
        with np.errstate(over="ignore"):
            figures = self.figures * np.float16(factor)
        return replace(self, figures=figures) if np.isfinite(figures).all() else None


def bytes_of_codes(block_format: BlockFormat) -> int:
    """Return the bytes that the codes of a block take."""
    return block_format.block_columns * block_format.code_bits // 8


def blocks_of_row(num_columns: int, block_columns: int) -> int:
    """Return how many blocks a row has, the last of them perhaps not full."""
    return -(-num_columns // block_columns)


def quantise(block_format: BlockFormat, matrix: NDArray[Any]) -> Blocks:
    """Return a matrix [R, C] of any float type in blocks. Works on all cores; takes 1.5 times the result's memory."""
    num_rows, num_columns = matrix.shape
    step = max(1, _PIECE_BYTES // (4 * num_columns))
    starts = range(0, num_rows, step)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pieces = list(pool.map(lambda start: quantise_rows(block_format, matrix[start : start + step]), starts))
    codes, figures = ([getattr(piece, part) for piece in pieces] for part in ("codes", "figures"))
    return Blocks(block_format, num_columns, np.concatenate(codes), np.concatenate(figures))


def quantise_rows(block_format: BlockFormat, matrix: NDArray[Any]) -> Blocks:
    """Return what `quantise` returns, on the calling thread alone."""
    num_rows, num_columns = matrix.shape
    row_blocks = blocks_of_row(num_columns, block_format.block_columns)
    padded = np.zeros((num_rows, row_blocks * block_format.block_columns), np.float32)
    padded[:, :num_columns] = matrix
    codes, figures = block_format.quantise(
        padded.reshape(num_rows, row_blocks, -1), num_columns // block_format.block_columns
    )
    stored = codes.view(np.uint8)
    if block_format.code_bits == 4:
        stored = stored[..., ::2] + np.uint8(16) * stored[..., 1::2]
    return Blocks(block_format, num_columns, stored, figures)
