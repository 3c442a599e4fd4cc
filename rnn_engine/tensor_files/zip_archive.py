"""Read the entries of a zip file: straight from the file where they are stored as they are, else by inflating them."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import KeysView
from typing import IO, Final

import numpy as np
from numpy.typing import NDArray

from rnn_engine.errors import ModelError
from rnn_engine.tensor_files.binary_file import BinaryFile, Cursor
from rnn_engine.tensor_files.listing import show

_LOCAL_HEADER_BYTES: Final = 30
_CHUNK_BYTES: Final = 1 << 16
_LOCAL_MAGIC: Final = b"PK\x03\x04"
_ENCRYPTED: Final = 0x1  # a flag bit of an entry
_DIRECTORY_LIMIT: Final = 4 << 20  # bytes; the directory of a model of a thousand tensors has 0.1 MB

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


class ZipArchive:
    """The entries of an open file, which the caller closes. Raises ModelError where the zip is damaged."""

    def __init__(self, file: BinaryFile) -> None:
        self._file = file
        try:
            cursor = Cursor(file, _DIRECTORY_LIMIT)
            self._archive = zipfile.ZipFile(io.BufferedReader(cursor))
            cursor.budget = None
        except _DAMAGE as error:
            raise ModelError(f"{file.path}: damaged or truncated zip file: {error}") from error
        self._entries = {entry.filename: entry for entry in self._archive.infolist()}

    @property
    def names(self) -> KeysView[str]:
        return self._entries.keys()

    def size(self, name: str) -> int:
        """An entry's length in bytes, once inflated. Raises KeyError for a name that the zip does not have."""
        return self._entries[name].file_size

    def is_compressed(self, name: str) -> bool:
        return self._entries[name].compress_type != zipfile.ZIP_STORED

    def read(self, name: str, start: int, size: int) -> NDArray[np.uint8]:
        """Return a copy of `size` bytes of an entry; of a compressed one, all that is before them is inflated too."""
        entry = self._entries[name]
        if entry.compress_type == zipfile.ZIP_STORED:
            return self._read_stored(entry, start, size)
        return self._inflate(entry, start, size)

    def read_whole(self, name: str) -> bytes:
        """Return a copy of an entry, checked against the zip's checksum."""
        entry = self._entries[name]
        return self._inflate(entry, 0, entry.file_size).tobytes()

    def _read_stored(self, entry: zipfile.ZipInfo, start: int, size: int) -> NDArray[np.uint8]:
        file_size = self._file.stamp.size
        header = b""
        if entry.header_offset + _LOCAL_HEADER_BYTES <= file_size:
            header = self._file.read(entry.header_offset, _LOCAL_HEADER_BYTES).tobytes()
        if not header.startswith(_LOCAL_MAGIC) or entry.flag_bits & _ENCRYPTED:
            raise ModelError(f"{self._file.path}: the zip's entry {show(entry.filename)} is damaged or encrypted")
        name_bytes, extra_bytes = struct.unpack_from("<HH", header, 26)
        begin = entry.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
        self._check_length(entry, min(entry.file_size, file_size - begin), start + size)
        return self._file.read(begin + start, size)

    def _inflate(self, entry: zipfile.ZipInfo, start: int, size: int) -> NDArray[np.uint8]:
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others may ask for any memory
            raise ModelError(
                f"{self._file.path}: the zip's entry {show(entry.filename)} is compressed by method "
                f"{entry.compress_type}; expected one that is stored as it is, or deflated"
            )
        try:
            data = np.empty(size, np.uint8)
            with self._archive.open(entry) as file:
                length = _skip(file, start) + _fill(data, file)
        except _DAMAGE as error:
            raise ModelError(
                f"{self._file.path}: the zip's entry {show(entry.filename)} can't be read: {error}"
            ) from error
        self._check_length(entry, length, start + size)
        return data

    def _check_length(self, entry: zipfile.ZipInfo, found: int, expected: int) -> None:
        if found < expected:
            raise ModelError(
                f"{self._file.path}: the zip's entry {show(entry.filename)} has {found} bytes; expected {expected}"
            )


def _skip(file: IO[bytes], size: int) -> int:
    """Read past `size` bytes and return the number of bytes that there were."""
    skipped = 0
    while chunk := file.read(min(_CHUNK_BYTES, size - skipped)):
        skipped += len(chunk)
    return skipped


def _fill(data: NDArray[np.uint8], file: IO[bytes]) -> int:
    """Read into `data` and return the number of bytes that there were; by chunks, as the library copies twice."""
    filled = 0
    while chunk := file.read(min(_CHUNK_BYTES, len(data) - filled)):
        data[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
        filled += len(chunk)
    return filled
