"""The lines of a batch: requests that are checked before any is run, put in order, and answered in files of results."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from operator import add
from pathlib import Path
from typing import IO, Any, Literal, Protocol, Self, TypeAlias
from uuid import uuid4

from rnn_engine.errors import InvalidRequestError
from rnn_engine.files import append, skip_mark
from rnn_engine_server.core.bodies import to_json
from rnn_engine_server.core.call import parsed_bytes
from rnn_engine_server.core.json_text import parse_json
from rnn_engine_server.core.routing import Route
from rnn_engine_server.core.schema import UnknownFields
from rnn_engine_server.core.settings import Limits

MOST_ERRORS = 100  # of the lines of a batch that are listed

_MOST_ID = 512  # characters of a `custom_id`
_LINE_BYTES = 1 << 12  # of a line, besides the body
_RESULT_ID = "batch_req_"  # what the ids of results begin with
_BEGINNING = 1024  # characters of a prompt by which lines are ordered
_PROMPTS = ("instructions", "messages", "prompt", "input", "query", "documents")
"""The fields of a body that its prompt begins with, in this order."""

NotRun: TypeAlias = Literal["batch_expired", "batch_cancelled"]
"""Why a line was not run, as a code in the file of errors."""


@dataclass(frozen=True, slots=True)
class BatchError:
    """What is wrong with a batch: with its file, or with one of its lines, counted from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A request of a batch."""

    custom_id: str
    body: dict[str, Any]

    @classmethod
    def parse(cls, data: bytes, url: str) -> Line:
        """Parse a line of a batch whose requests are all for `url`. Raises InvalidRequestError."""
        line = parse_json(data, "line")
        if not isinstance(line, dict):
            raise InvalidRequestError("line", line, "an object with custom_id, method, url and body")
        custom_id, body = line.get("custom_id"), line.get("body")
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= _MOST_ID:
            raise InvalidRequestError("custom_id", custom_id, f"a text of 1 to {_MOST_ID} characters")
        if line.get("method") != "POST":
            raise InvalidRequestError("method", line.get("method"), "POST")
        if line.get("url") != url:
            raise InvalidRequestError("url", line.get("url"), f"{url}, the endpoint of the batch")
        if not isinstance(body, dict):
            raise InvalidRequestError("body", body, "an object, the body of the request")
        if unknown := line.keys() - {"custom_id", "method", "url", "body"}:
            raise InvalidRequestError(min(unknown), line[min(unknown)], "custom_id, method, url and body alone")
        return cls(custom_id, body)


@dataclass(slots=True)
class LineCheck:
    """What a check of all lines has found: their number, and the first errors."""

    total: int = 0
    errors: list[BatchError] = field(default_factory=list)


def check_lines(path: Path, route: Route, limits: Limits, *, strict: bool) -> LineCheck:
    """Check each line of the file at `path`, as its route would check its body. Raises OSError.

    With `strict`, unknown fields are refused. It stops after `MOST_ERRORS` lines with errors.
    """
    found, ids = LineCheck(), set[str]()
    try:
        for number, _, data in _read_lines(path, limits):
            try:
                if data is None:
                    raise InvalidRequestError("line", "more bytes", f"at most {limits.max_body_bytes} (max_body_bytes)")
                limits.check("max_batch_lines", "lines", found.total + 1)
                line = Line.parse(data, route.path)
                if line.custom_id in ids:
                    raise InvalidRequestError("custom_id", line.custom_id, "an id that no other line has")
                ids.add(line.custom_id)
                _check_body(line.body, route, limits, strict=strict)
            except InvalidRequestError as error:
                found.errors.append(BatchError("invalid_request", str(error), error.field, number))
                if len(found.errors) == MOST_ERRORS or error.field == "lines":
                    break
            found.total += 1
    except UnicodeDecodeError as error:
        found.errors.append(BatchError("invalid_request", error.reason))
    if not found.total and not found.errors:
        found.errors.append(BatchError("empty_file", "the file of the batch has no line with a request"))
    return found


def _check_body(body: dict[str, Any], route: Route, limits: Limits, *, strict: bool) -> None:
    assert route.request is not None
    if body.get("stream"):
        raise InvalidRequestError("body.stream", body["stream"], "false: the answers of a batch are whole")
    if body.get("background"):
        raise InvalidRequestError("body.background", body["background"], "false: a batch runs in the background anyway")
    try:
        route.request.from_value(body, limits, UnknownFields(refuse=strict))
    except InvalidRequestError as error:
        raise InvalidRequestError(f"body.{error.field}", error.value, error.allowed, f"body: {error}") from None


@dataclass(frozen=True, slots=True)
class LinePlace:
    """The place of a line in its file, in bytes."""

    offset: int
    length: int


def order_lines(path: Path, url: str, limits: Limits, done: set[str]) -> list[LinePlace]:
    """Return the places of the lines that are not `done`, by the beginnings of their prompts.

    So prompts that begin alike run one after another, and what they share is run once. The lines were checked before.
    Takes about a kilobyte of memory for each line. Raises OSError.
    """
    keyed = []
    for number, offset, data in _read_lines(path, limits):
        line = Line.parse(data or b"", url)
        if line.custom_id not in done:
            keyed.append((_beginning(line.body), number, LinePlace(offset, len(data or b""))))
    keyed.sort(key=lambda each: each[:2])
    return [place for _, _, place in keyed]


def read_lines(path: Path, places: Sequence[LinePlace], url: str) -> list[tuple[Line, int]]:
    """Read the lines at `places` of a file, each with the bytes of memory that it takes. Raises OSError."""
    lines = []
    with path.open("rb") as file:
        for place in places:
            file.seek(place.offset)
            data = file.read(place.length)
            lines.append((Line.parse(data, url), parsed_bytes(data)))
    return lines


def skip_lines(path: Path, url: str, limits: Limits, journal: Journal, code: NotRun, message: str) -> None:
    """Write to `journal` that the lines which it does not have were not run. Raises OSError."""
    for _, _, data in _read_lines(path, limits):
        line = Line.parse(data or b"", url)
        if line.custom_id not in journal.done:
            journal.add_error(line.custom_id, code, message)


def _beginning(body: dict[str, Any]) -> str:
    prompt = [body[name] for name in _PROMPTS if name in body]
    return f"{body.get('model', '')} {json.dumps(prompt, ensure_ascii=False)[:_BEGINNING]}"


def _read_lines(path: Path, limits: Limits) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield for each line that is not blank its number from 1, its offset in bytes, and its content.

    The content of a line that is too long is None; it is never in memory as a whole. Raises UnicodeDecodeError if the
    file begins with the byte-order mark of UTF-16 or UTF-32.
    """
    most, number = limits.max_body_bytes + _LINE_BYTES, 0
    with path.open("rb") as file:
        offset = skip_mark(file)
        while data := file.readline(most + 1):
            number += 1
            begun, piece, is_long = offset, data, len(data) > most
            offset += len(data)
            while is_long and piece and not piece.endswith(b"\n"):
                piece = file.readline(most)
                offset += len(piece)
            if is_long or not data.isspace():
                yield number, begun, None if is_long else data


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """The tokens of answers."""

    input_tokens: int = 0
    cached_tokens: int = 0  # of the input's, which were not run
    output_tokens: int = 0
    reasoning_tokens: int = 0  # of the output's

    @classmethod
    def of(cls, usage: Mapping[str, Any] | None) -> Self:
        """Return the tokens that the `usage` of an answer lists, under the names of chats or of responses."""
        usage = usage or {}
        inputs = usage.get("input_tokens_details") or usage.get("prompt_tokens_details") or {}
        outputs = usage.get("output_tokens_details") or usage.get("completion_tokens_details") or {}
        return cls(
            input_tokens=usage.get("input_tokens", usage.get("prompt_tokens", 0)),
            cached_tokens=inputs.get("cached_tokens", 0),
            output_tokens=usage.get("output_tokens", usage.get("completion_tokens", 0)),
            reasoning_tokens=outputs.get("reasoning_tokens", 0),
        )

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(*map(add, astuple(self), astuple(other)))


NO_TOKENS = TokenUsage()


@dataclass(slots=True)
class LineCounts:
    """How many lines have been finished, and the tokens of their answers."""

    completed: int = 0
    failed: int = 0
    not_run: int = 0  # of the failed ones
    num_retries: int = 0  # lines that were sent again
    usage: TokenUsage = NO_TOKENS

    def add(self, *, is_success: bool, was_run: bool = True, usage: TokenUsage = NO_TOKENS) -> None:
        """Count one more line."""
        self.completed += is_success
        self.failed += not is_success
        self.not_run += not was_run
        self.usage += usage


class CountBytes(Protocol):
    """Counts bytes, negative ones too; raises an error if there is no room for them, unless they `always` count."""

    def __call__(self, num_bytes: int, *, always: bool) -> None: ...


class Journal:
    """The finished lines of a batch, in two files: those that succeeded, and those that failed.

    A line is written by one call of the system, so that it is there as a whole when the process is killed the moment
    after. For one thread at a time.
    """

    def __init__(self, outputs: Path, errors: Path, now: float, total: LineCounts, count_bytes: CountBytes) -> None:
        """Open both files at the Unix time `now`; they are created if they are missing.

        A part of a line at an end is cut off.

        Lines that are added are also counted in `total`, which several journals may share, and their bytes with
        `count_bytes`. Raises OSError.
        """
        self.done = set[str]()  # the `custom_id` of each line
        self.counts = LineCounts()
        self.opened = now
        self.num_added = 0  # lines since then
        self._total = total
        self._count_bytes = count_bytes
        self._outputs = self._open(outputs, is_success=True)
        self._errors = self._open(errors, is_success=False)

    def add_answer(
        self, custom_id: str, request_id: str, status: int, body: bytes, usage: Mapping[str, Any] | None = None
    ) -> None:
        """Write the answer to a line, whose `body` is JSON and has the `usage`.

        Raises OSError, or what `count_bytes` raises, with nothing written.
        """
        head = to_json({"id": _RESULT_ID + request_id, "custom_id": custom_id})[:-1]
        inner = to_json({"status_code": status, "request_id": request_id})[:-1]
        line = head + b',"response":' + inner + b',"body":' + body + b'},"error":null}'
        self._add(custom_id, line, is_success=status == 200, usage=TokenUsage.of(usage))

    def add_error(self, custom_id: str, code: NotRun, message: str) -> None:
        """Write that a line was not run. Raises OSError, with nothing written."""
        error = {"code": code, "message": message}
        line = to_json({"id": _RESULT_ID + uuid4().hex, "custom_id": custom_id, "response": None, "error": error})
        self._add(custom_id, line, is_success=False, was_run=False)

    def note_retry(self) -> None:
        """Count that a line was sent again."""
        for counts in (self.counts, self._total):
            counts.num_retries += 1

    def close(self) -> None:
        """Close both files. Idempotent."""
        self._outputs.close()
        self._errors.close()

    def _add(
        self, custom_id: str, line: bytes, *, is_success: bool, was_run: bool = True, usage: TokenUsage = NO_TOKENS
    ) -> None:
        file = self._outputs if is_success else self._errors
        self._count_bytes(len(line) + 1, always=not was_run)
        try:
            append(file, line + b"\n")
        except OSError:
            self._count_bytes(-len(line) - 1, always=True)
            raise
        self.done.add(custom_id)
        self.num_added += 1
        for counts in (self.counts, self._total):
            counts.add(is_success=is_success, was_run=was_run, usage=usage)

    def _open(self, path: Path, *, is_success: bool) -> IO[bytes]:
        """Open a file for more lines, after counting those that it has."""
        file = path.open("ab+", buffering=0)
        with path.open("rb") as lines:
            whole = 0
            for line in lines:
                if not line.endswith(b"\n"):
                    break  # a kill came before its end
                try:
                    result = json.loads(line)
                    custom_id, response = result["custom_id"], result["response"]
                except (ValueError, KeyError, TypeError):
                    break  # a crash of the system lost what was to be written here
                self.done.add(custom_id)
                usage = TokenUsage.of(response["body"].get("usage")) if is_success else NO_TOKENS
                self.counts.add(is_success=is_success, was_run=response is not None, usage=usage)
                whole += len(line)
        self._count_bytes(whole - file.seek(0, os.SEEK_END), always=True)
        file.truncate(whole)
        return file
