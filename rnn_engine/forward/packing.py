"""Matrices in the order that the matmul kernels read: panels of 8 rows, cut in blocks of columns."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

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
    shape = (-(-num_rows // PANEL_ROWS), -(-num_columns // block_columns), PANEL_ROWS, block_columns)
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


def interleave(panels: NDArray[Any]) -> NDArray[Any]:
    """Return panels [R / 8, C / B, 8 rows, B] as [R / 8, C / B, B / 8, 8 rows, 8]: eights of the rows side by side."""
    *outer, rows, columns = panels.shape
    eights = panels.reshape(*outer, rows, columns // COLUMNS_AT_ONCE, COLUMNS_AT_ONCE)
    return np.ascontiguousarray(eights.swapaxes(-3, -2))


def deinterleave(eights: NDArray[Any]) -> NDArray[Any]:
    """Return the panels that `interleave` made `eights` of."""
    *outer, num_eights, rows, columns = eights.shape
    return eights.swapaxes(-3, -2).reshape(*outer, rows, num_eights * columns)
