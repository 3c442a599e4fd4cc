"""Writing of models as rwkv.cpp's converter and its quantiser do."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from tests.support.gguf import encode
from tests.support.models import TensorModel

NUMBERS = {"FP32": 0, "FP16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 7, "Q5_1": 8, "Q8_0": 9}
_SMALL = (".time_", ".k_k", ".k_a", ".r_k", ".x_rwkvag", ".x_k", ".w0", ".a0", ".v0")
_LARGE = ("emb.weight", "head.weight")


def ggmf_tensors(model: TensorModel) -> dict[str, NDArray[Any]]:
    """Return the tensors that rwkv.cpp's converter writes for a model."""
    version, tensors = model.shape.version, dict(model.tensors)
    if version == "v7":
        for layer in range(model.shape.num_layers):
            mixes = [tensors.pop(f"blocks.{layer}.att.x_{kind}") for kind in "rwkvag"]
            tensors[f"blocks.{layer}.att.x_rwkvag"] = np.stack(mixes)[:, np.newaxis]
    return {name: _transform(name, values, version) for name, values in tensors.items()}


def _transform(name: str, values: NDArray[Any], version: str) -> NDArray[Any]:
    is_decay = name.endswith(".time_decay")
    if re.search(r"\.att\.([wavg][12]|time_maa_w[12]|time_decay_w[12])$", name):
        return values.swapaxes(-1, -2)
    if name.endswith(".time_faaaa"):
        return values[..., np.newaxis]
    if is_decay and version == "v6":
        return values.reshape(4, -1, 1)
    if is_decay and version != "v4":
        decay: NDArray[Any] = np.exp(-np.exp(values))
        return decay.reshape(-1, 1, 1) if version == "v5.0" else decay[..., np.newaxis]
    if is_decay:
        negative: NDArray[Any] = -np.exp(values)
        return negative
    if name.endswith(".time_first") and version == "v5.0":
        first: NDArray[Any] = np.exp(values)
        return first.reshape(-1, 1, 1)
    return values


def save_ggmf(model: TensorModel, path: Path, kind: str = "FP32", version: int = 101) -> Path:
    return write_ggmf(path, model, ggmf_tensors(model), kind, version)


def write_ggmf(
    path: Path, model: TensorModel, tensors: Mapping[str, NDArray[Any]], kind: str = "FP32", version: int = 101
) -> Path:
    shape = model.shape
    header = struct.pack("<6I", 0x67676D66, version, shape.vocab_size, shape.width, shape.num_layers, NUMBERS[kind])
    path.write_bytes(header + b"".join(_entry(name, values, kind) for name, values in tensors.items()))
    return path


def _entry(name: str, values: NDArray[Any], kind: str) -> bytes:
    """Return the bytes of a tensor. Only matrices are in blocks, without embedding and head."""
    stored = "FP32" if values.ndim == 1 or any(part in name for part in _SMALL) else kind
    if stored.startswith("Q") and (values.ndim != 2 or name in _LARGE or values.shape[1] % 32):
        stored = "FP32"
    if stored.startswith("Q"):
        data = encode(np.ascontiguousarray(values), GGMLQuantizationType[stored]).tobytes()
    else:
        data = np.ascontiguousarray(values, np.float16 if stored == "FP16" else np.float32).tobytes()
    dimensions = struct.pack(f"<{values.ndim}I", *values.shape[::-1])
    return struct.pack("<3I", values.ndim, len(name), NUMBERS[stored]) + dimensions + name.encode() + data
