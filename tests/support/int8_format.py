"""A weight format of 8-bit integers with a scale for every 32, to show what a new format takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnn_engine.forward.packing import from_panels, to_panels
from rnn_engine.types import F32

_WGSL = Path(__file__).with_name("weights_int8.wgsl")


@dataclass(frozen=True, slots=True)
class Int8Format:
    """Blocks of 32 bytes; a weight is its byte times the scale of its block."""

    name: str = "int8"
    block_columns: int = 32
    include: Path = _WGSL

    @property
    def block_bytes(self) -> Mapping[str, int]:
        return {"weights": 32, "scales": 4}

    def pack(self, matrix: NDArray[Any]) -> dict[str, NDArray[Any]]:
        panels = to_panels(matrix, self.block_columns, np.float32)  # [R / 8, C / 32, 8, 32]
        scales = np.abs(panels).max(axis=-1) / np.float32(127)  # [R / 8, C / 32, 8]
        steps = panels / np.where(scales == 0, 1, scales)[..., np.newaxis]
        return {"weights": np.rint(steps).astype(np.int8), "scales": scales}

    def unpack(self, arrays: Mapping[str, NDArray[Any]], num_rows: int, num_columns: int) -> F32:
        panels = arrays["weights"] * arrays["scales"][..., np.newaxis]
        return from_panels(panels, num_rows, num_columns)
