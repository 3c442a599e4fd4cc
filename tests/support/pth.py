"""Write .pth files as torch does, but without torch and opcode by opcode, so that tests can make damaged ones, too.

Most functions return the bytes of a pickle program that leaves one value on the stack. `program` makes a pickle of it.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.models import FileDtype, TensorModel

STORAGE_NAMES = {"bfloat16": "BFloat16Storage", "float16": "HalfStorage", "float32": "FloatStorage"}
_DTYPES: dict[FileDtype, str] = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}


def program(value: bytes) -> bytes:
    return b"\x80\x02" + value + b"."


def text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def integer(value: int) -> bytes:
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x10" + value.to_bytes(16, "little", signed=True)


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def tuple_of(*values: bytes) -> bytes:
    return b"(" + b"".join(values) + b"t"


def call(function: bytes, *arguments: bytes) -> bytes:
    return function + tuple_of(*arguments) + b"R"


def dict_of(entries: Mapping[str, bytes]) -> bytes:
    items = b"".join(text(key) + value for key, value in entries.items())
    return name("collections", "OrderedDict") + b")R(" + items + b"u"


def storage(key: str, dtype: str, count: int) -> bytes:
    kind = name("torch", STORAGE_NAMES[dtype])
    return tuple_of(text("storage"), kind, text(key), text("cpu"), integer(count)) + b"Q"


def tensor(window: bytes, offset: int, shape: Sequence[int], strides: Sequence[int]) -> bytes:
    sizes, steps = (tuple_of(*map(integer, values)) for values in (shape, strides))
    hooks = name("collections", "OrderedDict") + b")R"
    return call(name("torch._utils", "_rebuild_tensor_v2"), window, integer(offset), sizes, steps, b"\x89", hooks)


def parameter(value: bytes) -> bytes:
    return call(name("torch._utils", "_rebuild_parameter"), value, b"\x88", name("collections", "OrderedDict") + b")R")


def array(key: str, values: NDArray[Any]) -> bytes:
    """Return the program of a contiguous tensor that fills its storage."""
    strides = [step // values.itemsize for step in np.ascontiguousarray(values).strides]
    return tensor(storage(key, values.dtype.name, values.size), 0, values.shape, strides)


def write_pth(
    path: Path,
    pickled: bytes,
    storages: Mapping[str, bytes],
    *,
    compression: int = zipfile.ZIP_STORED,
    byte_order: str = "little",
) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", byte_order)
        for key, data in storages.items():
            archive.writestr(f"archive/data/{key}", data)
    return path


def cast(model: TensorModel, dtype: FileDtype) -> dict[str, NDArray[Any]]:
    """Return the model's arrays in another type."""
    return {key: np.ascontiguousarray(values, _numpy_dtype(dtype)) for key, values in model.tensors.items()}


def save_pth(
    model: TensorModel, path: Path, dtype: FileDtype = "f32", *, compression: int = zipfile.ZIP_STORED
) -> Path:
    """Write `model` as in BlinkDL's files: a dict of tensors, each with a storage of its own."""
    arrays = {str(key): values for key, values in enumerate(cast(model, dtype).values())}
    entries = {label: array(key, arrays[key]) for key, label in zip(arrays, model.tensors, strict=True)}
    data = {key: values.tobytes() for key, values in arrays.items()}
    return write_pth(path, program(dict_of(entries)), data, compression=compression)


def _numpy_dtype(dtype: FileDtype) -> np.dtype[Any]:
    return np.dtype(_DTYPES[dtype])
