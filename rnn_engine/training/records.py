"""Read the records of a file with training data one after another: JSON lines, a JSON array, or plain text.

A file is read as a stream, and a record has at most 16 MiB, so that memory does not grow with the file.
"""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

from rnn_engine.errors import InvalidRequestError, has_control_characters
from rnn_engine.files import skip_mark

MOST_BYTES: Final = 16 << 20  # of a record
_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a data file: a value of JSON, or {"text": ...} for a paragraph of plain text."""

    place: str  # such as "line 3", or "item 3" in a JSON array, from 1 on
    value: object


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A part of a data file that can't be used, and why."""

    place: str
    reason: str


Found: TypeAlias = Record | BadRecord


def read_records(path: Path) -> Iterator[Found]:
    """Yield the records of a file, and what is no record; blank lines are skipped.

    A name that ends in `.txt` is that of a plain text: its paragraphs, with empty lines between them, are the records.
    Any other file is a JSON array if it begins with "[", and has one JSON value a line otherwise. Raises
    InvalidRequestError if the file can't be read.
    """
    try:
        with path.open("rb") as file:
            first = _first_byte(file)
            if path.suffix.lower() == ".txt":
                yield from _paragraphs(file)
            elif first == b"[":
                yield from _items(file)
            else:
                yield from _lines(file)
    except OSError as error:
        message = f"{path} can't be read: {error.strerror}"
        raise InvalidRequestError("data", str(path), "a file that can be read", message) from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError("data", str(path), f"a text in UTF-8: {error.reason}") from error


def _first_byte(file: BinaryIO) -> bytes:
    """Return the first byte that is no white space, and move to the beginning of the text, after a byte order mark."""
    start = skip_mark(file)
    first = b""
    while not first and (block := file.read(_BLOCK)):
        first = block.lstrip()[:1]
    file.seek(start)
    return first


def _text_lines(file: BinaryIO) -> Iterator[tuple[str, str | BadRecord]]:
    """Yield each line's place, and its text or why it can't be used."""
    number = 0
    while line := file.readline(MOST_BYTES + 1):
        number += 1
        place = f"line {number}"
        if len(line) > MOST_BYTES:
            while line and not line.endswith(b"\n"):
                line = file.readline(_BLOCK)
            yield place, BadRecord(place, f"has more than {MOST_BYTES} bytes")
            continue
        try:
            yield place, line.decode()
        except UnicodeDecodeError as error:
            yield place, BadRecord(place, f"is not UTF-8: byte 0x{line[error.start]:02x} at {error.start + 1}")


def _lines(file: BinaryIO) -> Iterator[Found]:
    for place, line in _text_lines(file):
        if isinstance(line, BadRecord):
            yield line
        elif line.strip():
            try:
                yield Record(place, parse_json(line))
            except ValueError as error:
                yield BadRecord(place, f"is no JSON: {error}")


def _paragraphs(file: BinaryIO) -> Iterator[Found]:
    held: list[str] = []
    start, length = "", 0
    for place, line in _text_lines(file):
        if isinstance(line, BadRecord):
            yield line
        elif line.strip():
            start = start if held else place
            length += len(line)
            held.append(line if length <= MOST_BYTES else "")
        elif held:
            yield _paragraph(start, held, length)
            held, length = [], 0
    if held:
        yield _paragraph(start, held, length)


def _paragraph(place: str, lines: Sequence[str], length: int) -> Found:
    if length > MOST_BYTES:
        return BadRecord(place, f"begins a paragraph of more than {MOST_BYTES} characters")
    text = "".join(lines).replace("\r\n", "\n").strip("\n")
    if has_control_characters(text.replace("\n", "").replace("\t", "")):
        return BadRecord(place, "begins a paragraph with control characters; expected a text")
    return Record(place, {"text": text})


def _items(file: BinaryIO) -> Iterator[Found]:
    """Yield the items of a JSON array. What follows a faulty item can't be found, so the fault is the last record."""
    text, number = _Window(file), 1
    text.skip()
    try:
        while text.peek() != "]":
            yield Record(f"item {number}", text.take_value())
            number += 1
            if text.peek() == ",":
                text.skip()
            elif text.peek() != "]":
                raise ValueError("expected a comma or a bracket before it")
        text.skip()
        if text.peek():
            raise ValueError("the array has ended before it")
    except ValueError as error:
        yield BadRecord(f"item {number}", f"is no item of a JSON array: {error}")


class _Window:
    """A part of a text file that grows only as far as one JSON value needs."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        # a byte that is not UTF-8 becomes an unpaired surrogate, so that only its own item is refused
        self._decoder = getincrementaldecoder("utf-8")("surrogateescape")
        self._text = ""
        self._place = 0
        self._ended = False

    def peek(self) -> str:
        """Return the next character that is no white space; an empty text at the end."""
        while True:
            while self._place < len(self._text):
                if not self._text[self._place].isspace():
                    return self._text[self._place]
                self._place += 1
            if self._ended:
                return ""
            self._read(_BLOCK)

    def skip(self) -> None:
        """Go past the next character that is no white space."""
        self.peek()
        self._place += 1

    def take_value(self) -> object:
        """Return the next JSON value. Raises ValueError if there is none."""
        self.peek()
        while True:
            try:
                value, end = _decode(self._text, self._place)
            except ValueError:
                held = len(self._text) - self._place
                if self._ended or held > MOST_BYTES:
                    raise
                self._read(max(_BLOCK, held))
                continue
            if end == len(self._text) and not self._ended:  # a number may go on
                self._read(_BLOCK)
                continue
            self._place = end
            return value

    def _read(self, size: int) -> None:
        data = self._file.read(size)
        self._ended = not data
        text = self._decoder.decode(data, final=self._ended)
        self._text, self._place = self._text[self._place :] + text, 0


def parse_json(text: str) -> object:
    """Return the value that `text` is in JSON. Raises ValueError, also for NaN, infinity and a key that comes twice."""
    text = text.strip()
    value, end = _decode(text, 0)
    if end != len(text):
        raise ValueError(f"more follows after character {end}")
    return value


def _decode(text: str, start: int) -> tuple[object, int]:
    try:
        return _DECODER.raw_decode(text, start)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no number of JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice[:40]!r} comes twice")
    return found


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
