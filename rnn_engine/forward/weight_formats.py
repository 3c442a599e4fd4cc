"""How the weights of a matrix are stored on a device.

A new format is a class with these fields and methods, a WGSL file with its load function, and an entry in
`WEIGHT_FORMATS`; `weight_choice` says which matrix has which. The kernels have no format in them: they ask
`load_weights` for 8 columns of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from rnn_engine.forward.packing import (
    COLUMNS_AT_ONCE,
    arrange_blocks,
    from_panels,
    restore_blocks,
    to_panels,
)
from rnn_engine.quantised import BLOCK_FORMATS, BlockFormat, Blocks, blocks_of_row, bytes_of_codes, quantise_rows
from rnn_engine.types import F32
from shaders import Include


class WeightFormat(Protocol):
    """A way to store matrices. A block is `block_columns` consecutive weights of one row.

    The blocks of a matrix lie in panels of 8 rows: [rows / 8][columns / block_columns][8 rows], both rounded up.
    How the bytes of the 8 blocks side by side are ordered is the format's own affair.
    """

    @property
    def name(self) -> str: ...

    @property
    def block_columns(self) -> int:
        """A multiple of 8."""
        ...

    @property
    def block_bytes(self) -> Mapping[str, int]:
        """For each of its buffers, by the variable's name in the WGSL, the bytes that a block has in it."""
        ...

    @property
    def include(self) -> Include:
        """A WGSL file that declares these variables, one at binding 2 and the others from 6 on, and a load function.

        `fn load_weights(row: u32, eight: u32) -> Eight` returns the 8 columns from 8 * `eight` on of the row whose
        first block is the block number `row`. The row's next block is 8 blocks further on; every panel begins at
        a multiple of 8.
        """
        ...

    @property
    def packed(self) -> Include | None:
        """A WGSL file by which its bytes are multiplied with inputs in bytes; None where weights are no bytes.

        It includes `include` and declares what products_int8.wgsl and tiles_int8.wgsl leave to the format: `Scale`,
        `load_bytes`, `load_scale` and `add_block`.
        """
        ...

    def pack(self, matrix: NDArray[Any] | Blocks) -> dict[str, NDArray[Any]]:
        """Return what each buffer holds of a matrix [R, C] of any float type, block after block.

        Blocks of this format itself are kept as they are.
        """
        ...

    def unpack(self, arrays: Mapping[str, NDArray[Any]], num_rows: int, num_columns: int) -> F32:
        """Return the weights [R, C] that a device computes with where `pack` returned `arrays`."""
        ...


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """Weights as floats of one type; those beyond its range become its greatest."""

    name: str
    dtype: DTypeLike
    include: Include
    block_columns: int = 8
    packed: None = None

    @property
    def block_bytes(self) -> Mapping[str, int]:
        return {"weights": self.block_columns * np.dtype(self.dtype).itemsize}

    def pack(self, matrix: NDArray[Any] | Blocks) -> dict[str, NDArray[Any]]:
        return {"weights": to_panels(_numbers(matrix), self.block_columns, self.dtype)}

    def unpack(self, arrays: Mapping[str, NDArray[Any]], num_rows: int, num_columns: int) -> F32:
        return from_panels(arrays["weights"], num_rows, num_columns)


@dataclass(frozen=True, slots=True)
class QuantisedFormat:
    """Weights in blocks of codes with figures, halves that are `figures` in the WGSL."""

    blocks: BlockFormat
    include: Include
    figures: str
    packed: Include | None = None

    @property
    def name(self) -> str:
        return self.blocks.name

    @property
    def block_columns(self) -> int:
        return self.blocks.block_columns

    @property
    def block_bytes(self) -> Mapping[str, int]:
        return {"weights": bytes_of_codes(self.blocks), self.figures: 2 * self.blocks.num_figures}

    def pack(self, matrix: NDArray[Any] | Blocks) -> dict[str, NDArray[Any]]:
        if not isinstance(matrix, Blocks) or matrix.format != self.blocks:
            matrix = quantise_rows(self.blocks, _numbers(matrix))
        return {
            "weights": arrange_blocks(matrix.codes, COLUMNS_AT_ONCE * self.blocks.code_bits // 8),
            self.figures: arrange_blocks(matrix.figures.view(np.uint8), 2 * self.blocks.num_figures),
        }

    def unpack(self, arrays: Mapping[str, NDArray[Any]], num_rows: int, num_columns: int) -> F32:
        codes = restore_blocks(arrays["weights"], num_rows)
        figures = restore_blocks(arrays[self.figures], num_rows).view(np.float16)
        return np.ascontiguousarray(Blocks(self.blocks, num_columns, codes, figures).numbers())


def _numbers(matrix: NDArray[Any] | Blocks) -> NDArray[Any]:
    return matrix.numbers() if isinstance(matrix, Blocks) else matrix


def row_blocks(weights: WeightFormat, num_columns: int) -> int:
    """Return how many blocks a row of a matrix with so many columns has."""
    return blocks_of_row(num_columns, weights.block_columns)


WEIGHT_FORMATS: Final[Mapping[str, WeightFormat]] = {
    "f16": FloatFormat("f16", np.float16, "weights_f16"),
    "bf16": FloatFormat("bf16", ml_dtypes.bfloat16, "weights_bf16"),
    "f32": FloatFormat("f32", np.float32, "weights_f32"),
    **{
        name: QuantisedFormat(
            each,
            f"weights_{name}",
            "ranges" if name == "int8" else "scales",
            f"packed_{name}" if each.code_bits == 8 else None,
        )
        for name, each in BLOCK_FORMATS.items()
    },
}
