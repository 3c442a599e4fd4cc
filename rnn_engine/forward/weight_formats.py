"""How the weights of a matrix are stored on a device.

A new format is a class with these fields and methods, a WGSL file with its load function, and an entry in
`WEIGHT_FORMATS`. The kernels have no format in them: they ask `load_weights` for 8 columns of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rnn_engine.errors import DeviceError
from rnn_engine.forward.packing import from_panels, to_panels
from rnn_engine.types import F32
from shaders import Include


class WeightFormat(Protocol):
    """A way to store matrices. A block is `block_columns` consecutive weights of one row.

    The blocks of a matrix lie in panels of 8 rows: [rows / 8][columns / block_columns][8 rows], both rounded up.
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
        first block is the block number `row`. The row's next block is 8 blocks further on.
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


WeightFormatName: TypeAlias = Literal["f16", "f32"]

WEIGHT_FORMATS: Final[Mapping[str, WeightFormat]] = {
    "f16": FloatFormat("f16", np.float16, "weights_f16"),
    "f32": FloatFormat("f32", np.float32, "weights_f32"),
}

FormatOf: TypeAlias = Callable[[str], WeightFormat]
"""The format of each matrix, by the name of its tensor."""


def one_format(name: str) -> FormatOf:
    """Return the format called `name` for all matrices. Raises DeviceError that names those that there are."""
    if name not in WEIGHT_FORMATS:
        raise DeviceError(f"no weight format {name!r}; expected one of {', '.join(WEIGHT_FORMATS)}")
    chosen = WEIGHT_FORMATS[name]
    return lambda _tensor: chosen
