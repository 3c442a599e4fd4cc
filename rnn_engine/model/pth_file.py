"""Reads torch's .pth files without torch: a zip with one pickle that describes the tensors and one entry a storage.

Storages are mapped where the zip keeps them uncompressed, as torch always does; of a compressed one, as much as a
tensor needs is inflated each time that it is asked for.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.model.pth_pickle import TensorRef, read_tensor_refs
from rnn_engine.model.source import TensorInfo

_PICKLE_LIMIT = 64 << 20  # bytes; a model of a thousand tensors needs 0.2 MB
_LOCAL_HEADER_BYTES = 30
_ENCRYPTED = 0x1  # a flag bit of a zip entry
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)  # what reading an entry raises


class PthFile:
    """A mapped .pth file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._zip: zipfile.ZipFile | None = _open_zip(path)
        try:
            self._mapping: np.memmap[Any, np.dtype[np.uint8]] | None = np.memmap(path, np.uint8, mode="r")
            prefix = self._find_prefix()
            self._check_byte_order(prefix)
            self._refs = self._read_refs(f"{prefix}data.pkl")
            self._entries = {name: self._entry(name, ref, prefix) for name, ref in self._refs.items()}
        except BaseException:
            self.close()
            raise
        self._tensors = {name: TensorInfo(ref.shape, ref.storage.dtype) for name, ref in self._refs.items()}

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self._tensors

    def read(self, name: str) -> NDArray[Any]:
        ref, entry = self._refs[name], self._entries[name]
        dtype, reach = ref.storage.dtype, _reach(ref)
        if entry.compress_type == zipfile.ZIP_STORED:
            data: NDArray[np.uint8] | bytes = self._stored_bytes(entry)
        else:
            data = self._inflate(entry, reach * dtype.itemsize)
        elements: NDArray[Any] = np.ndarray((reach,), dtype, buffer=data)  # the storage, as far as the tensor reaches
        strides = tuple(step * dtype.itemsize for step in ref.strides)
        return as_strided(elements[ref.offset :], ref.shape, strides, writeable=False)

    def close(self) -> None:
        if self._zip is not None:
            self._zip.close()
        self._zip = None
        self._mapping = None

    def _open_parts(self) -> tuple[zipfile.ZipFile, np.memmap[Any, np.dtype[np.uint8]]]:
        if self._zip is None or self._mapping is None:
            raise ValueError("the file is closed")
        return self._zip, self._mapping

    def _find_prefix(self) -> str:
        """The folder inside the zip, named as torch pleased, that holds the pickle."""
        archive, _ = self._open_parts()
        found = [name for name in archive.namelist() if name == "data.pkl" or name.endswith("/data.pkl")]
        if len(found) != 1:
            raise ModelError(f"{self._path} is a zip with {len(found)} entries named data.pkl; a .pth file has one")
        return found[0].removesuffix("data.pkl")

    def _check_byte_order(self, prefix: str) -> None:
        archive, _ = self._open_parts()
        if f"{prefix}byteorder" not in archive.namelist():
            return
        order = self._inflate(archive.getinfo(f"{prefix}byteorder"), 64)
        if order != b"little":
            raise ModelError(f"{self._path} has the byte order {order!r}; expected b'little'")

    def _read_refs(self, entry_name: str) -> dict[str, TensorRef]:
        archive, _ = self._open_parts()
        entry = archive.getinfo(entry_name)
        if entry.file_size > _PICKLE_LIMIT:
            raise ModelError(f"{self._path}: a pickle of {entry.file_size} bytes; expected at most {_PICKLE_LIMIT}")
        try:
            return read_tensor_refs(self._inflate(entry, entry.file_size))
        except ModelError as error:
            raise ModelError(f"{self._path}: {error}") from error

    def _entry(self, name: str, ref: TensorRef, prefix: str) -> zipfile.ZipInfo:
        """The zip's entry with the tensor's storage, once the tensor is known to lie inside it."""
        archive, _ = self._open_parts()
        try:
            entry = archive.getinfo(f"{prefix}data/{ref.storage.key}")
        except KeyError as error:
            raise ModelError(f"{self._path}: tensor {name} has its data missing from the zip") from error
        count = entry.file_size // ref.storage.dtype.itemsize
        if _reach(ref) > count or prod(ref.shape) > count:
            raise ModelError(
                f"{self._path}: tensor {name} of shape {list(ref.shape)} does not fit its storage of {count} elements"
            )
        return entry

    def _stored_bytes(self, entry: zipfile.ZipInfo) -> NDArray[np.uint8]:
        """A view of an uncompressed entry."""
        _, mapping = self._open_parts()
        header = mapping[entry.header_offset : entry.header_offset + _LOCAL_HEADER_BYTES].tobytes()
        lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")  # name and extra
        start = entry.header_offset + _LOCAL_HEADER_BYTES + lengths
        view = mapping[start : start + entry.file_size]
        if not header.startswith(b"PK\x03\x04") or len(view) != entry.file_size or entry.flag_bits & _ENCRYPTED:
            raise ModelError(f"{self._path}: the zip's entry {entry.filename} is damaged, truncated or encrypted")
        return view

    def _inflate(self, entry: zipfile.ZipInfo, size: int) -> bytes:
        """The first `size` bytes of an entry, decompressed where needed."""
        archive, _ = self._open_parts()
        try:
            with archive.open(entry) as file:
                return file.read(size)
        except _DAMAGE as error:
            raise ModelError(f"{self._path}: the zip's entry {entry.filename} can't be read: {error}") from error


def _reach(ref: TensorRef) -> int:
    """How many elements of its storage, counted from the storage's start, a tensor needs."""
    if 0 in ref.shape:
        return ref.offset
    return ref.offset + sum((size - 1) * step for size, step in zip(ref.shape, ref.strides, strict=True)) + 1


def _open_zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError) as error:
        raise ModelError(f"{path}: damaged or truncated .pth file: {error}") from error
