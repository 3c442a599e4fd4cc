"""Parse a CBOR file, with the positions of its byte strings in place of their bytes.

The cbor2 package does not do here: it reads all byte strings into memory, and a small file can make it build any number
of items.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from rnn_engine.errors import ModelError
from rnn_engine.tensor_files.binary_file import ByteSource

_MOST_ITEMS: Final = 1 << 18
_MOST_DEPTH: Final = 16
_MOST_TEXT: Final = 1 << 12  # bytes
_SIMPLE: Final = {20: False, 21: True, 22: None, 23: None}
_FLOATS: Final = {25: ">e", 26: ">f", 27: ">d"}
_LONGEST_NUMBER: Final = 27  # what is above stands for an unknown length
_TAG, _OTHER = 6, 7  # major types


@dataclass(frozen=True, slots=True)
class ByteString:
    """The position and size of a byte string in a CBOR file."""

    start: int
    size: int


def read_items(file: ByteSource, most_items: int = _MOST_ITEMS) -> Any:  # noqa: ANN401
    """Parse a CBOR file of one item, and return it as numbers, texts, None, lists, dicts and `ByteString`s.

    Raises ModelError if it is damaged, or holds more than `most_items` or other kinds of items.
    """
    reader = _CborReader(file, most_items)
    item = reader.read(0)
    if reader.position != file.stamp.size:
        reader.refuse(f"its content ends at byte {reader.position} of {file.stamp.size}")
    return item


class _CborReader:
    def __init__(self, file: ByteSource, most_items: int) -> None:
        self._file = file
        self._most_items = most_items
        self._num_items = 0
        self.position = 0

    def read(self, depth: int) -> Any:  # noqa: ANN401
        self._num_items += 1
        if self._num_items > self._most_items or depth > _MOST_DEPTH:
            self.refuse(f"it has more than {self._most_items} items, or they lie more than {_MOST_DEPTH} deep")
        kind, value = self._read_head()
        match kind:
            case 1:
                return -1 - value
            case 2:
                return self._skip(value)
            case 3:
                return self._read_text(value)
            case 4:
                return [self.read(depth + 1) for _ in range(self._count(value))]
            case 5:
                return dict(self._read_entry(depth + 1) for _ in range(self._count(value)))
        return value

    def refuse(self, what: str) -> NoReturn:
        raise ModelError(f"{self._file.path}: damaged or truncated CBOR file: {what}")

    def _read_text(self, size: int) -> str:
        if size > _MOST_TEXT:
            self.refuse(f"it has a text of {size} bytes; expected at most {_MOST_TEXT}")
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            self.refuse(f"the text before byte {self.position} is no UTF-8")

    def _read_entry(self, depth: int) -> tuple[str | int, Any]:
        key = self.read(depth)
        if not isinstance(key, str | int):
            self.refuse("a key is neither a text nor a number")
        return key, self.read(depth)

    def _read_head(self) -> tuple[int, Any]:
        """Read the beginning of a CBOR item; return its major type and its number, or for type 7 the value itself."""
        kind, short = divmod(self._take(1)[0], 32)
        if kind == _OTHER and short in _SIMPLE:
            return kind, _SIMPLE[short]
        if kind == _TAG or short > _LONGEST_NUMBER or (kind == _OTHER and short not in _FLOATS):
            self.refuse(f"byte {self.position - 1} begins no number, text, byte string, list or map of known length")
        if short < 24:
            return kind, short
        number = self._take(1 << (short - 24))
        return kind, struct.unpack(_FLOATS[short], number)[0] if kind == _OTHER else int.from_bytes(number, "big")

    def _take(self, size: int) -> bytes:
        span = self._skip(size)
        return self._file.read(span.start, size).tobytes()

    def _skip(self, size: int) -> ByteString:
        span = ByteString(self.position, size)
        if span.start + size > self._file.stamp.size:
            self.refuse(f"{size} bytes from {span.start} on; expected an end within its {self._file.stamp.size} bytes")
        self.position += size
        return span

    def _count(self, value: int) -> int:
        if value > self._file.stamp.size - self.position:
            self.refuse(f"a list of {value} items at byte {self.position}")
        return value
