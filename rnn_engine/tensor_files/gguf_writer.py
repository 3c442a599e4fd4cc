"""Write .gguf, the files of llama.cpp, tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import IO, TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.tensor_files.entry import TensorEntry
from rnn_engine.tensor_files.gguf_types import ELEMENT_TYPES, ElementType

if TYPE_CHECKING:
    from gguf import GGUFWriter

_BY_NAME: Final = {each.name: (number, each) for number, each in ELEMENT_TYPES.items()}
_PLAIN: Final = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}

Value = str | int | float


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """llama.cpp's vocabulary of byte strings: for each id its text, escaped as in Python, and its kind."""

    tokens: Sequence[bytes]
    kinds: Sequence[int]


def write_gguf(
    file: IO[bytes],
    architecture: str,
    values: Mapping[str, Value],
    vocabulary: Vocabulary | None,
    entries: Sequence[TensorEntry],
) -> None:
    """Write `entries` in their order, with `values` as metadata. `file` is an open file of the file system."""
    from gguf import GGMLQuantizationType, GGUFWriter  # the package takes a second to import

    writer = GGUFWriter(file.name, architecture)
    try:
        for key, value in values.items():
            _add_value(writer, key, value)
        if vocabulary is not None:
            writer.add_token_list(list(vocabulary.tokens))
            writer.add_token_types(list(vocabulary.kinds))
        for entry in entries:
            number, element = _element_type(entry)
            shape = entry.info.shape
            size = prod(shape) // element.block_size * element.block_bytes
            writer.add_tensor_info(entry.name, shape, np.dtype(np.float32), size, GGMLQuantizationType(number))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for entry in entries:
            writer.write_tensor_data(_bytes(entry))
    finally:
        writer.close()


def _element_type(entry: TensorEntry) -> tuple[int, ElementType]:
    return _BY_NAME[entry.info.block_type or _PLAIN[entry.info.dtype.name]]


def _bytes(entry: TensorEntry) -> NDArray[np.uint8]:
    return np.ascontiguousarray(entry.read()).reshape(-1).view(np.uint8)


def _add_value(writer: GGUFWriter, key: str, value: Value) -> None:
    match value:
        case float():
            writer.add_float32(key, value)
        case int():
            writer.add_uint32(key, value)
        case _:
            writer.add_string(key, value)
