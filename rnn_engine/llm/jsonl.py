"""Files of JSON lines that are mapped to files of results, line by line, and can be resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rnn_engine.errors import InvalidRequestError
from rnn_engine.files import skip_mark
from rnn_engine.llm.results import Completion


def read_lines(path: Path) -> list[dict[str, object]]:
    """Return the objects of a file of JSON lines. Raises InvalidRequestError, which names the line, OSError."""
    with path.open("rb") as file:
        try:
            skip_mark(file)
        except UnicodeDecodeError as error:
            allowed = "JSON lines in UTF-8"
            raise InvalidRequestError("source", str(path), allowed, f"{path}: {error.reason}") from None
        return [_parse(path, number, line) for number, line in enumerate(file.read().splitlines(), 1)]


def fill(template: str, lines: Sequence[Mapping[str, object]]) -> list[str]:
    """Fill `template` with the fields of each line. Raises InvalidRequestError, which names a line that lacks one."""
    filled = []
    for number, line in enumerate(lines, 1):
        try:
            filled.append(template.format_map(line))
        except (KeyError, ValueError, IndexError, AttributeError) as error:
            allowed = f"fields of line {number}, which has {', '.join(line) or 'none'}; {error!r} is the error"
            raise InvalidRequestError("prompt", template, allowed) from error
    return filled


@dataclass(slots=True)
class Results:
    """The file of results: each line is the source's object with a further field. Lines are in the source's order."""

    lines: Sequence[Mapping[str, object]]
    name: str  # of the field with the text
    num_done: int  # lines that the file has
    file: IO[bytes]
    _waiting: dict[int, Completion] = field(default_factory=dict)  # done, but not yet those before them

    @classmethod
    @contextmanager
    def open(cls, path: Path, lines: Sequence[Mapping[str, object]], name: str) -> Iterator[Results]:
        """Open or create the file, without an unfinished last line. Raises InvalidRequestError for other results."""
        with path.open("a+b") as file:
            file.seek(0)
            whole, _, rest = file.read().rpartition(b"\n")
            found = [_parse(path, number, line) for number, line in enumerate(whole.splitlines(), 1)]
            for number, result in enumerate(found, 1):
                expected = lines[number - 1] if number <= len(lines) else None
                if expected is None or {key: result.get(key) for key in expected} != expected or name not in result:
                    allowed = f"a new file, or one whose line {number} is the result of the source's line {number}"
                    raise InvalidRequestError("target", str(path), allowed)
            file.truncate(file.tell() - len(rest))
            yield cls(lines, name, len(found), file)

    def add(self, index: int, completion: Completion) -> None:
        """Note the result of line `index`, from 0, and write all results of which none before is missing."""
        self._waiting[index] = completion
        while (done := self._waiting.pop(self.num_done, None)) is not None:
            result = {**self.lines[self.num_done], self.name: done.text}
            self.file.write(json.dumps(result, ensure_ascii=False).encode() + b"\n")
            self.num_done += 1
        self.file.flush()


def _parse(path: Path, number: int, line: bytes) -> dict[str, object]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        shown = line.decode(errors="replace")
        raise InvalidRequestError(f"{path}, line {number}", shown, "a JSON object on each line")
    return value
