"""Conversations that began with other servers: what the model can't read of them is left out, and the rest is text.

What the user asks now is not left out: a request for something that the model can't read is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from pydantic import BeforeValidator, ValidationInfo

from rnn_engine.chat_template import Role, find_role
from rnn_engine.chat_template.tools import to_json
from rnn_engine.pauses import pause
from rnn_engine_server.core.schema import RefusedError, UnknownFields

Info: TypeAlias = ValidationInfo[UnknownFields | None]

_TEXT_TYPES = ("text", "input_text", "output_text")
TEXT_ALONE = "text parts alone, since the model reads and writes text only"
_RESULTS = re.compile(r"(^|_)(result|error|output|reference|logs)$")  # types of what tools return, beside texts
_BINARY = re.compile(r"image|audio|video|file|document|screenshot")  # types of what is no text


def leave_out(values: object, info: Info, place: str, is_known: Callable[[Mapping[str, Any]], bool]) -> object:
    """Return the list `values` without the objects whose type is not known; the header of what was ignored names them.

    A strict server leaves nothing out, and what is no list is returned as it is.
    """
    pause()
    if not isinstance(values, list) or info.context is None or info.context.refuse:
        return values
    kept = []
    for value in values:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and not is_known(value):
            info.context.left_out.add(f"{place}.{kind}")
        else:
            kept.append(value)
    return kept


LeaveOut: TypeAlias = Callable[[dict[str, Any], Info], dict[str, Any]]
"""Returns an earlier message without what the model can't read of it."""


def history(leave_out_of: LeaveOut) -> BeforeValidator:
    """Return a pydantic validator of a conversation that calls `read_history`."""
    return BeforeValidator(lambda messages, info: read_history(messages, info, leave_out_of))


def read_history(messages: object, info: Info, leave_out_of: LeaveOut) -> object:
    """Return a conversation's messages, changed by `leave_out_of` except for what the user asks now.

    These are the user's messages after the assistant's last one. What has no role counts as the assistant's.
    """
    if not isinstance(messages, list) or info.context is None or info.context.refuse:
        return messages
    roles = [_role(message) for message in messages]
    asked = max((number for number, role in enumerate(roles, 1) if role is Role.ASSISTANT), default=0)
    return [
        message
        if not isinstance(message, dict) or (number >= asked and roles[number] is Role.USER)
        else leave_out_of(message, info)
        for number, message in enumerate(messages)
    ]


def _role(message: object) -> Role | None:
    pause()
    role = message.get("role") if isinstance(message, dict) else None
    return find_role(role) if isinstance(role, str) else Role.ASSISTANT


def part_text(part: Mapping[str, Any]) -> str | None:
    """Return the text of a part of a message or of a tool's result; None if it has none that the model can read."""
    match part:
        case {"type": str(kind), "text": str(text)} if kind in _TEXT_TYPES:
            return text
        case {"type": "refusal", "refusal": str(text)} | {"type": "compaction", "content": str(text)}:
            return text
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            return _lines((part.get("title"), part.get("context"), text))
        case {"type": "document", "source": {"type": "content", "content": content}}:
            return _lines((part.get("title"), part.get("context"), _texts(content)))
        case {"type": "search_result", "content": content}:
            return _lines((part.get("title"), part.get("source"), _texts(content)))
    return None


def _texts(content: object) -> str:
    """Return a text, or those of the parts in a list that have one."""
    parts = content if isinstance(content, list) else [content]
    return _lines(part_text(part) if isinstance(part, dict) else part for part in parts)


def _lines(texts: Iterable[object]) -> str:
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def tool_text(value: object, info: Info, place: str, between: str = "") -> str:
    """Return what a tool has returned as text: its texts, and JSON of other results without what is encrypted.

    The parts of a list are joined by `between`.
    Images and unknown parts are left out; a strict server refuses them.
    """
    match value:
        case None:
            return ""
        case str():
            return value
        case dict():
            return tool_text([value], info, place, between)
        case list():
            parts = leave_out(value, info, place, _is_result)
            assert isinstance(parts, list)
            return between.join(_result_text(part) for part in parts)
    return to_json(value)


def _is_result(part: Mapping[str, Any]) -> bool:
    kind = part.get("type")
    is_text = part_text(part) is not None
    return (
        is_text or not isinstance(kind, str) or _RESULTS.search(kind) is not None or isinstance(part.get("name"), str)
    )


def _result_text(part: object) -> str:
    if isinstance(part, dict) and not _is_result(part):
        raise RefusedError(part["type"], TEXT_ALONE)
    plain = _plain(part)
    return plain if isinstance(plain, str) else to_json(plain)


def _plain(value: object) -> object:
    """Return a tool's result without what is encrypted or no text: None for an image."""
    match value:
        case dict():
            if (text := part_text(value)) is not None:
                return text
            if _BINARY.search(str(value.get("type", ""))) and not _is_result(value):
                return None
            fields = ((name, _plain(field)) for name, field in value.items() if not name.startswith("encrypted"))
            return {name: field for name, field in fields if field is not None}
        case list():
            return [plain for each in value if (plain := _plain(each)) is not None]
    return value
