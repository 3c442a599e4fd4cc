"""Read the structure of a CBOR file and leave its byte strings where they are: the cbor2 package reads all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NoReturn

from rnn_engine.errors import ModelError
from rnn_engine.tensor_files.binary_file import BinaryFile

_MOST_ITEMS: Final = 1 << 18
_MOST_DEPTH: Final = 16
_MOST_TEXT: Final = 1 << 12  # bytes
_SIMPLE: Final = {20: False, 21: True, 22: None, 23: None}
_UNSIGNED, _BYTES, _TEXT, _ARRAY, _MAP, _OTHER = 0, 2, 3, 4, 5, 7  # major types


@dataclass(frozen=True, slots=True)
class ByteString:
    """Where the file has a byte string."""

    start: int
    size: int


def read_items(file: BinaryFile) -> Any:  # noqa: ANN401
    """Return the file's one item: numbers, texts, None, lists, dicts and `ByteString`s. Raises ModelError."""
    reader = _Reader(file)
    item = reader.read(0)
    if reader.position != file.stamp.size:
        reader.refuse(f"its content ends at byte {reader.position} of {file.stamp.size}")
    return item


class _Reader:
    def __init__(self, file: BinaryFile) -> None:
        self._file = file
        self._num_items = 0
        self.position = 0

    def read(self, depth: int) -> Any:  # noqa: ANN401
        self._num_items += 1
        if self._num_items > _MOST_ITEMS or depth > _MOST_DEPTH:
            self.refuse(f"it has more than {_MOST_ITEMS} items, or they lie more than {_MOST_DEPTH} deep")
        kind, value = self._read_head()
        match kind:
            case 0:
                return value
            case 2:
                return self._skip(value)
            case 3:
                span = self._skip(value) if value <= _MOST_TEXT else self.refuse(f"it has a text of {value} bytes")
                return self._file.read(span.start, span.size).tobytes().decode(errors="replace")
            case 4:
                return [self.read(depth + 1) for _ in range(self._count(value))]
            case 5:
                return dict(self._read_entry(depth + 1) for _ in range(self._count(value)))
        return value

    def refuse(self, what: str) -> NoReturn:
        raise ModelError(f"{self._file.path}: damaged or truncated CBOR file: {what}")

    def _read_entry(self, depth: int) -> tuple[str | int, Any]:
        key = self.read(depth)
        if not isinstance(key, str | int):
            self.refuse("a key is neither a text nor a number")
        return key, self.read(depth)

    def _read_head(self) -> tuple[int, Any]:
        """Return the major type, and its number; of type 7 what it stands for."""
        first = int(self._take(1)[0])
        kind, short = first >> 5, first & 31
        if kind == _OTHER and short in _SIMPLE:
            return kind, _SIMPLE[short]
        if kind not in (_UNSIGNED, _BYTES, _TEXT, _ARRAY, _MAP) or short > 27:
            self.refuse(f"byte {self.position - 1} begins an item of another kind than those of a model")
        if short < 24:
            return kind, short
        return kind, int.from_bytes(self._take(1 << (short - 24)), "big")

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
