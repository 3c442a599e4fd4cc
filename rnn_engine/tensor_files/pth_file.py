"""Read and write torch's .pth files without torch.

torch stores them uncompressed. A compressed storage is inflated each time that a tensor in it is read, up to the end of
that tensor. The `pickle` module does not do for writing: it would have to import torch to name the function that
rebuilds a tensor.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import IO, Any, Final

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.tensor_files.pth_pickle import Entry, TensorRef, ZipArchive, read_tensor_refs
from rnn_engine.tensor_files.source import ALL_ROWS, BinaryFile, TensorEntry, TensorInfo, TensorSource, show

_PICKLE_NAME: Final = "data.pkl"
_INTEGER: Final = np.dtype(np.int64)
_PICKLE_LIMIT: Final = 1 << 20  # bytes; a model of a thousand tensors needs 0.2 MB


class PthFile(TensorSource):
    """An open torch .pth file, from which tensors are read; a list of whole numbers in it counts as a tensor."""

    def __init__(self, file: BinaryFile, most_inflated: int | None = None) -> None:
        """Read the file's list of tensors. To read one, at most `most_inflated` compressed bytes will be inflated.

        None is no bound.

        Raises ModelError if the file is damaged.
        """
        super().__init__(file)
        self._most_inflated = most_inflated
        self._zip = ZipArchive(file)
        self._folder = self._find_folder()
        entries = self._read_entries()
        self._refs = {name: entry for name, entry in entries.items() if isinstance(entry, TensorRef)}
        self._lists = {name: entry for name, entry in entries.items() if not isinstance(entry, TensorRef)}
        self.tensors = {name: self._check(name, ref) for name, ref in self._refs.items()}
        self.tensors |= {name: TensorInfo((len(numbers),), _INTEGER) for name, numbers in self._lists.items()}

    def reads_rows(self, name: str) -> bool:
        ref = self._refs.get(name)
        return ref is not None and ref.strides == _strides(ref.shape) and not self._zip.is_compressed(self._entry(ref))

    def read(self, name: str, rows: slice = ALL_ROWS) -> NDArray[Any]:
        if name in self._lists:
            try:
                return np.array(self._lists[name], _INTEGER)[rows]
            except OverflowError:
                raise ModelError(
                    f"{self._file.path}: a number of the list {show(name)} is too large; expected less than 2^63"
                ) from None
        ref = _rows_of(self._refs[name], rows)
        if 0 in ref.shape:
            return np.empty(ref.shape, ref.storage.dtype)
        dtype, count = ref.storage.dtype, _reach(ref) - ref.offset
        self._check_inflation(name, ref)
        data = self._zip.read(self._entry(ref), ref.offset * dtype.itemsize, count * dtype.itemsize)
        elements = data.view(dtype)  # [count] the part of the storage from the tensor's first element to its last
        strides = [step * dtype.itemsize if size > 1 else 0 for size, step in zip(ref.shape, ref.strides, strict=True)]
        return as_strided(elements, ref.shape, strides, writeable=False)

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

    def _find_folder(self) -> str:
        """Return the folder of the pickle inside the zip, with a slash. Raises ModelError unless it is one of torch."""
        path, archive = self._file.path, self._zip
        found = [name for name in archive.names if name.rpartition("/")[2] == _PICKLE_NAME]
        if len(found) != 1:
            raise ModelError(f"{path} is a zip with {len(found)} entries named {_PICKLE_NAME}; a .pth file has one")
        folder = found[0].removesuffix(_PICKLE_NAME)
        if (entry := f"{folder}byteorder") in archive.names:
            order = archive.read(entry, 0, min(archive.size(entry), 16)).tobytes()
            if order != b"little":
                raise ModelError(f"{path} has the byte order {order!r}; expected b'little'")
        return folder

    def _read_entries(self) -> dict[str, Entry]:
        path, entry = self._file.path, f"{self._folder}{_PICKLE_NAME}"
        if (size := self._zip.size(entry)) > _PICKLE_LIMIT:
            raise ModelError(f"{path} has a pickle of {size} bytes; expected at most {_PICKLE_LIMIT}")
        data = self._zip.read_whole(entry)
        try:
            return read_tensor_refs(data)
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from error

    def _check(self, name: str, ref: TensorRef) -> TensorInfo:
        """Return a tensor's shape and type. Raises ModelError unless it lies inside its zip entry and is no larger."""
        entry, prefix = self._entry(ref), f"{self._file.path}: tensor {show(name)}"
        if entry not in self._zip.names:
            path = self._file.path
            raise ModelError(f"{path}: the data of tensor {show(name)} is missing: there is no zip entry {show(entry)}")
        count = self._zip.size(entry) // ref.storage.dtype.itemsize
        if 0 not in ref.shape and (_reach(ref) > count or prod(ref.shape) > count):
            raise ModelError(f"{prefix} of shape {list(ref.shape)} is not inside its storage of {count} elements")
        try:
            return TensorInfo(ref.shape, ref.storage.dtype)
        except ValueError as error:
            raise ModelError(f"{prefix}: {error}") from error


def _rows_of(ref: TensorRef, rows: slice) -> TensorRef:
    """Return the part of a tensor that has these entries of its first dimension."""
    if not ref.shape:
        return ref
    start, stop, _ = rows.indices(ref.shape[0])
    return replace(ref, offset=ref.offset + start * ref.strides[0], shape=(stop - start, *ref.shape[1:]))


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a tensor whose numbers lie one after another, in numpy's order."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _reach(ref: TensorRef) -> int:
    """Return the number of elements from the start of a tensor's storage to the tensor's last element, inclusive."""
    return ref.offset + sum((size - 1) * step for size, step in zip(ref.shape, ref.strides, strict=True)) + 1


# Write .pth files as torch does, without torch: a zip with a pickle that describes the tensors, and their storages.

_FOLDER: Final = "archive"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the zip's first day, so that equal models make equal files
_STORAGES: Final = {
    np.dtype(np.float32): "FloatStorage",
    np.dtype(np.float16): "HalfStorage",
    np.dtype(ml_dtypes.bfloat16): "BFloat16Storage",
    np.dtype(np.int64): "LongStorage",
}
_EMPTY_ORDERED_DICT: Final = b"ccollections\nOrderedDict\n)R"


def write_pth(file: IO[bytes], entries: Sequence[TensorEntry]) -> None:
    """Write a .pth file with a dict of tensors, each with its own storage, for `torch.load(weights_only=True)`.

    `file` must be seekable.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        items = b"".join(_text(entry.name) + _tensor(str(key), entry) for key, entry in enumerate(entries))
        pickle = b"\x80\x02}(" + items + b"u."
        for name, content in (("data.pkl", pickle), ("byteorder", b"little"), ("version", b"3\n")):
            archive.writestr(_zip_entry(name, len(content)), content)
        for key, entry in enumerate(entries):
            with archive.open(_zip_entry(f"data/{key}", entry.info.num_bytes), "w") as storage:
                entry.write(storage)


def _zip_entry(name: str, size: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(f"{_FOLDER}/{name}", _EPOCH)
    entry.file_size = size  # decides whether the entry has the fields for large files
    return entry


def _tensor(key: str, entry: TensorEntry) -> bytes:
    """Return the pickle operations that make a tensor from the storage `key`, which it fills in numpy's order."""
    shape = entry.info.shape
    storage = f"ctorch\n{_STORAGES[entry.info.dtype]}\n".encode()
    size = _integer(prod(shape))
    window = b"(" + _text("storage") + storage + _text(key) + _text("cpu") + size + b"tQ"
    arguments = window + _integer(0) + _integers(shape) + _integers(_strides(shape)) + b"\x89" + _EMPTY_ORDERED_DICT
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"tR"


def _text(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + len(encoded).to_bytes(4, "little") + encoded


def _integer(value: int) -> bytes:
    if value < 1 << 31:
        return b"J" + value.to_bytes(4, "little")
    return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)


def _integers(values: Iterable[Any]) -> bytes:
    return b"(" + b"".join(map(_integer, values)) + b"t"
