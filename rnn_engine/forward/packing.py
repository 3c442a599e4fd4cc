"""Matrices in the order that the matmul kernels read: panels of 8 rows, cut in blocks of columns."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from rnn_engine.types import F32

PANEL_ROWS = 8  # the constant PANEL of segments.wgsl
COLUMNS_AT_ONCE = 8  # that a kernel loads of a row, whatever the width of a block
INPUT_BLOCK = 32  # columns of inputs in bytes that share a scale: see packed_inputs.wgsl


def round_up(count: int, multiple: int) -> int:
    """Return the least multiple of `multiple` that is no less than `count`."""
    return -(-count // multiple) * multiple


def to_panels(matrix: NDArray[Any], block_columns: int, dtype: DTypeLike) -> NDArray[Any]:
    """Return [R, C] of any float type as [R / 8, C / B, 8 rows, B columns] of `dtype`, a float type.

    It is zero where R and C had to be rounded up. A value beyond the range of `dtype` becomes its greatest.
    """
    target = np.dtype(dtype)
    if np.dtype(matrix.dtype) != target:
        matrix = _convert(matrix, target)
    if surplus := -matrix.shape[1] % block_columns:
        matrix = np.pad(matrix, ((0, 0), (0, surplus)))
    panels = _interleave(np.ascontiguousarray(matrix).view(f"V{block_columns * target.itemsize}"))
    return panels.view(target).reshape(*panels.shape, block_columns)


def _convert(matrix: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any]:
    """Return a matrix in another float type; what is beyond its range becomes its greatest."""
    converted: NDArray[Any]
    if matrix.dtype == ml_dtypes.bfloat16 and target == np.float16:
        converted = _halves()[matrix.view(np.uint16)]  # numpy computes halves one by one
    else:
        limit = float(ml_dtypes.finfo(target).max)  # type: ignore[no-untyped-call]
        converted = np.clip(matrix.astype(np.float32), -limit, limit).astype(target)
    return converted


@cache
def _halves() -> NDArray[np.float16]:
    """Return the half of every bfloat16, by its bits."""
    every = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    limit = np.finfo(np.float16).max
    halves: NDArray[np.float16] = np.clip(every, -limit, limit).astype(np.float16)
    return halves


def from_panels(panels: NDArray[Any], num_rows: int, num_columns: int) -> F32:
    """Return the matrix [num_rows, num_columns] that `to_panels` made `panels` of."""
    matrix = panels.transpose(0, 2, 1, 3).reshape(panels.shape[0] * PANEL_ROWS, -1)
    return np.ascontiguousarray(matrix[:num_rows, :num_columns], np.float32)


def arrange_blocks(rows: NDArray[Any], item_bytes: int) -> NDArray[np.uint8]:
    """Return blocks [R, C / B, bytes] as [R / 8, C / B, items, 8 rows, item_bytes]: items of 8 rows side by side.

    It is zero where R had to be rounded up.
    """
    num_rows, num_blocks = rows.shape[:2]
    items = np.ascontiguousarray(rows).reshape(num_rows, -1).view(f"V{item_bytes}")
    panels = _interleave(items)
    return panels.view(np.uint8).reshape(len(panels), num_blocks, -1, PANEL_ROWS, item_bytes)


def _interleave(items: NDArray[np.void]) -> NDArray[np.void]:
    """Return [R, K] as [R / 8, K, 8 rows], in one transposed copy, and zero where R had to be rounded up."""
    num_rows, num_items = items.shape
    whole, rest = divmod(num_rows, PANEL_ROWS)
    panels = np.empty((whole + (rest > 0), num_items, PANEL_ROWS), items.dtype)
    panels[:whole] = items[: whole * PANEL_ROWS].reshape(whole, PANEL_ROWS, num_items).swapaxes(1, 2)
    if rest:
        panels[whole] = np.zeros((), items.dtype)
        panels[whole, :, :rest] = items[whole * PANEL_ROWS :].T
    return panels


def restore_blocks(arranged: NDArray[np.uint8], num_rows: int) -> NDArray[np.uint8]:
    """Return the blocks [num_rows, C / B, bytes] that `arrange_blocks` made `arranged` of."""
    panels, num_blocks, items, _, item_bytes = arranged.shape
    rows = arranged.transpose(0, 3, 1, 2, 4).reshape(panels * PANEL_ROWS, num_blocks, items * item_bytes)
    return np.ascontiguousarray(rows[:num_rows])
