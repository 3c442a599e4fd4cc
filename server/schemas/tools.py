"""The tools of a conversation, and which of them the model may or must call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import FailFast, Field, PlainValidator, WithJsonSchema

from rnn_engine.chat_template import Tool
from rnn_engine.errors import InvalidRequestError
from rnn_engine.operations.tool_calls import ToolChoice
from server.schemas.base import RefusedError, RequestBody

MOST_TOOLS = 2048  # of a conversation
_MOST_NAMED = 30  # tools that an error lists
_ANY: dict[str, Any] = {"type": "object", "properties": {}}


def _parse_parameters(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RefusedError(value, "a JSON schema of an object")
    kind = value.get("type", "object")
    if kind != "object":
        raise RefusedError(kind, "object: the arguments of a call are one", below="type")
    return {"type": "object", **value}


Parameters: TypeAlias = Annotated[dict[str, Any], PlainValidator(_parse_parameters), WithJsonSchema({"type": "object"})]


ToolName: TypeAlias = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9_.:/-]{1,128}$",
        description="The tool's name: letters, digits and `_ . : / -`, at most 128.",
    ),
]


class FunctionBody(RequestBody):
    name: ToolName
    description: str = Field(default="", description="What the tool is for.")
    parameters: Parameters = Field(
        default=_ANY, description="The JSON schema of the arguments, which every call follows."
    )
    strict: bool | None = Field(
        default=None, description="Whether a keyword of the schema that no call can be held to is refused, not ignored."
    )

    @property
    def tool(self) -> Tool:
        return Tool(self.name, self.description, self.parameters, self.strict is True)


def check_tool_type(fields: dict[str, object], *allowed: str | None) -> dict[str, object]:
    """Return the fields of a tool. Raises RefusedError for another type, whatever else such a tool has."""
    if "type" in fields and fields["type"] not in allowed:
        words = " or ".join("null" if kind is None else repr(kind) for kind in allowed)
        reason = "since calls have JSON as their arguments and the server runs no tools of its own"
        raise RefusedError(fields["type"], f"{words}, {reason}", below="type")
    return fields


class ToolBody(RequestBody):
    """A function that the model may ask its client to call."""

    type: Literal["function"] = Field(description="Only `function`.")
    function: FunctionBody = Field(description="What may be called.")

    @classmethod
    def _unfold(cls, fields: dict[str, object]) -> dict[str, object]:
        return check_tool_type(fields, "function")


def _parse_choice(value: object) -> ToolChoice:
    """Return which tools may be called; their names are checked later."""
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


Choice: TypeAlias = Annotated[
    ToolChoice,
    PlainValidator(_parse_choice),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]}),
]


class ToolFields(RequestBody):
    """The fields of a conversation that concern tools."""

    aliases: ClassVar = {"function_call": "tool_choice"}

    tools: Annotated[list[ToolBody], FailFast()] = Field(
        default=[], max_length=MOST_TOOLS, description="The tools that the model may call."
    )
    functions: Annotated[list[FunctionBody], FailFast()] = Field(
        default=[], max_length=MOST_TOOLS, description="The older form of `tools`; answers then have `function_call`."
    )
    tool_choice: Choice | None = Field(
        default=None,
        description='Whether it calls one: none, auto, required, `{"type": "function", "function": {"name": ...}}` or '
        "`allowed_tools`. Null: auto where there are tools. An answer that calls none follows the JSON schema of "
        "`response_format`, where there is one; one that has to call one has no content that would.",
    )
    parallel_tool_calls: bool = Field(default=True, description="Whether one answer may have several calls.")

    def check_tools(self) -> None:
        """Raise InvalidRequestError for fields that contradict each other."""
        if self.tools and self.functions:
            raise InvalidRequestError("functions", [each.name for each in self.functions], "null where there are tools")
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
        """All tools."""
        return [body.function.tool for body in self.tools] + [body.tool for body in self.functions]

    @property
    def choice(self) -> ToolChoice:
        """Which of them may or must be called."""
        return self.tool_choice or ToolChoice("auto" if self.offered else "none")


def _check_choice(choice: ToolChoice | None, names: Sequence[str]) -> None:
    if choice is None or choice.mode == "none":
        return
    if choice.mode == "required" and not names:
        raise InvalidRequestError(
            "tool_choice", choice.names or choice.mode, "null, none or auto where there are no tools"
        )
    known = frozenset(names)
    for name in choice.names or ():
        if name not in known:
            raise InvalidRequestError("tool_choice", name, f"one of the tools {', '.join(names[:_MOST_NAMED])}")
