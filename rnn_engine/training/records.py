"""Read a data file as a stream of records, JSON lines, a JSON array or plain text, and turn them into examples."""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

from rnn_engine.chat_template import ROLE_WORDS, ChatMessage, Role, Tool, ToolCall, find_role
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


# Turn a record of a data file into an example: a conversation with answers to learn, or a text.
#
# The forms are those of OpenAI's fine-tuning, ShareGPT, Alpaca, pairs of a prompt and a completion, and plain texts.


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, and the numbers of the messages to learn, all of which are the assistant's."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...]
    learnt: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """A text of which all is learnt but what stands in `prompt`."""

    prompt: str
    completion: str


Example: TypeAlias = Chat | Text
_Object: TypeAlias = Mapping[str, Any]

_SHAREGPT: Final = {"human": Role.USER, "gpt": Role.ASSISTANT}


def parse_example(value: object) -> Example:
    """Return a record's example, whose keys decide its form. Raises InvalidRequestError, which names the key."""
    record = _object(value, "the record")
    for keys, parse in _FORMS:
        if all(key in record for key in keys):
            return parse(record)
    forms = "; ".join(" and ".join(keys) for keys, _ in _FORMS)
    raise InvalidRequestError("the record", sorted(record)[:20], f"the keys of a known form: {forms}")


def _parse_openai(record: _Object) -> Chat:
    messages = _list(record["messages"], "messages")
    functions = [{"type": "function", "function": each} for each in _list(record.get("functions") or [], "functions")]
    tools = _list(record.get("tools") or [], "tools") or functions
    return _parse_chat(messages, tools, "messages")


def _parse_sharegpt(record: _Object) -> Chat:
    messages = [] if not record.get("system") else [ChatMessage(Role.SYSTEM, _text(record["system"], "system"))]
    for number, turn in enumerate(_list(record["conversations"], "conversations")):
        field = f"conversations.{number}"
        parts = _object(turn, field)
        word = _text(parts.get("from"), f"{field}.from")
        role = _SHAREGPT.get(word.lower()) or find_role(word)
        if role is None:
            raise InvalidRequestError(f"{field}.from", word, f"one of {', '.join((*_SHAREGPT, *ROLE_WORDS))}")
        messages.append(ChatMessage(role, _text(parts.get("value"), f"{field}.value")))
    return _chat(messages)


def _parse_alpaca(record: _Object) -> Chat:
    messages = [] if not record.get("system") else [ChatMessage(Role.SYSTEM, _text(record["system"], "system"))]
    question = _text(record["instruction"], "instruction")
    if extra := _text(record.get("input") or "", "input"):
        question = f"{question}\n\n{extra}"
    answer = _text(record["output"], "output")
    return _chat([*messages, ChatMessage(Role.USER, question), ChatMessage(Role.ASSISTANT, answer)])


def _parse_pair(record: _Object) -> Example:
    prompt, completion = record["prompt"], record["completion"]
    if isinstance(prompt, list) and isinstance(completion, list):
        chat = _parse_chat([*prompt, *completion], _list(record.get("tools") or [], "tools"), "prompt and completion")
        return Chat(chat.messages, chat.tools, tuple(number for number in chat.learnt if number >= len(prompt)))
    return Text(_text(prompt, "prompt"), _text(completion, "completion"))


_FORMS: Final[tuple[tuple[tuple[str, ...], Callable[[_Object], Example]], ...]] = (
    (("messages",), _parse_openai),
    (("conversations",), _parse_sharegpt),
    (("prompt", "completion"), _parse_pair),
    (("instruction", "output"), _parse_alpaca),
    (("text",), lambda record: Text("", _text(record["text"], "text"))),
)


def _chat(messages: Sequence[ChatMessage]) -> Chat:
    answers = (number for number, message in enumerate(messages) if message.role is Role.ASSISTANT)
    return Chat(tuple(messages), (), tuple(answers))


def _parse_chat(messages: Sequence[object], tools: Sequence[object], field: str) -> Chat:
    parsed = [_parse_message(message, f"{field}.{number}") for number, message in enumerate(messages)]
    return Chat(
        tuple(message for message, _ in parsed),
        tuple(_parse_tool(tool, f"tools.{number}") for number, tool in enumerate(tools)),
        tuple(number for number, (_, learnt) in enumerate(parsed) if learnt),
    )


def _parse_message(value: object, field: str) -> tuple[ChatMessage, bool]:
    """Return a message, and whether it is learnt: an answer that has no weight of 0."""
    fields = _object(value, field)
    word = _text(fields.get("role"), f"{field}.role")
    role = find_role(word)
    if role is None:
        raise InvalidRequestError(f"{field}.role", word, f"one of {', '.join(ROLE_WORDS)}")
    if fields.get("reasoning_content"):
        allowed = "null; thoughts are learnt as a part of the content, such as <think>...</think>"
        raise InvalidRequestError(f"{field}.reasoning_content", fields["reasoning_content"], allowed)
    weight = fields.get("weight", 1)
    if isinstance(weight, bool) or weight not in (0, 1, None):
        raise InvalidRequestError(f"{field}.weight", weight, "0 or 1")
    if role is not Role.ASSISTANT and "weight" in fields and weight:
        raise InvalidRequestError(f"{field}.weight", weight, "null, since only answers of the assistant are learnt")
    calls = _parse_calls(fields, field)
    if calls and role is not Role.ASSISTANT:
        raise InvalidRequestError(f"{field}.tool_calls", calls[0].name, "null, since only the assistant calls tools")
    content = _parse_content(fields.get("content"), f"{field}.content", optional=bool(calls))
    name = fields.get("name") if role is Role.OBSERVATION else None
    call_id = fields.get("tool_call_id")
    message = ChatMessage(
        role,
        content,
        calls,
        None if call_id is None else _text(call_id, f"{field}.tool_call_id"),
        None if name is None else _text(name, f"{field}.name"),
    )
    return message, role is Role.ASSISTANT and weight != 0


def _parse_content(value: object, field: str, *, optional: bool) -> str:
    if value is None and optional:
        return ""
    if not isinstance(value, list):
        return _text(value, field)
    texts = []
    for number, part in enumerate(value):
        fields = _object(part, f"{field}.{number}")
        if fields.get("type") != "text":
            raise InvalidRequestError(f"{field}.{number}.type", fields.get("type"), "text, the only type that is read")
        texts.append(_text(fields.get("text"), f"{field}.{number}.text"))
    return "".join(texts)


def _parse_calls(fields: _Object, field: str) -> tuple[ToolCall, ...]:
    given = _list(fields.get("tool_calls") or [], f"{field}.tool_calls")
    calls = [(_object(call, f"{field}.tool_calls.{number}"), number) for number, call in enumerate(given)]
    parsed = [
        _parse_call(call.get("function"), f"{field}.tool_calls.{number}.function", call.get("id") or "")
        for call, number in calls
    ]
    if fields.get("function_call"):
        parsed.append(_parse_call(fields["function_call"], f"{field}.function_call", ""))
    return tuple(parsed)


def _parse_call(value: object, field: str, call_id: object) -> ToolCall:
    fields = _object(value, field)
    arguments = fields.get("arguments", "{}")
    if isinstance(arguments, dict):  # as some data sets have them
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(_text(fields.get("name"), f"{field}.name"), _text(arguments, f"{field}.arguments"), str(call_id))


def _parse_tool(value: object, field: str) -> Tool:
    fields = _object(_object(value, field).get("function"), f"{field}.function")
    parameters = _object(fields.get("parameters") or {"properties": {}}, f"{field}.function.parameters")
    return Tool(
        _text(fields.get("name"), f"{field}.function.name"),
        _text(fields.get("description") or "", f"{field}.function.description"),
        {"type": "object", **parameters},
    )


def _object(value: object, field: str) -> _Object:
    if not isinstance(value, dict):
        raise InvalidRequestError(field, value, "a JSON object")
    return value


def _list(value: object, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidRequestError(field, value, "a list")
    return value


def _text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(field, value, "a string")
    return value
