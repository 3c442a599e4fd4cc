"""Graphs of onnxruntime, written as its protocol buffers and started as sessions on the processor."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import onnxruntime

Message: TypeAlias = list[bytes | memoryview]
"""The bytes of a part of a file in pieces."""
Shape: TypeAlias = Sequence[int | str]
"""Sizes; those that differ from run to run are names."""

_TYPES: Final[Mapping[str, int]] = {"float32": 1, "uint8": 2, "int64": 7}
_FLOAT, _INT, _INTS = 1, 2, 7  # kinds of attributes
_MICROSOFT: Final = "com.microsoft"
_EXTERNAL_BYTES: Final = 1 << 12  # from which on a constant is not written into the graph, but copied by the session


def has_onnxruntime() -> bool:
    """Return True if onnxruntime is installed."""
    return find_spec("onnxruntime") is not None


class Graph:
    """A graph that is being written. Its values have names, and its constants are kept until it is started."""

    def __init__(self) -> None:
        self._nodes: list[Message] = []
        self._constants: dict[str, NDArray[Any]] = {}

    def constant(self, array: NDArray[Any]) -> str:
        """Add a constant of f32, u8 or i64, and return its name."""
        name = f"constant {len(self._constants)}"
        self._constants[name] = np.asarray(array, order="C")
        return name

    def node(self, kind: str, inputs: Sequence[str], *outputs: str, **attributes: float | Sequence[int]) -> None:
        """Add an operator `kind` of ONNX, or of Microsoft if that has none of this name."""
        fields = [*(_field(1, name) for name in inputs), *(_field(2, name) for name in outputs), _field(4, kind)]
        fields += [_field(5, _attribute(name, value)) for name, value in attributes.items()]
        fields.append(_field(7, _MICROSOFT if kind == "MatMulNBits" else ""))
        self._nodes.append(_join(fields))

    def start(
        self, inputs: Mapping[str, tuple[str, Shape]], outputs: Sequence[str], num_threads: int
    ) -> onnxruntime.InferenceSession:
        """Return a session from `inputs`, of a numpy type and shape each, to `outputs` in f32."""
        import onnxruntime

        graph = [_field(1, node) for node in self._nodes]
        graph.append(_field(2, "layers"))
        external = {name: array for name, array in self._constants.items() if array.nbytes >= _EXTERNAL_BYTES}
        graph += [_field(5, _tensor(name, array, external=name in external)) for name, array in self._constants.items()]
        graph += [_field(11, _value(name, *kind)) for name, kind in inputs.items()]
        graph += [_field(12, _value(name, "float32", None)) for name in outputs]
        versions = [_field(8, _join([_field(1, name), _field(2, last)])) for name, last in (("", 17), (_MICROSOFT, 1))]
        model = _join([_field(1, 8), _field(7, _join(graph)), *versions])
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = num_threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # beside other work it would slow that
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in external.values()]
        options.add_external_initializers(list(external), values)
        return onnxruntime.InferenceSession(b"".join(model), options, providers=["CPUExecutionProvider"])


# A model in ONNX's protocol buffers: fields with their numbers in onnx.proto.


def _attribute(name: str, value: float | Sequence[int]) -> Message:
    content: Message
    if isinstance(value, float):
        content, kind = [struct.pack("<Bf", 2 << 3 | 5, value)], _FLOAT
    elif isinstance(value, int):
        content, kind = _field(3, value), _INT
    else:
        content, kind = _join([_field(8, each) for each in value]), _INTS
    return _join([_field(1, name), content, _field(20, kind)])


def _tensor(name: str, array: NDArray[Any], *, external: bool) -> Message:
    sizes = [_field(1, size) for size in array.shape]
    if external:  # a place is asked for, though the session's options have the array
        content = [_field(13, _join([_field(1, "location"), _field(2, name)])), _field(14, 1)]
    else:
        content = [_field(9, [array.reshape(-1).view(np.uint8).data])]
    return _join([*sizes, _field(2, _TYPES[array.dtype.name]), _field(8, name), *content])


def _value(name: str, kind: str, shape: Shape | None) -> Message:
    fields = [_field(1, _TYPES[kind])]
    if shape is not None:
        sizes = [_field(1, _field(2 if isinstance(size, str) else 1, size)) for size in shape]
        fields.append(_field(2, _join(sizes)))
    return _join([_field(1, name), _field(2, _field(1, _join(fields)))])


def _join(parts: Sequence[Message]) -> Message:
    return [piece for part in parts for piece in part]


def _field(number: int, value: int | str | Message) -> Message:
    if isinstance(value, int):
        return [bytes([*_sevens(number << 3), *_sevens(value)])]
    content: Message = [value.encode()] if isinstance(value, str) else value
    return [bytes([*_sevens(number << 3 | 2), *_sevens(sum(map(len, content)))]), *content]


def _sevens(value: int) -> Iterator[int]:
    while value > 0x7F:
        yield value & 0x7F | 0x80
        value >>= 7
    yield value
