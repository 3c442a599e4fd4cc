"""Quantised models in safetensors: for each matrix its codes and its figures, and a note of what they are.

The header's metadata say of each matrix its weight format and how many columns it has. Other tensors are as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.quantised import BLOCK_FORMATS, BlockFormat, Blocks, blocks_of_row, bytes_of_codes
from rnn_engine.tensor_files.binary_file import BinaryFile, FileStamp
from rnn_engine.tensor_files.listing import show
from rnn_engine.tensor_files.safetensors_file import SafetensorsFile
from rnn_engine.tensor_files.source import TensorInfo, TensorSource

METADATA_KEY: Final = "rnn_engine.blocks"
CODES: Final = ".codes"  # what a matrix's name is followed by
FIGURES: Final = ".figures"


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """What the metadata say of a matrix."""

    format: BlockFormat
    num_columns: int

    def shapes(self, num_rows: int) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of its two tensors, by the ends of their names."""
        row_blocks = blocks_of_row(self.num_columns, self.format.block_columns)
        return {
            CODES: (num_rows, row_blocks, bytes_of_codes(self.format)),
            FIGURES: (num_rows, row_blocks, self.format.num_figures),
        }


def describe_matrices(matrices: Mapping[str, StoredMatrix]) -> dict[str, str]:
    """Return the metadata of a file with such matrices."""
    described = {name: {"format": each.format.name, "columns": each.num_columns} for name, each in matrices.items()}
    return {METADATA_KEY: json.dumps(described, separators=(",", ":"))}


def open_safetensors(file: BinaryFile) -> TensorSource:
    """Read a safetensors file, quantised or not; the result closes it. Raises ModelError where it is damaged."""
    source = SafetensorsFile(file)
    described = source.metadata.get(METADATA_KEY)
    return source if described is None else QuantisedFile(file.path, source, described)


class QuantisedFile:
    """An open safetensors file with matrices in blocks, which are seen as one tensor each. Closes `source`."""

    def __init__(self, path: Path, source: SafetensorsFile, described: str) -> None:
        """Raises ModelError where the metadata make no sense, or what they tell of is not there."""
        self._source = source
        try:
            self._matrices = {name: _matrix(entry) for name, entry in json.loads(described).items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ModelError(f"{path}: the metadata's {METADATA_KEY} makes no sense: {show(str(error))}") from error
        tensors = dict(source.tensors)
        for name, matrix in self._matrices.items():
            info = _check(path, name, matrix, tensors)
            del tensors[name + CODES], tensors[name + FIGURES]
            tensors[name] = info
        self._tensors = tensors

    @property
    def stamp(self) -> FileStamp:
        return self._source.stamp

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    def read(self, name: str) -> NDArray[Any]:
        blocks = self.read_blocks(name)
        return self._source.read(name) if blocks is None else blocks.numbers()

    def read_blocks(self, name: str) -> Blocks | None:
        matrix = self._matrices.get(name)
        if matrix is None:
            return None
        codes, figures = (self._source.read(name + part) for part in (CODES, FIGURES))
        return Blocks(matrix.format, matrix.num_columns, codes, figures)

    def close(self) -> None:
        self._source.close()


def _matrix(entry: Any) -> StoredMatrix:  # noqa: ANN401
    """Raises TypeError, ValueError or KeyError for what is no note of a matrix."""
    name, num_columns = entry["format"], entry["columns"]
    if name not in BLOCK_FORMATS:
        raise ValueError(f"the format {name!r} is not known; expected one of {', '.join(BLOCK_FORMATS)}")
    if type(num_columns) is not int or not 0 < num_columns < 1 << 32:
        raise ValueError(f"{num_columns!r} columns; expected a number from 1 to 2^32")
    return StoredMatrix(BLOCK_FORMATS[name], num_columns)


def _check(path: Path, name: str, matrix: StoredMatrix, tensors: Mapping[str, TensorInfo]) -> TensorInfo:
    """Return what a matrix is seen as. Raises ModelError unless its codes and figures are there, and fit."""
    parts = {part: tensors.get(name + part) for part in (CODES, FIGURES)}
    if name in tensors or None in parts.values():
        raise ModelError(f"{path}: {show(name)} is in blocks; expected {show(name)}{CODES} and {FIGURES} in its place")
    num_rows = next(info.shape[0] if info and info.shape else 0 for info in parts.values())
    for part, shape in matrix.shapes(num_rows).items():
        info, dtype = parts[part], np.dtype(np.uint8 if part == CODES else np.float16)
        if info != TensorInfo(shape, dtype):
            found = "" if info is None else f"{list(info.shape)} of {info.dtype.name}"
            expected = f"{list(shape)} of {dtype.name} for {matrix.num_columns} columns in {matrix.format.name}"
            raise ModelError(f"{path}: {show(name)}{part} is {found}; expected {expected}")
    return TensorInfo((num_rows, matrix.num_columns), np.dtype(np.float32), matrix.format.name)
