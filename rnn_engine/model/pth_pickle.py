"""Reads the pickle inside a .pth file: a description of tensors, and no code.

A pickle is a program that may call anything it can name. Here it can name four kinds of thing, all defined in this
module: an empty dict, a storage type, a tensor's description, and a parameter (which is its tensor). Any other name
ends the reading with an error before anything is called. Knows nothing of the zip around it, nor of the tensors' bytes.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import ml_dtypes
import numpy as np

from rnn_engine.errors import ModelError


@dataclass(frozen=True, slots=True)
class StorageRef:
    """A run of elements in an entry of the zip."""

    key: str
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor as a window on a storage; offset and strides count elements."""

    storage: StorageRef
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_tensor_refs(data: bytes) -> dict[str, TensorRef]:
    """The tensors that a pickled state dict names.

    Raises ModelError where the pickle is damaged, asks for anything but tensors, or holds no dict of them.
    """
    try:
        content = _TensorUnpickler(io.BytesIO(data)).load()
    except ModelError:
        raise
    except Exception as error:  # a damaged pickle may raise nearly anything
        raise ModelError(f"the pickle is damaged: {type(error).__name__}: {error}") from error
    return _state_dict(content)


def _state_dict(content: object) -> dict[str, TensorRef]:
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]  # a trainer's checkpoint keeps its weights under this key
    if not isinstance(content, dict):
        raise ModelError(f"the pickle holds a {type(content).__name__}; expected a dict of tensors")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, TensorRef):
            raise ModelError(
                f"the pickle's entry {_short(name)} is a {type(value).__name__}; expected only names with tensors"
            )
    return dict(content)


class _TensorUnpickler(pickle.Unpickler):
    """An unpickler that can name nothing but what describes tensors."""

    def find_class(self, module: str, name: str, /) -> object:
        full_name = f"{module}.{name}"
        if full_name not in _ALLOWED:
            raise ModelError(
                f"the pickle asks for {_short(full_name)}, which describes no tensor; it is refused and nothing was run"
            )
        return _ALLOWED[full_name]

    def persistent_load(self, pid: object, /) -> StorageRef:
        match pid:
            case ("storage", _StorageType(dtype=dtype), str(key), str(), int()):
                return StorageRef(key, dtype)
        raise ModelError("the pickle refers to something that is not a tensor storage")


# What the allowed names stand for. They are frozen objects with slots, not functions or classes of ours, because a
# pickle may also set attributes on what it is handed.


@dataclass(frozen=True, slots=True)
class _StorageType:
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class _MakeDict:
    def __call__(self) -> OrderedDict[Any, Any]:
        return OrderedDict()  # and not a dict, since torch sets `_metadata` on it


@dataclass(frozen=True, slots=True)
class _MakeTensor:
    def __call__(
        self,
        storage: object,
        offset: object,
        shape: object,
        strides: object,
        _requires_grad: object = False,
        _hooks: object = None,
        _metadata: object = None,
    ) -> TensorRef:
        if not isinstance(storage, StorageRef) or not _is_count(offset):
            raise ModelError(
                f"the pickle describes a tensor by a {type(storage).__name__} and the offset {_short(offset)}"
            )
        sizes, steps = _counts("shape", shape), _counts("strides", strides)
        if len(sizes) != len(steps):
            raise ModelError(f"the pickle describes a tensor of shape {sizes} by the strides {steps}")
        return TensorRef(storage, offset, sizes, steps)


@dataclass(frozen=True, slots=True)
class _MakeParameter:
    def __call__(self, tensor: object, _requires_grad: object, _hooks: object) -> TensorRef:
        if not isinstance(tensor, TensorRef):
            raise ModelError(f"the pickle describes a parameter by a {type(tensor).__name__}; expected a tensor")
        return tensor


_ALLOWED: Final[Mapping[str, object]] = {
    "collections.OrderedDict": _MakeDict(),
    "torch._utils._rebuild_tensor_v2": _MakeTensor(),
    "torch._utils._rebuild_parameter": _MakeParameter(),
    "torch.BFloat16Storage": _StorageType(np.dtype(ml_dtypes.bfloat16)),
    "torch.HalfStorage": _StorageType(np.dtype(np.float16)),
    "torch.FloatStorage": _StorageType(np.dtype(np.float32)),
    "torch.DoubleStorage": _StorageType(np.dtype(np.float64)),
    "torch.LongStorage": _StorageType(np.dtype(np.int64)),
    "torch.IntStorage": _StorageType(np.dtype(np.int32)),
}


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and value >= 0


def _counts(what: str, values: object) -> tuple[int, ...]:
    if not isinstance(values, tuple) or not all(_is_count(value) for value in values):
        raise ModelError(f"the pickle describes a tensor by the {what} {_short(values)}; expected a tuple of counts")
    return values


def _short(value: object) -> str:
    """A name or number of the pickle's, cut to a length that a message can bear; of anything else its type."""
    text = repr(value) if isinstance(value, str | int) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:79]}…"
