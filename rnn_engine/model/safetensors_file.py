"""Reads .safetensors (and ai00's .st): a header of JSON, then the tensors' bytes.

The library judges the header (sizes, offsets, overlaps, truncation); the bytes are mapped here, since the library's
own numpy reader copies every tensor and, in its older versions, has no bf16.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from rnn_engine.errors import ModelError
from rnn_engine.model.listing import show
from rnn_engine.model.source import TensorInfo

_LENGTH_BYTES = 8

_DTYPES: Mapping[str, np.dtype[Any]] = {
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}


class SafetensorsFile:
    """A mapped safetensors file."""

    def __init__(self, path: Path) -> None:
        _validate(path)
        self._mapping: np.memmap[Any, np.dtype[np.uint8]] | None = np.memmap(path, np.uint8, mode="r")
        length = int.from_bytes(self._mapping[:_LENGTH_BYTES].tobytes(), "little")
        header = json.loads(self._mapping[_LENGTH_BYTES : _LENGTH_BYTES + length].tobytes())
        header.pop("__metadata__", None)
        data_start = _LENGTH_BYTES + length
        self._offsets = {name: data_start + int(entry["data_offsets"][0]) for name, entry in header.items()}
        self._tensors = {
            name: TensorInfo(tuple(entry["shape"]), _dtype(path, name, entry["dtype"]))
            for name, entry in header.items()
        }

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    def read(self, name: str) -> NDArray[Any]:
        info = self._tensors[name]
        if self._mapping is None:
            raise ValueError("the file is closed")
        return np.ndarray(info.shape, info.dtype, buffer=self._mapping, offset=self._offsets[name])

    def close(self) -> None:
        self._mapping = None


def _validate(path: Path) -> None:
    try:
        with safe_open(path, framework="numpy"):
            pass
    except SafetensorError as error:
        raise ModelError(f"{path}: damaged or truncated safetensors file: {error}") from error


def _dtype(path: Path, name: str, stored: str) -> np.dtype[Any]:
    if stored not in _DTYPES:
        raise ModelError(
            f"{path}: tensor {show(name)} has the element type {stored}; expected one of {', '.join(_DTYPES)}"
        )
    return _DTYPES[stored]
