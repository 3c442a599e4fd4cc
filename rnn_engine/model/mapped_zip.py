"""A zip file whose uncompressed entries are read as views of a mapping, and its compressed ones by inflating them.

Knows nothing of what the entries mean.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import KeysView
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.model.listing import show

_LOCAL_HEADER_BYTES: Final = 30
_CHUNK_BYTES: Final = 1 << 16
_LOCAL_MAGIC: Final = b"PK\x03\x04"
_ENCRYPTED: Final = 0x1  # a flag bit of an entry

_DAMAGE: Final = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    MemoryError,
    OSError,
    OverflowError,
    RuntimeError,
    NotImplementedError,
    ValueError,
)
"""What the library raises where the bytes of a zip make no sense, or use what it does not support."""


class MappedZip:
    """An open zip file. Raises ModelError where it is damaged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._archive: zipfile.ZipFile | None = zipfile.ZipFile(path)
        except _DAMAGE as error:
            raise ModelError(f"{path}: damaged or truncated zip file: {error}") from error
        self._mapping: np.memmap[Any, np.dtype[np.uint8]] | None = np.memmap(path, np.uint8, mode="r")
        self._entries = {entry.filename: entry for entry in self._archive.infolist()}

    @property
    def names(self) -> KeysView[str]:
        return self._entries.keys()

    def size(self, name: str) -> int:
        """An entry's length in bytes, once inflated. Raises KeyError for a name that the zip does not have."""
        return self._entries[name].file_size

    def read(self, name: str, size: int) -> NDArray[np.uint8]:
        """The first `size` bytes of an entry; a view of the mapping where the entry is stored uncompressed."""
        entry = self._entries[name]
        return self._view(entry, size) if entry.compress_type == zipfile.ZIP_STORED else self._inflate(entry, size)

    def read_whole(self, name: str) -> bytes:
        """A copy of an entry, checked against the zip's checksum."""
        entry = self._entries[name]
        return self._inflate(entry, entry.file_size).tobytes()

    def close(self) -> None:
        """Let go of the file; views stay valid. Idempotent."""
        if self._archive is not None:
            self._archive.close()
        self._archive = None
        self._mapping = None

    def _view(self, entry: zipfile.ZipInfo, size: int) -> NDArray[np.uint8]:
        if self._mapping is None:
            raise ValueError("the file is closed")
        header = self._mapping[entry.header_offset : entry.header_offset + _LOCAL_HEADER_BYTES].tobytes()
        if not header.startswith(_LOCAL_MAGIC) or len(header) < _LOCAL_HEADER_BYTES or entry.flag_bits & _ENCRYPTED:
            raise ModelError(f"{self._path}: the zip's entry {show(entry.filename)} is damaged or encrypted")
        name_bytes, extra_bytes = struct.unpack_from("<HH", header, 26)
        start = entry.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
        view = self._mapping[start : start + min(size, entry.file_size)]
        self._check_length(entry, len(view), size)
        return view

    def _inflate(self, entry: zipfile.ZipInfo, size: int) -> NDArray[np.uint8]:
        if self._archive is None:
            raise ValueError("the file is closed")
        try:
            data = np.empty(size, np.uint8)
            with self._archive.open(entry) as file:
                length = _fill(data, file)
        except _DAMAGE as error:
            raise ModelError(f"{self._path}: the zip's entry {show(entry.filename)} can't be read: {error}") from error
        self._check_length(entry, length, size)
        return data

    def _check_length(self, entry: zipfile.ZipInfo, found: int, expected: int) -> None:
        if found != expected:
            raise ModelError(
                f"{self._path}: the zip's entry {show(entry.filename)} has {found} bytes; expected {expected}"
            )


def _fill(data: NDArray[np.uint8], file: IO[bytes]) -> int:
    """Read into `data` and return the number of bytes that there were; by chunks, as the library copies twice."""
    filled = 0
    while chunk := file.read(min(_CHUNK_BYTES, len(data) - filled)):
        data[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
        filled += len(chunk)
    return filled
