"""Read the descriptions of tensors in the pickle of a .pth file, without running code from it.

A pickle is a program for a stack machine that may call anything it can name. This module runs such a program on a
machine of its own that has no calls: a name is an inert value, and the few that describe tensors are recognised.
Anything else that a pickle names or does is an error.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import ml_dtypes
import numpy as np

from rnn_engine.errors import ModelError
from rnn_engine.tensor_files.listing import show
from rnn_engine.tensor_files.source import MOST_DIMENSIONS


@dataclass(frozen=True, slots=True)
class StorageRef:
    """A run of elements in an entry of the zip."""

    key: str
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor as a window on a storage; offset and strides count elements and are not negative."""

    storage: StorageRef
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_tensor_refs(data: bytes) -> dict[str, TensorRef]:
    """Return the tensors of a pickled state dict by name.

    Raises ModelError where the pickle is damaged, asks for anything but tensors, or holds no dict of them.
    """
    try:
        content = _Machine().run(data)
    except ModelError:
        raise
    except Exception as error:  # a damaged pickle takes from an empty stack, an unknown opcode, broken text
        raise ModelError(f"the pickle is damaged: {type(error).__name__}: {error}") from error
    return _state_dict(content)


def _state_dict(content: object) -> dict[str, TensorRef]:
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]  # a trainer's checkpoint keeps its weights under this key
    if not isinstance(content, dict):
        raise ModelError(f"the pickle holds a {type(content).__name__}; expected a dict of tensors")
    for name, value in content.items():
        if not isinstance(value, TensorRef):
            raise ModelError(f"the pickle's entry {show(name)} is a {type(value).__name__}; expected a tensor")
    return content


@dataclass(frozen=True, slots=True)
class _Name:
    """The name of something that the pickle would import."""

    text: str


_STORAGE_DTYPES: Final[Mapping[_Name, np.dtype[Any]]] = {
    _Name("torch.BFloat16Storage"): np.dtype(ml_dtypes.bfloat16),
    _Name("torch.HalfStorage"): np.dtype(np.float16),
    _Name("torch.FloatStorage"): np.dtype(np.float32),
    _Name("torch.DoubleStorage"): np.dtype(np.float64),
    _Name("torch.LongStorage"): np.dtype(np.int64),
    _Name("torch.IntStorage"): np.dtype(np.int32),
}

_MOST_OPERATIONS: Final = 200_000

_DICT: Final = _Name("collections.OrderedDict")
_TENSOR: Final = _Name("torch._utils._rebuild_tensor_v2")
_PARAMETER: Final = _Name("torch._utils._rebuild_parameter")
_KNOWN_NAMES: Final = frozenset({*_STORAGE_DTYPES, _DICT, _TENSOR, _PARAMETER})


class _Machine:
    """The pickle machine, without the operations that import, call or change objects."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []  # heights of the stack
        self._memo: dict[int, Any] = {}

    def run(self, data: bytes) -> object:
        """Run the program and return the value that it leaves."""
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if number == _MOST_OPERATIONS:
                raise ModelError(f"the pickle has more than {_MOST_OPERATIONS} operations; a tensor takes some 40")
            if opcode.name == "STOP":
                return self._stack.pop()
            self._step(opcode.name, argument)
        raise ModelError("the pickle is truncated")

    def _step(self, opcode: str, argument: Any) -> None:  # noqa: ANN401
        stack = self._stack
        match opcode:
            case "PROTO" | "FRAME":
                pass
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                stack.append(argument)
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BINUNICODE8":
                stack.append(argument)
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(opcode == "NEWTRUE")
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "MARK":
                self._marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(self._above_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self._take(int(opcode[-1]))))
            case "APPEND":
                self._extend(self._take(1))
            case "APPENDS":
                self._extend(self._above_mark())
            case "SETITEM":
                self._update(self._take(2))
            case "SETITEMS":
                self._update(self._above_mark())
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "GLOBAL":
                stack.append(_name(*argument.split(" ", 1)))
            case "STACK_GLOBAL":
                stack.append(_name(*self._take(2)))
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE":
                stack.append(_make(*self._take(2)))
            case "BUILD":
                self._drop_attributes()
            case _:
                raise ModelError(f"the pickle uses the operation {opcode}, which a file of tensors has no use for")

    def _take(self, count: int) -> list[Any]:
        """Take the topmost values from the stack and return them in the order in which they were put there."""
        if len(self._stack) < count:
            raise ModelError("the pickle is damaged: it takes a value that is not there")
        taken = self._stack[-count:]
        del self._stack[-count:]
        return taken

    def _above_mark(self) -> list[Any]:
        height = self._marks.pop()
        return self._take(len(self._stack) - height) if len(self._stack) > height else []

    def _extend(self, values: Iterable[Any]) -> None:
        self._top(list).extend(values)

    def _update(self, items: list[Any]) -> None:
        """Add `items`, keys and values in turn, to the topmost dict."""
        keys = items[::2]
        if not all(isinstance(key, str) for key in keys):
            raise ModelError("the pickle holds a dict whose keys are not all names")
        self._top(dict).update(zip(keys, items[1::2], strict=True))

    def _drop_attributes(self) -> None:
        """Drop the attributes that are set on the topmost dict: torch's `_metadata`."""
        self._take(1)
        self._top(dict)

    def _top(self, kind: type[Any]) -> Any:  # noqa: ANN401
        if not isinstance(self._stack[-1], kind):
            raise ModelError(
                f"the pickle fills or changes a {type(self._stack[-1]).__name__} as if it were a container"
            )
        return self._stack[-1]


def _name(module: object, name: object) -> _Name:
    if not isinstance(module, str) or not isinstance(name, str):
        raise ModelError("the pickle asks for something that has no name: it is refused")
    asked = _Name(f"{module}.{name}")
    if asked not in _KNOWN_NAMES:
        raise ModelError(f"the pickle asks for {show(asked.text)}, which describes no tensor: it is refused")
    return asked


def _make(callee: object, arguments: object) -> dict[Any, Any] | TensorRef:
    """Return what a call would make."""
    match callee, arguments:
        case _Name(), () if callee == _DICT:
            return {}
        case _Name(), (storage, offset, shape, strides, *_) if callee == _TENSOR:
            return _tensor(storage, offset, shape, strides)
        case _Name(), (TensorRef() as tensor, *_) if callee == _PARAMETER:
            return tensor
    called = callee.text if isinstance(callee, _Name) else f"a {type(callee).__name__}"
    raise ModelError(f"the pickle calls {called} with arguments that describe no tensor: it is refused")


def _storage(reference: object) -> StorageRef:
    match reference:
        case ("storage", _Name() as kind, str(key), str(), int()) if kind in _STORAGE_DTYPES:
            return StorageRef(key, _STORAGE_DTYPES[kind])
    raise ModelError("the pickle refers to something that is not a tensor storage: it is refused")


def _tensor(storage: object, offset: object, shape: object, strides: object) -> TensorRef:
    if not (isinstance(storage, StorageRef) and _is_count(offset) and _are_counts(shape) and _are_counts(strides)):
        raise ModelError("the pickle describes a tensor by values that are no storage, offset, shape and strides")
    if len(shape) != len(strides):
        raise ModelError(f"the pickle describes a tensor of {len(shape)} dimensions by {len(strides)} strides")
    return TensorRef(storage, offset, shape, strides)


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _are_counts(values: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(values, tuple) and len(values) <= MOST_DIMENSIONS and all(_is_count(value) for value in values)
