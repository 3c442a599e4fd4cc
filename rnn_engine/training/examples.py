"""Turn a record of a data file into an example: a conversation with answers to learn, or a text.

The forms are those of OpenAI's fine-tuning, ShareGPT, Alpaca, pairs of a prompt and a completion, and plain texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from rnn_engine.chat_template import ROLE_WORDS, ChatMessage, Role, Tool, ToolCall, find_role
from rnn_engine.errors import InvalidRequestError


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
