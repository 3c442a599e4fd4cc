"""Write .pth files as torch does, without torch: a zip with a pickle that describes the tensors, and their storages.

`pickle` would have to import torch to name what rebuilds a tensor, so the pickle's operations are written here.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Sequence
from typing import IO, Any, Final

import ml_dtypes
import numpy as np

from rnn_engine.tensor_files.entry import TensorEntry

_FOLDER: Final = "archive"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the zip's first day, so that equal models make equal files
_STORAGES: Final = {
    np.dtype(np.float32): "FloatStorage",
    np.dtype(np.float16): "HalfStorage",
    np.dtype(ml_dtypes.bfloat16): "BFloat16Storage",
}
_EMPTY_ORDERED_DICT: Final = b"ccollections\nOrderedDict\n)R"


def write_pth(file: IO[bytes], entries: Sequence[TensorEntry]) -> None:
    """Write a dict of tensors, each with a storage of its own, for `torch.load(weights_only=True)`. `file` can seek."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in (("data.pkl", _pickle(entries)), ("byteorder", b"little"), ("version", b"3\n")):
            archive.writestr(_zip_entry(name, len(content)), content)
        for key, entry in enumerate(entries):
            with archive.open(_zip_entry(f"data/{key}", entry.info.num_bytes), "w") as storage:
                entry.write(storage)


def _zip_entry(name: str, size: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(f"{_FOLDER}/{name}", _EPOCH)
    entry.file_size = size  # says whether the entry needs the fields for large files
    return entry


def _pickle(entries: Sequence[TensorEntry]) -> bytes:
    items = b"".join(_text(entry.name) + _tensor(str(key), entry) for key, entry in enumerate(entries))
    return b"\x80\x02}(" + items + b"u."


def _tensor(key: str, entry: TensorEntry) -> bytes:
    """Return the operations that leave a contiguous tensor, which fills its storage, on the stack."""
    shape = entry.info.shape
    strides = [int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))]
    storage = f"ctorch\n{_STORAGES[entry.info.dtype]}\n".encode()
    size = _integer(int(np.prod(shape, dtype=np.int64)))
    window = b"(" + _text("storage") + storage + _text(key) + _text("cpu") + size + b"tQ"
    arguments = window + _integer(0) + _integers(shape) + _integers(strides) + b"\x89" + _EMPTY_ORDERED_DICT
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
