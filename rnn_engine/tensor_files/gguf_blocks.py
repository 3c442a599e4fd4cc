"""GGUF's blocks Q8_0, Q4_0 and Q4_1 as this project's own, and back: the same numbers in another order of bytes.

A block begins with its figures. Of 32 codes of 4 bits, the first 16 are in the lower halves of 16 bytes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.quantised import BLOCK_FORMATS, Blocks

_NAMES: Final = frozenset({"Q8_0", "Q4_0", "Q4_1"})
_NIBBLE_BYTES: Final = 16


def keeps_blocks(name: str) -> bool:
    """Whether GGUF's blocks of this name are those of a format of `BLOCK_FORMATS`."""
    return name in _NAMES


def read_blocks(name: str, data: NDArray[np.uint8], shape: tuple[int, ...]) -> Blocks:
    """Return the matrix of `shape` whose rows `data` has in blocks called `name`."""
    chosen = BLOCK_FORMATS[name.lower()]
    num_rows, num_columns = shape
    split = data.reshape(num_rows, num_columns // chosen.block_columns, -1)
    figures = np.ascontiguousarray(split[..., : 2 * chosen.num_figures]).view(np.float16)
    codes = split[..., 2 * chosen.num_figures :]
    if chosen.code_bits == 4:
        halves = np.stack([codes & 15, codes >> 4], axis=-2).reshape(*codes.shape[:-1], -1)  # in the order of columns
        codes = halves[..., ::2] + np.uint8(16) * halves[..., 1::2]
    return Blocks(chosen, num_columns, np.ascontiguousarray(codes), figures)


def write_blocks(blocks: Blocks) -> NDArray[np.uint8]:
    """Return a matrix in blocks as the bytes [R, bytes of a row] of a GGUF file."""
    codes = blocks.codes
    if blocks.format.code_bits == 4:
        halves = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)
        codes = halves[..., :_NIBBLE_BYTES] + np.uint8(16) * halves[..., _NIBBLE_BYTES:]
    figures = np.ascontiguousarray(blocks.figures).view(np.uint8)
    return np.concatenate([figures, codes], axis=-1).reshape(len(blocks), -1)
