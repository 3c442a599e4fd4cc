"""Matrices in the order that the matmul kernels read: panels of 8 rows, cut in blocks of columns."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from rnn_engine.quantised import blocks_of_row
from rnn_engine.types import F32

PANEL_ROWS = 8  # the constant PANEL of segments.wgsl
COLUMNS_AT_ONCE = 8  # that a kernel loads of a row, whatever the width of a block


def round_up(count: int, multiple: int) -> int:
    """Return the least multiple of `multiple` that is no less than `count`."""
    return -(-count // multiple) * multiple


def to_panels(matrix: NDArray[Any], block_columns: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return [R, C] of any float type as [R / 8, C / B, 8 rows, B columns] of `dtype`, a float type.

    It is zero where R and C had to be rounded up. A value beyond the range of `dtype` becomes its greatest.
    """
    target = np.dtype(dtype)
    num_rows, num_columns = matrix.shape
    shape = (-(-num_rows // PANEL_ROWS), blocks_of_row(num_columns, block_columns), PANEL_ROWS, block_columns)
    panels = np.zeros(shape, target)
    if np.dtype(matrix.dtype) != target:
        limit = float(ml_dtypes.finfo(target).max)  # type: ignore[no-untyped-call]
        matrix = np.clip(matrix.astype(np.float32), -limit, limit)
    view = panels.transpose(0, 2, 1, 3)  # [R / 8, 8, C / B, B]
    whole = num_columns // block_columns
    for row in range(PANEL_ROWS):
        lines = matrix[row::PANEL_ROWS]  # every eighth row: one of each panel
        view[: len(lines), row, :whole] = lines[:, : whole * block_columns].reshape(len(lines), whole, block_columns)
        if num_columns % block_columns:
            view[: len(lines), row, whole, : num_columns % block_columns] = lines[:, whole * block_columns :]
    return panels


def from_panels(panels: NDArray[Any], num_rows: int, num_columns: int) -> F32:
    """Return the matrix [num_rows, num_columns] that `to_panels` made `panels` of."""
    matrix = panels.transpose(0, 2, 1, 3).reshape(panels.shape[0] * PANEL_ROWS, -1)
    return np.ascontiguousarray(matrix[:num_rows, :num_columns], np.float32)


def arrange_blocks(rows: NDArray[Any], item_bytes: int) -> NDArray[np.uint8]:
    """Return blocks [R, C / B, bytes] as [R / 8, C / B, items, 8 rows, item_bytes]: items of 8 rows side by side.

    It is zero where R had to be rounded up.
    """
    num_rows, num_blocks = rows.shape[:2]
    items = np.ascontiguousarray(rows).view(f"V{item_bytes}").reshape(num_rows, num_blocks, -1)
    shape = (-(-num_rows // PANEL_ROWS), num_blocks, items.shape[-1], PANEL_ROWS)
    arranged = np.zeros(shape, items.dtype)
    for row in range(PANEL_ROWS):
        lines = items[row::PANEL_ROWS]  # every eighth row: one of each panel
        arranged[: len(lines), ..., row] = lines
    return arranged.view(np.uint8).reshape(*shape, item_bytes)


def restore_blocks(arranged: NDArray[np.uint8], num_rows: int) -> NDArray[np.uint8]:
    """Return the blocks [num_rows, C / B, bytes] that `arrange_blocks` made `arranged` of."""
    panels, num_blocks, items, _, item_bytes = arranged.shape
    rows = arranged.transpose(0, 3, 1, 2, 4).reshape(panels * PANEL_ROWS, num_blocks, items * item_bytes)
    return np.ascontiguousarray(rows[:num_rows])
