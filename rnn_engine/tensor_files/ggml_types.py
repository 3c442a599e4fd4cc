"""The element types of GGUF tensors: plain numbers, and blocks of consecutive weights of a row with their scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ElementType:
    """An element type of ggml: how many bytes store a number or a block of numbers, and numpy's type to read them."""

    name: str
    block_size: int  # numbers
    block_bytes: int
    dtype: np.dtype[Any]

    @property
    def is_block(self) -> bool:
        return self.block_size > 1

    def decode(self, data: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the numbers of a tensor of `shape` from its stored bytes; numbers in blocks are decoded to f32."""
        if not self.is_block:
            return data.view(self.dtype).reshape(shape)
        from gguf import GGMLQuantizationType, quants

        blocks = data.reshape(-1, shape[-1] // self.block_size * self.block_bytes)  # [rows, bytes of a row]
        with np.errstate(all="ignore"):  # of a damaged block: its scale may be anything
            numbers = quants.dequantize(blocks, GGMLQuantizationType[self.name])
        return numbers.reshape(shape)


def _plain(name: str, dtype: Any) -> ElementType:  # noqa: ANN401
    return ElementType(name, 1, np.dtype(dtype).itemsize, np.dtype(dtype))


def _blocks(name: str, block_size: int, block_bytes: int) -> ElementType:
    return ElementType(name, block_size, block_bytes, np.dtype(np.float32))


ELEMENT_TYPES: Final[Mapping[int, ElementType]] = {
    0: _plain("F32", np.float32),
    1: _plain("F16", np.float16),
    2: _blocks("Q4_0", 32, 18),
    3: _blocks("Q4_1", 32, 20),
    6: _blocks("Q5_0", 32, 22),
    7: _blocks("Q5_1", 32, 24),
    8: _blocks("Q8_0", 32, 34),
    10: _blocks("Q2_K", 256, 84),
    11: _blocks("Q3_K", 256, 110),
    12: _blocks("Q4_K", 256, 144),
    13: _blocks("Q5_K", 256, 176),
    14: _blocks("Q6_K", 256, 210),
    20: _blocks("IQ4_NL", 32, 18),
    23: _blocks("IQ4_XS", 256, 136),
    30: _plain("BF16", ml_dtypes.bfloat16),
}
"""The number that a GGUF file gives for an element type -> the type."""
