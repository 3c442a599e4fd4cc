"""The blocks of messages, as Anthropic's clients send them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, PlainValidator, WithJsonSchema

from rnn_engine.chat_template import Role
from rnn_engine.chat_template.messages import to_json
from server.schemas.base import STRING, RefusedError, RequestBody
from server.schemas.messages import CalledFunction, Message, ToolCallBody

_TEXT_ALONE = "blocks of text, thinking, tool_use and tool_result, since the model reads and writes text only"


@dataclass(frozen=True, slots=True)
class Content:
    """What the blocks of a message say."""

    texts: tuple[str, ...] = ()
    thoughts: tuple[str, ...] = ()
    calls: tuple[ToolCallBody, ...] = ()
    results: tuple[tuple[str, str], ...] = ()  # the id of a call, and the result
    cache: bool = False  # whether the state after it is to be kept


def _parse_content(value: object) -> Content:
    if isinstance(value, str):
        return Content((value,))
    if not isinstance(value, list):
        raise RefusedError(value, "a string or a list of blocks")
    content = Content()
    for block in value:
        content = _add(content, block)
        if block.get("cache_control") is not None:
            content = replace(content, cache=True)
    return content


def _add(content: Content, block: object) -> Content:
    match block:
        case {"type": "text", "text": str(text)}:
            return replace(content, texts=(*content.texts, text))
        case {"type": "thinking", "thinking": str(text)}:
            return replace(content, thoughts=(*content.thoughts, text))
        case {"type": "redacted_thinking"}:
            return content
        case {"type": "tool_use", "id": str(call_id), "name": str(name), "input": dict(arguments)}:
            function = CalledFunction.model_construct(name=name, arguments=to_json(arguments))
            call = ToolCallBody.model_construct(id=call_id, function=function)
            return replace(content, calls=(*content.calls, call))
        case {"type": "tool_result", "tool_use_id": str(call_id), **rest}:
            return replace(content, results=(*content.results, (call_id, _text(rest.get("content") or ""))))
        case {"type": "text" | "thinking" | "tool_use" | "tool_result"}:
            raise RefusedError(block, "blocks with all of their fields")
        case {"type": str(kind)}:
            raise RefusedError(kind, _TEXT_ALONE)
    raise RefusedError(block, 'blocks as {"type": "text", "text": "..."}')


def _text(value: object) -> str:
    """Return a string as it is, or blocks of text as lines."""
    content = _parse_content(value)
    if content.thoughts or content.calls or content.results:
        raise RefusedError(value, "a string or a list of blocks of text")
    return "\n".join(content.texts)


def _parse_system(value: object) -> Content:
    content = _parse_content(value)
    return replace(content, texts=(_text(value),))


_BLOCKS = {"anyOf": [STRING, {"type": "array", "items": {"type": "object"}}]}
Blocks: TypeAlias = Annotated[Content, PlainValidator(_parse_content), WithJsonSchema(_BLOCKS)]
SystemBlocks: TypeAlias = Annotated[
    Content, PlainValidator(_parse_system), WithJsonSchema({"anyOf": [*_BLOCKS["anyOf"], {"type": "null"}]})
]


class AnthropicMessage(RequestBody):
    """One message."""

    role: Literal["user", "assistant", "system"] = Field(description="Who speaks.")
    content: Blocks = Field(
        description="A text, or a list of blocks: `text`, of the assistant `thinking` and `tool_use`, too, and of the "
        "user `tool_result`, which holds texts. `cache_control` in a block keeps the state after the message before "
        "any other. Images and documents are refused."
    )

    def model_post_init(self, context: object) -> None:  # noqa: ARG002
        if self.role != "assistant" and (self.content.calls or self.content.thoughts):
            raise RefusedError("tool_use or thinking", "blocks of the assistant in its own messages", below="content")
        if self.role != "user" and self.content.results:
            raise RefusedError("tool_result", "results of tools in messages of the user", below="content")

    @property
    def messages(self) -> Sequence[Message]:
        """The messages that chat templates know it as: results of tools are messages of their own, and come first."""
        content = self.content
        found = [
            Message.model_construct(role=Role.OBSERVATION, content=text, tool_call_id=call_id)
            for call_id, text in content.results
        ]
        if content.texts or content.calls or not found:
            found.append(
                Message.model_construct(
                    role=Role[self.role.upper()],
                    content="".join(content.texts),
                    reasoning_content="\n".join(content.thoughts) or None,
                    tool_calls=list(content.calls),
                )
            )
        return [*found[:-1], found[-1].model_copy(update={"cache": content.cache})]
