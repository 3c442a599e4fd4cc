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

from rnn_engine.forward.packing import from_panels, to_panels
from rnn_engine.forward.quantised import (
    NF4_LEVELS,
    SF4_LEVELS,
    AffineInt4,
    Codebook4,
    RangeInt8,
    ScaledInt4,
    ScaledInt8,
)
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

    def pack(self, matrix: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return what each buffer holds of a matrix [R, C] of any float type, block after block."""
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

    @property
    def block_bytes(self) -> Mapping[str, int]:
        return {"weights": self.block_columns * np.dtype(self.dtype).itemsize}

    def pack(self, matrix: NDArray[Any]) -> dict[str, NDArray[Any]]:
        return {"weights": to_panels(matrix, self.block_columns, self.dtype)}

    def unpack(self, arrays: Mapping[str, NDArray[Any]], num_rows: int, num_columns: int) -> F32:
        return from_panels(arrays["weights"], num_rows, num_columns)


WEIGHT_FORMATS: Final[Mapping[str, WeightFormat]] = {
    each.name: each
    for each in (
        FloatFormat("f16", np.float16, "weights_f16"),
        FloatFormat("bf16", ml_dtypes.bfloat16, "weights_bf16"),
        FloatFormat("f32", np.float32, "weights_f32"),
        RangeInt8(),
        ScaledInt8(),
        AffineInt4("int4", 64, "weights_int4"),
        AffineInt4("q4_1", 32, "weights_q4_1"),
        ScaledInt4(),
        Codebook4("nf4", NF4_LEVELS, "weights_nf4"),
        Codebook4("sf4", SF4_LEVELS, "weights_sf4"),
    )
}
