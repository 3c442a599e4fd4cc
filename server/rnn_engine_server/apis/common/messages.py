"""The messages and the tools of a conversation, in the forms in which clients send them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from pydantic import BeforeValidator, FailFast, Field, ValidationInfo
from pydantic_core import from_json

from rnn_engine.chat_template import ROLE_WORDS, ChatMessage, Role, Tool, ToolCall, find_role
from rnn_engine.chat_template.tools import to_json
from rnn_engine.errors import InvalidRequestError
from rnn_engine.operations.chat_prompt import ToolChoice
from rnn_engine.pauses import pause
from rnn_engine_server.apis.common.histories import TEXT_ALONE, Info, leave_out, part_text, tool_text
from rnn_engine_server.core.schema import (
    BOOLEAN,
    NULL,
    OBJECT,
    STRING,
    Parsed,
    RefusedError,
    RequestBody,
    UnknownFields,
)

_OTHER_TYPES = ("image_url", "input_image", "image", "input_audio", "audio", "video_url", "file", "input_file")


def parse_content(value: object) -> str | None:
    """Return a message's content as one string, joining a list of text parts; null stays None. Raises RefusedError."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise RefusedError(value, "a string or a list of text parts")
    return "".join(_parse_part(part) for part in value)


def _parse_part(part: object) -> str:
    text = part_text(part) if isinstance(part, dict) else None
    if text is not None:
        return text
    match part:
        case {"type": str(kind)} if kind in _OTHER_TYPES:
            raise RefusedError(kind, TEXT_ALONE)
    raise RefusedError(part, 'text parts such as {"type": "text", "text": "..."}')


def call_arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call that the model wrote; an empty object if `text` is no JSON object.

    It is none if the answer was cut, or if a number in it is too large for a float.
    """
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError:
        return {}
    return value if isinstance(value, dict) and _is_finite(value) else {}


def earlier_arguments(value: object) -> object:
    """Return the arguments of an earlier call as an object: an empty one in place of other values than JSON objects."""
    if isinstance(value, str):
        return call_arguments(value)
    return value if isinstance(value, dict) else {}


def _is_finite(value: object) -> bool:
    """Return True if no number in `value` is infinite, as `1e400` is when read."""
    match value:
        case float():
            return math.isfinite(value)
        case dict():
            return all(map(_is_finite, value.values()))
        case list():
            return all(map(_is_finite, value))
    return True


def parse_role(value: object) -> Role:
    """Return the role that the word `value` in a client's message means. Raises RefusedError for an unknown word."""
    role = find_role(value) if isinstance(value, str) else None
    if role is None:
        raise RefusedError(value, f"one of {', '.join(ROLE_WORDS)}, in upper or lower case")
    return role


def _parse_cache(value: object) -> bool:
    if isinstance(value, bool):
        return value
    match value:
        case {"type": "ephemeral"}:
            return True
    raise RefusedError(value, 'true, false or {"type": "ephemeral"}')


TEXT_PART = {"type": "object", "properties": {"type": {"const": "text"}, "text": STRING}}
_EPHEMERAL = {"type": "object", "properties": {"type": {"const": "ephemeral"}}}
Content: TypeAlias = Annotated[str | None, Parsed(parse_content, STRING, {"type": "array", "items": TEXT_PART}, NULL)]
CacheFlag: TypeAlias = Annotated[bool, Parsed(_parse_cache, BOOLEAN, _EPHEMERAL)]
_ROLES = {"type": "string", "pattern": f"^({'|'.join([*ROLE_WORDS, *map(str.capitalize, ROLE_WORDS)])})$"}
RoleWord: TypeAlias = Annotated[Role, Parsed(parse_role, _ROLES)]

_MOST_VALUES: Final = 1 << 18  # of a call's arguments: reading more as JSON would hold up all others


def arguments_text(value: object) -> str:
    """Return the arguments of an earlier call as a text, which is JSON unless the client sent another text."""
    return value if isinstance(value, str) else to_json({} if value is None else value)


class CalledFunction(RequestBody):
    name: str = Field(description="The tool's name.")
    arguments: Annotated[str, BeforeValidator(arguments_text)] = Field(
        default="{}", description="JSON, as a text or an object."
    )


class ToolCallBody(RequestBody):
    """A tool call that the assistant made in an earlier message."""

    ignored: ClassVar = frozenset({"index"})

    id: str = Field(default="", description="The call's id, which its result names.")
    type: Literal["function"] = Field(default="function", description="Only `function`.")
    function: CalledFunction = Field(description="What was called.")

    @classmethod
    def _unfold(cls, fields: dict[str, object]) -> dict[str, object]:
        match fields:
            case {"type": "custom", "custom": {"name": name, "input": text}}:  # a call with a text in place of JSON
                function = {"name": name, "arguments": {"input": text}}
                return {"id": fields.get("id"), "type": "function", "function": function}
        return fields


class Message(RequestBody):
    """One message of a conversation.

    The fields of this server's own answers are accepted, so that a client may send them back.
    """

    ignored: ClassVar = frozenset({"annotations", "audio", "refusal"})
    aliases: ClassVar = {"cache_control": "cache", "reasoning": "reasoning_content"}

    role: RoleWord = Field(
        description="system (or developer), user, assistant, tool (or observation, function), in upper or lower case."
    )
    content: Content = Field(
        default=None,
        description="A text, or a list of text parts, which are joined. Messages of the assistant and of tools may "
        "lack it. Parts without a text are left out of earlier messages and of tools' results, which `X-Left-Out` "
        "names, and are refused in what the user says last.",
    )
    reasoning_content: str | None = Field(
        default=None, description="The assistant's reasoning before the text, for chat templates that repeat it."
    )
    tool_calls: Annotated[list[ToolCallBody], FailFast()] = Field(
        default=[], description="The calls that the assistant made."
    )
    function_call: CalledFunction | None = Field(default=None, description="The older form of `tool_calls`.")
    tool_call_id: str | None = Field(default=None, description="Of a tool's result: the call that it answers.")
    name: str | None = Field(default=None, description="Of a tool's result: the tool. Of others it has no effect.")
    cache: CacheFlag = Field(
        default=False,
        description='Keep the state after this message in preference to others: true, or {"type": "ephemeral"}.',
    )

    @classmethod
    def _unfold(cls, fields: dict[str, object]) -> dict[str, object]:
        refusal = fields.get("refusal")  # what the assistant said in place of an answer
        return {**fields, "content": refusal} if fields.get("content") is None and refusal else fields

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """All tool calls of the message, from `tool_calls` and from the older `function_call`."""
        if not self.tool_calls and self.function_call is None:  # most of the thousands that a chat may have
            return ()
        calls = [ToolCall(call.function.name, call.function.arguments, call.id) for call in self.tool_calls]
        if self.function_call is not None:
            calls.append(ToolCall(self.function_call.name, self.function_call.arguments))
        return tuple(calls)

    @property
    def for_template(self) -> ChatMessage:
        """The message in the form that chat templates take."""
        pause()
        is_result = self.role is Role.OBSERVATION
        return ChatMessage(
            self.role,
            self.content or "",
            self.calls,
            self.tool_call_id,
            self.name if is_result else None,
            self.reasoning_content,
        )


def check_messages(messages: Sequence[Message]) -> None:
    """Raise InvalidRequestError for the first message that lacks a text or has tool calls that are not allowed.

    Only messages of the assistant may have calls, and the arguments of a call may not be too large to parse.
    """
    for number, message in enumerate(messages):
        if message.calls and message.role is not Role.ASSISTANT:
            allowed = "null, since only messages of the assistant have calls"
            raise InvalidRequestError(f"messages.{number}.tool_calls", message.calls[0].name, allowed)
        for call in message.calls:
            num_values = sum(map(call.arguments.count, ",[{"))
            if num_values > _MOST_VALUES:
                allowed = f"arguments with at most {_MOST_VALUES} commas and opening brackets"
                raise InvalidRequestError(f"messages.{number}.tool_calls", num_values, allowed)
        if message.content is None and message.role in (Role.SYSTEM, Role.USER):
            allowed = "a text; only messages of the assistant and of tools may lack it"
            raise InvalidRequestError(f"messages.{number}.content", None, allowed)


def leave_out_of_message(message: dict[str, Any], info: Info) -> dict[str, Any]:
    """Return a message of a chat's history without parts and calls that the model can't read."""
    changed = dict(message)
    if changed.get("tool_calls") is not None:
        changed["tool_calls"] = leave_out(changed["tool_calls"], info, "messages.tool_calls", _is_call)
    content, role = changed.get("content"), changed.get("role")
    if isinstance(role, str) and find_role(role) is Role.OBSERVATION:
        changed["content"] = tool_text(content, info, "messages.content")
    elif content is not None:
        changed["content"] = leave_out(content, info, "messages.content", lambda part: part_text(part) is not None)
    return changed


def _is_call(call: Mapping[str, Any]) -> bool:
    return call.get("type") in ("function", "custom")


MOST_TOOLS = 2048  # of a conversation
_MOST_NAMED = 30  # tools that an error lists
_ANY: dict[str, Any] = {"type": "object", "properties": {}}


def _parse_parameters(value: object, info: ValidationInfo[UnknownFields | None]) -> dict[str, Any]:
    """Return the schema of a tool's arguments. What can't be enforced of it is found when it is compiled."""
    if isinstance(value, dict):
        return {"type": "object", **value}
    if info.data.get("strict") is True or info.context is None or info.context.refuse:
        raise RefusedError(value, "a JSON schema of an object")
    info.context.left_out.add(f"tools.{info.data.get('name')}#")
    return _ANY


Parameters: TypeAlias = Annotated[dict[str, Any], Parsed(_parse_parameters, OBJECT)]

ToolName: TypeAlias = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9_.:/-]{1,128}$",
        description="The tool's name: letters, digits and `_ . : / -`, at most 128.",
    ),
]


class NamedTool(RequestBody):
    """The fields of a tool that all APIs have. Subclasses add the schema of the arguments."""

    name: ToolName
    description: str = Field(default="", description="What the tool is for.")
    strict: bool | None = Field(
        default=None,
        description="Refuse a schema with a keyword that calls can't be made to follow, instead of ignoring the "
        "keyword, which `X-Left-Out` then names.",
    )

    def as_function(self, parameters: dict[str, Any]) -> ToolBody:
        """Return the tool in the form that chat completions have, with this JSON schema of its arguments."""
        function = FunctionBody.model_construct(
            name=self.name, description=self.description, strict=self.strict, parameters=parameters
        )
        return ToolBody.model_construct(type="function", function=function)


class FunctionBody(NamedTool):
    parameters: Parameters = Field(
        default=_ANY, description="The JSON schema of the arguments, which every call follows."
    )

    @property
    def tool(self) -> Tool:
        return Tool(self.name, self.description, self.parameters, self.strict is True)


def client_tools(*allowed: str | None) -> BeforeValidator:
    """Return a pydantic validator of a list of tools that leaves out those of other types than `allowed`.

    Such tools are run by another system's server, or are called with something else than JSON. A server that ignores
    unknown fields ignores these tools as well, and lists them in the same header. A strict server refuses them.
    """

    def check(tools: object, info: Info) -> object:
        return leave_out(tools, info, str(info.field_name), lambda tool: tool["type"] in allowed)

    return BeforeValidator(check)


def check_tool_type(fields: dict[str, object], *allowed: str | None) -> dict[str, object]:
    """Return a tool's fields unchanged. Raises RefusedError if the tool's `type` is not among those `allowed`.

    The type is checked before the other fields, which tools of other types may have.
    """
    if "type" in fields and fields["type"] not in allowed:
        words = " or ".join("null" if kind is None else repr(kind) for kind in allowed)
        reason = "since calls have JSON as their arguments and the server runs no tools of its own"
        raise RefusedError(fields["type"], f"{words}, {reason}", below="type")
    return fields


class FunctionType(RequestBody):
    """The type of a tool, which must be a function."""

    type: Literal["function"] = Field(description="Only `function`.")

    @classmethod
    def _unfold(cls, fields: dict[str, object]) -> dict[str, object]:
        return check_tool_type(fields, "function")


class ToolBody(FunctionType):
    """A function that the model may ask its client to call."""

    function: FunctionBody = Field(description="The function that the model may call.")


def _parse_choice(value: object) -> ToolChoice:
    """Parse a request's field `tool_choice`, which says if the model calls tools, and which.

    The tools' names are checked later.
    """
    match value:
        case "none" | "auto" | "required":
            return ToolChoice(value)
        case "any":
            return ToolChoice("required")
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return ToolChoice("required", (name,))
        case {"type": "allowed_tools", "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(tools)}}:
            return ToolChoice(mode, tuple(_parse_name(tool) for tool in tools))
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list(tools)}:
            return ToolChoice(mode, tuple(_parse_name(tool) for tool in tools))
        case {"name": str(name)}:  # the older `function_call`
            return ToolChoice("required", (name,))
    raise RefusedError(value, 'none, auto, required or {"type": "function", "function": {"name": "..."}}')


def _parse_name(value: object) -> str:
    match value:
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return name
    raise RefusedError(value, '{"type": "function", "function": {"name": "..."}}')


Choice: TypeAlias = Annotated[ToolChoice, Parsed(_parse_choice, STRING, OBJECT, NULL)]


class ToolFields(RequestBody):
    """The fields of a conversation's request that concern tools."""

    aliases: ClassVar = {"function_call": "tool_choice"}

    tools: Annotated[list[ToolBody], FailFast(), client_tools("function")] = Field(
        default=[], max_length=MOST_TOOLS, description="The tools that the model may call."
    )
    functions: Annotated[list[FunctionBody], FailFast()] = Field(
        default=[], max_length=MOST_TOOLS, description="The older form of `tools`; answers then have `function_call`."
    )
    tool_choice: Choice | None = Field(
        default=None,
        description="Whether the model calls a tool: none, auto, required, "
        '`{"type": "function", "function": {"name": ...}}` or `allowed_tools`. Null: auto if there are tools. '
        "An answer without a call follows the JSON schema of `response_format`, if there is one. If a call is "
        "required, the schema has no effect.",
    )
    parallel_tool_calls: bool = Field(default=True, description="Whether one answer may have several calls.")

    def check_tools(self) -> None:
        """Raise InvalidRequestError if the fields about tools contradict each other."""
        if self.tools and self.functions:
            raise InvalidRequestError(
                "functions", [each.name for each in self.functions], "null, since the request has tools"
            )
        names = [tool.name for tool in self.offered]
        seen: set[str] = set()
        for number, name in enumerate(names):
            if name in seen:
                field = f"tools.{number}.function.name" if self.tools else f"functions.{number}.name"
                raise InvalidRequestError(field, name, "a name that no other tool has")
            seen.add(name)
        _check_choice(self.tool_choice, names)

    @property
    def offered(self) -> Sequence[Tool]:
        """All tools that the model may call, from `tools` or from the older `functions`."""
        return [body.function.tool for body in self.tools] + [body.tool for body in self.functions]

    @property
    def choice(self) -> ToolChoice:
        """The client's choice of tools: which tools the model may call, and if it must call one."""
        return self.tool_choice or ToolChoice("auto" if self.offered else "none")


def _check_choice(choice: ToolChoice | None, names: Sequence[str]) -> None:
    if choice is None or choice.mode == "none":
        return
    if choice.mode == "required" and not names:
        raise InvalidRequestError(
            "tool_choice", choice.names or choice.mode, "null, none or auto, since there are no tools"
        )
    known = frozenset(names)
    for name in choice.names or ():
        if name not in known:
            raise InvalidRequestError("tool_choice", name, f"one of the tools {', '.join(names[:_MOST_NAMED])}")
