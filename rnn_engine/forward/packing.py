"""Matrices in the order that the matmul kernels read: panels of 8 rows, cut in blocks of 8 columns."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

WeightFormat: TypeAlias = Literal["f16", "f32"]

PANEL = 8  # rows of a panel, columns of a block
_DTYPES: dict[str, type[np.floating[Any]]] = {"f16": np.float16, "f32": np.float32}


def round_up(count: int, multiple: int) -> int:
    """The least multiple of `multiple` that is no less than `count`."""
    return -(-count // multiple) * multiple


def element_bytes(weights: WeightFormat) -> int:
    """Bytes of one stored weight."""
    return np.dtype(_DTYPES[weights]).itemsize


def pack_panels(matrix: NDArray[Any], weights: WeightFormat) -> NDArray[Any]:
    """[R, C] of any float type -> [R / 8, C / 8, 8 rows, 8 columns], zero where R or C had to be padded.

    A value beyond the range of f16 becomes its greatest finite value.
    """
    dtype = _DTYPES[weights]
    num_rows, num_columns = matrix.shape
    panels = np.zeros((round_up(num_rows, PANEL) // PANEL, round_up(num_columns, PANEL) // PANEL, PANEL, PANEL), dtype)
    limit = np.finfo(dtype).max
    if np.dtype(matrix.dtype) != np.dtype(dtype):
        matrix = np.clip(matrix.astype(np.float32), -limit, limit)
    view = panels.transpose(0, 2, 1, 3)  # [R / 8, 8, C / 8, 8]
    whole = num_columns // PANEL
    for row in range(PANEL):
        lines = matrix[row::PANEL]  # every eighth row: one of each panel
        view[: len(lines), row, :whole] = lines[:, : whole * PANEL].reshape(len(lines), whole, PANEL)
        if num_columns % PANEL:
            view[: len(lines), row, whole, : num_columns % PANEL] = lines[:, whole * PANEL :]
    return panels
