"""The items of OpenAI's responses and conversations: check them, give them ids, and convert them to messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, FailFast, Field, PlainValidator, WithJsonSchema
from typing_extensions import TypedDict

from rnn_engine.chat_template import Role, find_role
from rnn_engine_server.apis.common.histories import Info, history, leave_out, part_text, tool_text
from rnn_engine_server.apis.common.messages import (
    CalledFunction,
    Message,
    ToolCallBody,
    arguments_text,
    parse_content,
    parse_role,
)
from rnn_engine_server.core.schema import STRING, RefusedError, RequestBody
from rnn_engine_server.store.turns import Item, new_item_id

_MOST_ID = 1024  # characters of an item's id
_KINDS = "message, function_call, function_call_output, reasoning, item_reference, or another tool's call or output"
_RESULTS = ("output", "outputs", "results", "error")  # fields with what a tool returned
_NO_ARGUMENTS = frozenset({*_RESULTS, "caller", "call_id", "fingerprint", "id", "name", "result", "status", "type"})


def _parse_item(value: object, info: Info) -> list[Item]:
    """Parse an item of a conversation: keep its known fields, and give it an id if it has none. Raises RefusedError.

    Calls of all kinds of tools become `function_call`, with a `function_call_output` if the result is in the same item.
    An item of another type is left out.
    """
    if not isinstance(value, dict):
        raise RefusedError(value, f"an item with the type {_KINDS}")
    match value:
        case {"role": role} if value.get("type", "message") == "message":
            return [_parse_message(value, role)]
        case {"id": str(item_id)} if value.get("type", "item_reference") == "item_reference":
            return [{"type": "item_reference", "id": item_id}]
        case {"type": "reasoning"}:
            return [_finish_item(value, "reasoning", {"summary": [], "content": _parse_thoughts(value)})]
        case {"type": str(kind)} if kind.endswith("_output") and (kind != "function_call_output" or "output" in value):
            return [_parse_output(value, info)]
        case {"type": str(kind)} if _is_call(value, kind):
            return _parse_call(value, kind, info)
        case {"type": "message" | "function_call" | "function_call_output" | "item_reference"}:
            raise RefusedError(value, "an item with all of its required fields")
        case {"type": str()} if leave_out([value], info, "input", lambda _: False) == []:
            return []
    raise RefusedError(value.get("type"), _KINDS, below="type")


def _is_call(value: Mapping[str, Any], kind: str) -> bool:
    """Return True if an item is a call. A function's must have an id and a name; those of other tools may lack any."""
    if kind == "function_call":
        return value.get("call_id") is not None and value.get("name") is not None
    return kind.endswith("_call") or isinstance(value.get("call_id"), str)


def _parse_call(value: Mapping[str, Any], kind: str, info: Info) -> list[Item]:
    call_id = _string(value, "call_id", "id") or new_item_id("function_call")
    arguments = value.get("arguments")
    if arguments is None:
        arguments = {name: field for name, field in value.items() if name not in _NO_ARGUMENTS and field is not None}
    name = _string(value, "name") or kind.removesuffix("_call")
    call: Item = {"call_id": call_id, "name": name, "arguments": arguments_text(arguments)}
    items = [_finish_item(value, "function_call", call)]
    if any(value.get(name) is not None for name in _RESULTS):
        items.append(_finish_item({}, "function_call_output", {"call_id": call_id, "output": _result(value, info)}))
    return items


def _parse_output(value: Mapping[str, Any], info: Info) -> Item:
    output = {"call_id": _string(value, "call_id", "id"), "output": _result(value, info, "result", "tools", "status")}
    return _finish_item(value, "function_call_output", output)


def _result(value: Mapping[str, Any], info: Info, *others: str) -> str:
    """Return as text the first of the fields with what a tool returned that is not null."""
    found = next((value[name] for name in (*_RESULTS, *others) if value.get(name) is not None), None)
    return tool_text(found, info, "input.output")


def _string(value: Mapping[str, Any], *names: str) -> str:
    """Return the first of the fields `names` that is a string and not empty, or an empty one."""
    return next((value[name] for name in names if isinstance(value.get(name), str) and value[name]), "")


def _parse_message(value: Mapping[str, Any], role: object) -> Item:
    word = str(role).lower()
    is_answer = parse_role(role) is Role.ASSISTANT
    text = parse_content(value.get("content"))
    if text is None and not is_answer:
        raise RefusedError(value, "an item with all of its required fields; its content is a text or a list of parts")
    part: Item = {"type": "output_text" if is_answer else "input_text", "text": text or ""}
    if is_answer:
        part |= {"annotations": [], "logprobs": []}
    return _finish_item(value, "message", {"role": word, "content": [part]})


def _leave_out_of(item: dict[str, Any], info: Info) -> dict[str, Any]:
    """Return an earlier item without the parts of a message that the model can't read."""
    if item.get("type", "message") != "message" or item.get("content") is None:
        return item
    parts = leave_out(item["content"], info, "input.content", lambda part: part_text(part) is not None)
    return {**item, "content": parts}


def _parse_thoughts(value: Mapping[str, Any]) -> list[Item]:
    """Return the text parts of a reasoning item: those of its content, or of its summary if it has no content.

    Raises RefusedError if these are no lists.
    """
    for name in ("content", "summary"):
        if not isinstance(value.get(name), list | None):
            raise RefusedError(value[name], "a list of text parts, or null", below=name)
    parts = value.get("content") or value.get("summary") or []
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return [{"type": "reasoning_text", "text": text} for text in texts if text]


def _finish_item(value: Mapping[str, Any], kind: str, fields: Item) -> Item:
    given = value.get("id")
    item_id = given if isinstance(given, str) and 0 < len(given) <= _MOST_ID else new_item_id(kind)
    return {"id": item_id, "type": kind, "status": "completed", **fields}


Items: TypeAlias = Annotated[
    list[Annotated[Any, PlainValidator(_parse_item), WithJsonSchema({"type": "object"})]],
    FailFast(),
    AfterValidator(lambda parsed: list(chain.from_iterable(parsed))),
    history(_leave_out_of),
    BeforeValidator(
        lambda value: [{"type": "message", "role": "user", "content": value}] if isinstance(value, str) else value
    ),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]}),
]


@dataclass(slots=True)
class _Turn:
    """One turn of the assistant in a conversation: its thoughts, text and tool calls."""

    thoughts: list[str] = field(default_factory=list)
    content: str | None = None
    calls: list[ToolCallBody] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """True if the assistant's turn has neither text nor calls; it may have thoughts."""
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
    """Convert a conversation's items to chat messages.

    The assistant's thoughts, text and calls of one turn become one message.
    """
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
    """Return True if `item` does not belong to the assistant's `turn`, so that the turn is complete before it."""
    match item:
        case {"type": "message", "role": role} if find_role(role) is Role.ASSISTANT:
            return not turn.is_empty
        case {"type": "reasoning"}:
            return not turn.is_empty
        case {"type": "function_call"}:
            return False
    return True


_ITEMS = (
    "Messages, `function_call`, `function_call_output`, `reasoning`, and `item_reference` to an item of a response. "
    "Calls and outputs of other tools become those of functions; other items are left out."
)


def _parse_ref(value: object) -> str:
    match value:
        case str(found) | {"id": str(found)}:
            return found
    raise RefusedError(value, 'the id of a conversation, or {"id": ...}')


ConversationRef: TypeAlias = Annotated[
    str,
    BeforeValidator(_parse_ref),
    WithJsonSchema({"anyOf": [STRING, {"type": "object", "properties": {"id": STRING}, "required": ["id"]}]}),
]

_MOST_PAIRS, _MOST_NAME, _MOST_VALUE = 16, 64, 512  # as OpenAI has them


def _check_metadata(value: object) -> object:
    if not isinstance(value, dict):
        return value
    if len(value) > _MOST_PAIRS:
        raise RefusedError(f"{len(value)} pairs", f"at most {_MOST_PAIRS} pairs")
    for name, text in value.items():
        if len(name) > _MOST_NAME:
            raise RefusedError(name, f"names of at most {_MOST_NAME} characters")
        if isinstance(text, str) and len(text) > _MOST_VALUE:
            raise RefusedError(text, f"values of at most {_MOST_VALUE} characters", below=name)
    return value


Metadata: TypeAlias = Annotated[
    dict[str, str],
    BeforeValidator(_check_metadata),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": _MOST_PAIRS,
            "propertyNames": {"maxLength": _MOST_NAME},
            "additionalProperties": {"type": "string", "maxLength": _MOST_VALUE},
        }
    ),
]
METADATA_BOUNDS = f"At most {_MOST_PAIRS} pairs, names of {_MOST_NAME} characters and values of {_MOST_VALUE}."


class CreateConversationRequest(RequestBody):
    """A request to store a new conversation on the server."""

    items: Items = Field(default=[], description=f"The first items. {_ITEMS}")
    metadata: Metadata = Field(default={}, description=f"Returned with the conversation unchanged. {METADATA_BOUNDS}")


class UpdateConversationRequest(RequestBody):
    metadata: Metadata = Field(description=f"Replaces the metadata of the conversation. {METADATA_BOUNDS}")


class AddItemsRequest(RequestBody):
    items: Items = Field(min_length=1, description=f"Items to add at the end. {_ITEMS}")


class KeptConversation(TypedDict):
    """The description of a stored conversation, without its items."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]
