"""The formats in which a device stores weight matrices, laid out in the order that the matmul kernels read.

A new format is a class with the members of `WeightFormat`, a WGSL file with its load function, and an entry in
`WEIGHT_FORMATS`. `weight_choice` chooses the format of each matrix.
The kernels are the same for all formats: they call `load_weights` for 8 columns of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from rnn_engine.quantised import (
    BLOCK_FORMATS,
    KEPT_FORMATS,
    BlockFormat,
    Blocks,
    blocks_of_row,
    bytes_of_codes,
    columns_of_item,
    quantise_rows,
)
from rnn_engine.types import F32
from rnn_engine_shaders import Include

# Matrices in the order that the matmul kernels read: panels of 8 rows, cut in blocks of columns.

PANEL_ROWS = 8  # the constant PANEL of segments.wgsl
COLUMNS_AT_ONCE = 8  # columns of a row that a kernel loads at once, whatever the width of a block
INPUT_BLOCK = 32  # columns of inputs in bytes that share a scale: see packed_inputs.wgsl


def round_up(count: int, multiple: int) -> int:
    """Round `count` up to a multiple of `multiple`."""
    return -(-count // multiple) * multiple


def to_panels(matrix: NDArray[Any], block_columns: int, dtype: DTypeLike) -> NDArray[Any]:
    """Convert a float matrix [R, C] to the type `dtype` and the order that matmul kernels read, panels of 8 rows.

    The result is [R / 8, C / B, 8 rows, B columns], with B = `block_columns`. R and C are padded with zeros to
    multiples of 8 and B. Values out of the range of `dtype` are clamped to it.
    """
    target = np.dtype(dtype)
    if np.dtype(matrix.dtype) != target:
        matrix = _convert(matrix, target)
    if surplus := -matrix.shape[1] % block_columns:
        matrix = np.pad(matrix, ((0, 0), (0, surplus)))
    panels = _interleave(np.ascontiguousarray(matrix).view(f"V{block_columns * target.itemsize}"))
    return panels.view(target).reshape(*panels.shape, block_columns)


def _convert(matrix: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any]:
    """Convert a matrix to the float type `target`. Values out of its range are clamped to it."""
    converted: NDArray[Any]
    if matrix.dtype == ml_dtypes.bfloat16 and target == np.float16:
        converted = _halves()[matrix.view(np.uint16)]  # numpy computes halves one by one
    else:
        limit = float(ml_dtypes.finfo(target).max)  # type: ignore[no-untyped-call]
        converted = np.clip(matrix.astype(np.float32), -limit, limit).astype(target)
    return converted


@cache
def _halves() -> NDArray[np.float16]:
    """Return a table that maps the bits of each bfloat16 to its value in f16, clamped to the range of f16."""
    every = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    limit = np.finfo(np.float16).max
    halves: NDArray[np.float16] = np.clip(every, -limit, limit).astype(np.float16)
    return halves


def from_panels(panels: NDArray[Any], num_rows: int, num_columns: int) -> F32:
    """Return the matrix [num_rows, num_columns] as f32 that `to_panels` converted to `panels`."""
    matrix = panels.transpose(0, 2, 1, 3).reshape(panels.shape[0] * PANEL_ROWS, -1)
    return np.ascontiguousarray(matrix[:num_rows, :num_columns], np.float32)


def arrange_blocks(rows: NDArray[Any], item_bytes: int) -> NDArray[np.uint8]:
    """Reorder the bytes of quantised blocks [R, C / B, bytes] so that the items of 8 rows lie side by side.

    The result is [R / 8, C / B, items, 8 rows, item_bytes]: each block is cut into items of `item_bytes` bytes. R is
    padded with zeros.
    """
    num_rows, num_blocks = rows.shape[:2]
    items = np.ascontiguousarray(rows).reshape(num_rows, -1).view(f"V{item_bytes}")
    panels = _interleave(items)
    return panels.view(np.uint8).reshape(len(panels), num_blocks, -1, PANEL_ROWS, item_bytes)


def _interleave(items: NDArray[np.void]) -> NDArray[np.void]:
    """Reorder an array of items [R, K] to panels [R / 8, K, 8 rows] in one copy. R is padded with zeros."""
    num_rows, num_items = items.shape
    whole, rest = divmod(num_rows, PANEL_ROWS)
    panels = np.empty((whole + (rest > 0), num_items, PANEL_ROWS), items.dtype)
    panels[:whole] = items[: whole * PANEL_ROWS].reshape(whole, PANEL_ROWS, num_items).swapaxes(1, 2)
    if rest:
        panels[whole] = np.zeros((), items.dtype)
        panels[whole, :, :rest] = items[whole * PANEL_ROWS :].T
    return panels


def restore_blocks(arranged: NDArray[np.uint8], num_rows: int) -> NDArray[np.uint8]:
    """Return the quantised blocks [num_rows, C / B, bytes] that `arrange_blocks` reordered to `arranged`."""
    panels, num_blocks, items, _, item_bytes = arranged.shape
    rows = arranged.transpose(0, 3, 1, 2, 4).reshape(panels * PANEL_ROWS, num_blocks, items * item_bytes)
    return np.ascontiguousarray(rows[:num_rows])


class WeightFormat(Protocol):
    """A format in which the device stores matrices, in blocks of `block_columns` consecutive weights of one row.

    The blocks of a matrix lie in panels of 8 rows: [rows / 8][columns / block_columns][8 rows], both rounded up.
    The format decides how the bytes of the 8 blocks that lie side by side are ordered.
    """

    @property
    def name(self) -> str: ...

    @property
    def block_columns(self) -> int:
        """The number of a row's columns in one block of the format, a multiple of 8."""

    @property
    def block_bytes(self) -> Mapping[str, int]:
        """The size of a block in bytes in each buffer of the format, by the name of the buffer's WGSL variable."""

    @property
    def include(self) -> Include:
        """The WGSL file that a kernel includes to load weights of this format.

        It declares the variables of `block_bytes`, one at binding 2 and the others from 6 on, and a load function.

        `fn load_weights(row: u32, eight: u32) -> Eight` returns 8 columns of a row, from 8 * `eight` on.
        `row` is the number of the row's first block. Its next block is 8 blocks further on; every panel begins at a
        multiple of 8. All threads of a workgroup first call `fn prepare_weights(thread: u32)` together.
        """

    @property
    def codes(self) -> str | None:
        """The key of `Tuning.codes` of the file that `include` includes as CODES; None if there is no such file."""

    @property
    def packed(self) -> Include | None:
        """The WGSL file that multiplies weights of this format with int8 inputs; None if the weights are not bytes.

        It includes `include` and declares what products_int8.wgsl and tiles_int8.wgsl leave to the format: `Scale`,
        `load_bytes`, `load_scale` and `add_block`.
        """

    def pack(self, matrix: NDArray[Any] | Blocks) -> dict[str, NDArray[Any]]:
        """Convert a matrix [R, C] of floats or quantised blocks; return the buffers' contents by WGSL variable."""

    def unpack(self, arrays: Mapping[str, NDArray[Any]], num_rows: int, num_columns: int) -> F32:
        """Return the weights [R, C] that `pack` converted to `arrays`, rounded as the device computes with them."""


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """The weight format of floats of type `dtype`. Weights out of its range are clamped to it."""

    name: str
    dtype: DTypeLike
    include: Include
    block_columns: int = 8
    codes: None = None
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
    """The format of blocks of integer codes (see `codes`) with f16 figures, in the WGSL's variable `figures`."""

    blocks: BlockFormat
    include: Include
    figures: str
    codes: str | None
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
            "weights": arrange_blocks(
                matrix.codes, columns_of_item(self.blocks.code_bits) * self.blocks.code_bits // 8
            ),
            self.figures: arrange_blocks(matrix.figures.view(np.uint8), 2 * self.blocks.num_figures),
        }

    def unpack(self, arrays: Mapping[str, NDArray[Any]], num_rows: int, num_columns: int) -> F32:
        codes = restore_blocks(arrays["weights"], num_rows)
        figures = restore_blocks(arrays[self.figures], num_rows).view(np.float16)
        return np.ascontiguousarray(Blocks(self.blocks, num_columns, codes, figures).numbers())


def _numbers(matrix: NDArray[Any] | Blocks) -> NDArray[Any]:
    return matrix.numbers() if isinstance(matrix, Blocks) else matrix


def row_blocks(weights: WeightFormat, num_columns: int) -> int:
    """Return the number of blocks in a matrix row of `num_columns` columns, rounded up."""
    return blocks_of_row(num_columns, weights.block_columns)


_CODES: Final = dict.fromkeys(("nf4", "sf4", "iq4_nl", "iq4_xs"), "levels")


def _quantised(blocks: BlockFormat) -> QuantisedFormat:
    return QuantisedFormat(
        blocks,
        f"weights_{blocks.name}",
        "ranges" if blocks.name == "int8" else "scales",
        _CODES.get(blocks.name, "nibbles") if blocks.code_bits < 8 else None,
        f"packed_{blocks.name}" if blocks.code_bits == 8 else None,
    )


WEIGHT_FORMATS: Final[Mapping[str, WeightFormat]] = {
    "f16": FloatFormat("f16", np.float16, "weights_f16"),
    "bf16": FloatFormat("bf16", ml_dtypes.bfloat16, "weights_bf16"),
    "f32": FloatFormat("f32", np.float32, "weights_f32"),
    **{name: _quantised(each) for name, each in BLOCK_FORMATS.items()},
}
"""The formats to which a device's matrices can be converted."""

STORED_FORMATS: Final[Mapping[str, WeightFormat]] = {
    **WEIGHT_FORMATS,
    **{name: _quantised(each) for name, each in KEPT_FORMATS.items() if name not in BLOCK_FORMATS},
}
"""The same, and the blocks that a device only keeps as a file has them."""
