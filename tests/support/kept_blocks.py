"""Random matrices in the blocks of GGUF. No search would find their scales, as with those of an importance matrix."""

from __future__ import annotations

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from numpy.typing import NDArray

from rnn_engine.quantised import Blocks
from rnn_engine.quantised.gguf_blocks import read_blocks

ONLY_KEPT = ("Q5_0", "Q5_1", "IQ4_NL", "IQ4_XS", "Q2_K", "Q3_K")  # to which nothing is converted
KINDS = ("Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K", *ONLY_KEPT)
_SCALES = {
    "Q8_0": slice(2),
    "Q4_0": slice(2),
    "Q4_1": slice(4),
    "Q5_0": slice(2),
    "Q5_1": slice(4),
    "IQ4_NL": slice(2),
    "IQ4_XS": slice(2),
    "Q2_K": slice(-4, None),
    "Q3_K": slice(-2, None),
    "Q4_K": slice(4),
    "Q5_K": slice(4),
    "Q6_K": slice(-2, None),
}
_FINITE = 0x7C00  # f16 below it are finite


def random_bytes(kind: str, rows: int, columns: int, *, seed: int = 5, wild: bool = False) -> NDArray[np.uint8]:
    """Return the bytes [rows, bytes of a row] of random blocks; if `wild`, with scales of every size that f16 has."""
    generator = np.random.default_rng(seed)
    block_size, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = generator.integers(0, 256, (rows, columns // block_size, block_bytes), np.uint8)
    scales = blocks[..., _SCALES[kind]]
    count = scales.shape[-1] // 2
    if wild:
        halves = generator.integers(0, _FINITE, (*scales.shape[:2], count), np.uint16)
        halves |= generator.integers(0, 2, halves.shape, np.uint16) << 15
    else:
        size = 0.02 if block_size == 32 else 0.001
        halves = generator.normal(0.0, size, (*scales.shape[:2], count)).astype(np.float16).view(np.uint16)
    scales[...] = halves.view(np.uint8)
    return blocks.reshape(rows, -1)


def dequantised(kind: str, data: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the numbers of blocks as the package gguf has them."""
    return quants.dequantize(data, GGMLQuantizationType[kind])


def random_kept(kind: str, rows: int, columns: int, *, seed: int = 5, wild: bool = False) -> Blocks:
    """Return a random matrix in the blocks of this project that GGUF's blocks `kind` become."""
    data = random_bytes(kind, rows, columns, seed=seed, wild=wild)
    return read_blocks(kind, data.reshape(-1), (rows, columns))
