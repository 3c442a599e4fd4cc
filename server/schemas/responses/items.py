"""The items of a conversation, as OpenAI's responses have them: checked, given ids, and made into messages."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Annotated, Any, Self, TypeAlias

from pydantic import BeforeValidator, FailFast, PlainValidator, WithJsonSchema
from pydantic_core import from_json, to_json

from rnn_engine.chat_template import Role, find_role
from server.http.memory import parsed_bytes
from server.schemas.base import RefusedError
from server.schemas.messages import CalledFunction, Message, ToolCallBody, parse_content, parse_role

Item: TypeAlias = dict[str, Any]

_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
_KEPT_BYTES = 128  # that a kept item takes beside its texts
_KINDS = "message, function_call, function_call_output, reasoning or item_reference"


def _parse_item(value: object) -> Item:
    """Return an item with what is known of it, and with an id."""
    if not isinstance(value, dict):
        raise RefusedError(value, f"an item with the type {_KINDS}")
    match value:
        case {"type": "function_call", "call_id": str(call_id), "name": str(name), "arguments": str(arguments)}:
            item: Item = {"call_id": call_id, "name": name, "arguments": arguments}
            return _finish_item(value, "function_call", item)
        case {"type": "function_call_output", "call_id": str(call_id), "output": output}:
            return _finish_item(value, "function_call_output", {"call_id": call_id, "output": _text(output)})
        case {"type": "reasoning"}:
            return _finish_item(value, "reasoning", {"summary": [], "content": _parse_thoughts(value)})
        case {"type": "item_reference", "id": str(item_id)}:
            return {"type": "item_reference", "id": item_id}
        case {"role": role, "content": content} if value.get("type", "message") == "message":
            return _parse_message(value, role, content)
        case {"type": "message" | "function_call" | "function_call_output" | "item_reference"}:
            raise RefusedError(value, "an item with all of its fields")
    raise RefusedError(value.get("type"), _KINDS, below="type")


def _parse_message(value: Mapping[str, Any], role: object, content: object) -> Item:
    word = str(role).lower()
    is_answer = parse_role(role) is Role.ASSISTANT
    part: Item = {"type": "output_text" if is_answer else "input_text", "text": _text(content)}
    if is_answer:
        part |= {"annotations": [], "logprobs": []}
    return _finish_item(value, "message", {"role": word, "content": [part]})


def _text(content: object) -> str:
    text = parse_content(content)
    if text is None:
        raise RefusedError(content, "a string or a list of text parts")
    return text


def _parse_thoughts(value: Mapping[str, Any]) -> list[Item]:
    """Return what the parts of a reasoning item say that say anything; its summary where there is no more."""
    parts = value.get("content") or value.get("summary") or []
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return [{"type": "reasoning_text", "text": text} for text in texts if text]


def _finish_item(value: Mapping[str, Any], kind: str, fields: Item) -> Item:
    given = value.get("id")
    item_id = given if isinstance(given, str) and given else new_item_id(kind)
    return {"id": item_id, "type": kind, "status": "completed", **fields}


def new_item_id(kind: str) -> str:
    """Return an id for an item of a type."""
    return f"{_PREFIXES[kind]}_{uuid.uuid4().hex[:28]}"


@dataclass(frozen=True, slots=True)
class KeptItem:
    """An item as it is kept: as JSON, so that its size is known."""

    id: str
    type: str
    fields: bytes  # a JSON object of all but the id
    num_loaded: int  # bytes that the item takes once it is loaded, about

    @classmethod
    def of(cls, item: Item) -> Self:
        fields = to_json({name: value for name, value in item.items() if name != "id"})
        return cls(item["id"], item["type"], fields, parsed_bytes(fields))

    @property
    def num_bytes(self) -> int:
        """How much memory it takes."""
        return _KEPT_BYTES + getsizeof(self.id) + getsizeof(self.fields)

    @property
    def json(self) -> bytes:
        return b'{"id":' + to_json(self.id) + b"," + self.fields[1:]

    def load(self) -> Item:
        """Return the item."""
        return {"id": self.id, **from_json(self.fields)}


def _one_text(value: object) -> object:
    return [{"type": "message", "role": "user", "content": value}] if isinstance(value, str) else value


Items: TypeAlias = Annotated[
    list[Annotated[Item, PlainValidator(_parse_item), WithJsonSchema({"type": "object"})]],
    FailFast(),
    BeforeValidator(_one_text),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}),
]


@dataclass(slots=True)
class _Turn:
    """What the assistant said, thought and called before somebody else spoke."""

    thoughts: list[str] = field(default_factory=list)
    content: str | None = None
    calls: list[ToolCallBody] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there are thoughts alone."""
        return self.content is None and not self.calls

    @property
    def message(self) -> Message:
        return Message.model_construct(
            role=Role.ASSISTANT,
            content=self.content,
            reasoning_content="\n".join(self.thoughts) or None,
            tool_calls=self.calls,
        )


def messages_of(items: Sequence[Item]) -> list[Message]:
    """Return the messages that `items` are: what the assistant thinks, says and calls in one turn is one message."""
    messages: list[Message] = []
    turn: _Turn | None = None
    for item in items:
        if turn is not None and _ends(turn, item):
            messages += [] if turn.is_empty else [turn.message]
            turn = None
        match item:
            case {"type": "message", "role": role, "content": [{"text": text}]}:
                if (speaker := find_role(role)) is Role.ASSISTANT:
                    turn = turn or _Turn()
                    turn.content = text
                else:
                    messages.append(Message.model_construct(role=speaker, content=text))
            case {"type": "function_call_output", "call_id": call_id, "output": output}:
                messages.append(Message.model_construct(role=Role.OBSERVATION, content=output, tool_call_id=call_id))
            case {"type": "reasoning", "content": parts}:
                turn = turn or _Turn()
                turn.thoughts += [part["text"] for part in parts]
            case {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}:
                turn = turn or _Turn()
                function = CalledFunction.model_construct(name=name, arguments=arguments)
                turn.calls.append(ToolCallBody.model_construct(id=call_id, function=function))
    return messages if turn is None or turn.is_empty else [*messages, turn.message]


def _ends(turn: _Turn, item: Item) -> bool:
    """Whether `item` is no part of the assistant's `turn`."""
    match item:
        case {"type": "message", "role": role} if find_role(role) is Role.ASSISTANT:
            return not turn.is_empty
        case {"type": "reasoning"}:
            return not turn.is_empty
        case {"type": "function_call"}:
            return False
    return True
