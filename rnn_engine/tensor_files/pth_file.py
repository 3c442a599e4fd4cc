"""Read torch's .pth files without torch: a zip with one pickle that describes the tensors and one entry a storage.

torch stores them uncompressed. Of a compressed storage, as much as a tensor needs is inflated each time that it is
asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.tensor_files.binary_file import BinaryFile, FileStamp
from rnn_engine.tensor_files.listing import show
from rnn_engine.tensor_files.pth_pickle import TensorRef, read_tensor_refs
from rnn_engine.tensor_files.source import TensorInfo
from rnn_engine.tensor_files.zip_archive import ZipArchive

_PICKLE_NAME: Final = "data.pkl"
_PICKLE_LIMIT: Final = 1 << 20  # bytes; a model of a thousand tensors needs 0.2 MB


class PthFile:
    """An open .pth file. Closes `file` with itself."""

    def __init__(self, file: BinaryFile, most_inflated: int | None = None) -> None:
        """Where storages are compressed, at most `most_inflated` bytes are inflated to read a tensor; None is no bound.

        Raises ModelError where the file is damaged.
        """
        self._file = file
        self._most_inflated = most_inflated
        self._zip = ZipArchive(file)
        self._folder = _find_folder(file.path, self._zip)
        _check_byte_order(file.path, self._zip, f"{self._folder}byteorder")
        self._refs = _read_refs(file.path, self._zip, f"{self._folder}{_PICKLE_NAME}")
        for name, ref in self._refs.items():
            _check_inside(file.path, self._zip, self._entry(ref), name, ref)
        self._tensors = {name: _info(file.path, name, ref) for name, ref in self._refs.items()}

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    @property
    def stamp(self) -> FileStamp:
        return self._file.stamp

    def read(self, name: str) -> NDArray[Any]:
        ref = self._refs[name]
        if 0 in ref.shape:
            return np.empty(ref.shape, ref.storage.dtype)
        dtype, count = ref.storage.dtype, _reach(ref) - ref.offset
        self._check_inflation(name, ref)
        data = self._zip.read(self._entry(ref), ref.offset * dtype.itemsize, count * dtype.itemsize)
        elements = data.view(dtype)  # [count] the part of the storage that the tensor reaches over
        strides = [step * dtype.itemsize if size > 1 else 0 for size, step in zip(ref.shape, ref.strides, strict=True)]
        return as_strided(elements, ref.shape, strides, writeable=False)

    def read_blocks(self, name: str) -> None:
        """Return None: the format has plain numbers alone."""

    def close(self) -> None:
        self._file.close()

    def _check_inflation(self, name: str, ref: TensorRef) -> None:
        end = _reach(ref) * ref.storage.dtype.itemsize
        most = self._most_inflated
        if most is not None and end > most and self._zip.is_compressed(self._entry(ref)):
            raise ModelError(
                f"{self._file.path}: tensor {show(name)} ends at byte {end} of a compressed storage; expected at most "
                f"{most} there, or a storage that is not compressed"
            )

    def _entry(self, ref: TensorRef) -> str:
        return f"{self._folder}data/{ref.storage.key}"


def _find_folder(path: Path, archive: ZipArchive) -> str:
    """Return the folder inside the zip that holds the pickle, with its slash."""
    found = [name for name in archive.names if name.rpartition("/")[2] == _PICKLE_NAME]
    if len(found) != 1:
        raise ModelError(f"{path} is a zip with {len(found)} entries named {_PICKLE_NAME}; a .pth file has one")
    return found[0].removesuffix(_PICKLE_NAME)


def _check_byte_order(path: Path, archive: ZipArchive, entry: str) -> None:
    if entry not in archive.names:
        return
    order = archive.read(entry, 0, min(archive.size(entry), 16)).tobytes()
    if order != b"little":
        raise ModelError(f"{path} has the byte order {order!r}; expected b'little'")


def _read_refs(path: Path, archive: ZipArchive, entry: str) -> dict[str, TensorRef]:
    size = archive.size(entry)
    if size > _PICKLE_LIMIT:
        raise ModelError(f"{path} has a pickle of {size} bytes; expected at most {_PICKLE_LIMIT}")
    try:
        return read_tensor_refs(archive.read_whole(entry))
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


def _info(path: Path, name: str, ref: TensorRef) -> TensorInfo:
    try:
        return TensorInfo(ref.shape, ref.storage.dtype)
    except ValueError as error:
        raise ModelError(f"{path}: tensor {show(name)}: {error}") from error


def _check_inside(path: Path, archive: ZipArchive, entry: str, name: str, ref: TensorRef) -> None:
    """Raise ModelError unless the tensor lies inside its storage and is no larger than it."""
    if entry not in archive.names:
        raise ModelError(f"{path}: the data of tensor {show(name)} is missing: there is no zip entry {show(entry)}")
    count = archive.size(entry) // ref.storage.dtype.itemsize
    if 0 not in ref.shape and (_reach(ref) > count or prod(ref.shape) > count):
        raise ModelError(
            f"{path}: tensor {show(name)} of shape {list(ref.shape)} is not inside its storage of {count} elements"
        )


def _reach(ref: TensorRef) -> int:
    """Return how many elements of its storage, counted from the storage's start, a tensor needs."""
    return ref.offset + sum((size - 1) * step for size, step in zip(ref.shape, ref.strides, strict=True)) + 1
