"""Open files with states for reading. What the readers of tensors say of a damaged file becomes a `StateError`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from rnn_engine.errors import ModelError, StateError
from rnn_engine.tensor_files.binary_file import BinaryFile, ByteSource
from rnn_engine.tensor_files.formats import read_source
from rnn_engine.tensor_files.pth_file import PthFile
from rnn_engine.tensor_files.safetensors_file import SafetensorsFile
from rnn_engine.tensor_files.source import TensorSource
from rnn_engine.types import ModelShape

_HEADER_LIMIT = 1 << 20  # bytes; the header of a whole model has some 0.2 MB


@contextmanager
def opened(path: Path) -> Iterator[BinaryFile]:
    """Open a file. Raises StateError where it can't be read, and for every ModelError of the block.

    The message has the file's name and not its path, which is not for those who sent it.
    """
    with as_state_errors(str(path)), closing(BinaryFile(path)) as file:
        yield file


@contextmanager
def as_state_errors(path: str) -> Iterator[None]:
    """Raise StateError for every ModelError of the block, with the file's name in place of its path."""
    try:
        yield
    except ModelError as error:
        raise StateError(str(error).replace(path, Path(path).name)) from error


def read_safetensors(file: ByteSource) -> SafetensorsFile:
    """Read the header of a safetensors file with states. Raises ModelError where it is damaged."""
    return SafetensorsFile(file, _HEADER_LIMIT)


def read_pth(file: BinaryFile, shape: ModelShape) -> TensorSource:
    """Read what a .pth file says of its tensors; the result closes it. Raises ModelError where it is damaged."""
    if file.read(0, min(2, file.stamp.size)).tobytes() != b"PK":
        return read_source(file)  # which tells what else it is
    return PthFile(file, most_inflated=2 * shape.state_bytes)  # tensors in f64 have twice the bytes


def modified(path: Path) -> float:
    """Return when a file was written last, in Unix time; 0 where that can't be told, as of a loop of links."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
