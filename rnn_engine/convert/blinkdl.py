"""Files in BlinkDL's names: safetensors and .pth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rnn_engine.convert.source import F16, Source
from rnn_engine.model.layout import TensorSpec
from rnn_engine.quantised import Blocks
from rnn_engine.tensor_files.entry import TensorEntry
from rnn_engine.tensor_files.pth_writer import write_pth
from rnn_engine.tensor_files.quantised_file import CODES, FIGURES, StoredMatrix, describe_matrices
from rnn_engine.tensor_files.safetensors_writer import widest_first, write_safetensors
from rnn_engine.tensor_files.source import TensorInfo


def write_blinkdl_safetensors(file: IO[bytes], source: Source) -> None:
    """Write a safetensors file, with matrices in blocks where that is chosen; see `tensor_files.quantised_file`."""
    formats = {spec.name: source.block_format(spec) for spec in source.specs}
    plain = [source.entry(spec, spec.name) for spec in source.specs if formats[spec.name] is None]
    quantised: list[TensorEntry] = []
    matrices: dict[str, StoredMatrix] = {}
    for spec in source.specs:
        if (block_format := formats[spec.name]) is not None:
            num_rows, num_columns = source.model.tensors[spec.name].shape
            matrices[spec.name] = StoredMatrix(block_format, num_columns)
            quantised += _quantised(source, spec, matrices[spec.name], num_rows)
    noted = describe_matrices(matrices) if matrices else {}
    write_safetensors(file, [*widest_first(plain), *quantised], {"format": "pt", **noted})


def _quantised(source: Source, spec: TensorSpec, matrix: StoredMatrix, num_rows: int) -> Iterator[TensorEntry]:
    """Yield the codes and the figures of a matrix, which is read with the codes and forgotten with the figures."""
    read: list[Blocks] = []

    def read_codes() -> NDArray[Any]:
        read.append(source.read_blocks(spec, matrix.format))
        return read[0].codes

    shapes = matrix.shapes(num_rows)
    yield TensorEntry(spec.name + CODES, TensorInfo(shapes[CODES], np.dtype(np.uint8)), read_codes)
    yield TensorEntry(spec.name + FIGURES, TensorInfo(shapes[FIGURES], F16), lambda: read.pop().figures)


def write_blinkdl_pth(file: IO[bytes], source: Source) -> None:
    """Write a .pth file."""
    write_pth(file, _entries(source))


def _entries(source: Source) -> list[TensorEntry]:
    return [source.entry(spec, spec.name) for spec in source.specs]
