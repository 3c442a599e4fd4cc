"""Jinja templates, as Hugging Face's folders and GGUF files bring them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, TypeAlias

from jinja2 import TemplateError

from rnn_engine.chat_template.base import Rendered
from rnn_engine.chat_template.messages import ChatMessage, Conversation, Role, to_json, tool_object
from rnn_engine.chat_template.sandbox import Sandbox
from rnn_engine.chat_template.tools import ToolFormat, guess_format
from rnn_engine.errors import InvalidRequestError, ModelError

_MAX_SOURCE: Final = 2**20  # characters
_MOST_PREFIXES: Final = 8  # beginnings of a conversation that are rendered for their turns' ends
_END_MARK: Final = "\ufdef"  # a noncharacter: stands where a message ends that is to be continued
_ROLES: Final = {
    Role.SYSTEM: "system",
    Role.USER: "user",
    Role.ASSISTANT: "assistant",
    Role.OBSERVATION: "tool",
}


_Object: TypeAlias = dict[str, object]


class JinjaTemplate:
    """A template with the special tokens that it may name, such as bos_token."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], *, stop_tokens: Sequence[str] = ()) -> None:
        """`special_tokens` has their texts by variable; `stop_tokens` are texts that end an answer.

        Raises ModelError where `source` is no Jinja template.
        """
        if len(source) > _MAX_SOURCE:
            raise ModelError(f"the chat template has {len(source)} characters; expected at most {_MAX_SOURCE}")
        self.source = source
        self.tool_format: ToolFormat = guess_format(source)
        self._tells_tools = "tools" in source
        self._special_tokens = dict(special_tokens)
        self._stop_tokens = tuple(stop_tokens)
        self._environment = Sandbox()
        try:
            self._template = self._environment.from_string(source)
        except (TemplateError, RecursionError, ValueError) as error:
            raise ModelError(f"the chat template is no Jinja template: {error}") from error

    def most_characters(self, conversation: Conversation) -> int:
        return conversation.characters + len(self.source)

    def render(self, conversation: Conversation, most_characters: int) -> Rendered:
        """Return the prompt; the ends of turns are those up to which shorter conversations give the same text."""
        messages = [_as_object(message) for message in conversation.messages]
        text = self._render(conversation, messages, most_characters)
        ends: dict[int, int] = {}
        for count in _prefix_lengths(conversation):
            try:
                shorter = self._render(_beginning(conversation, count), messages[:count], most_characters)
            except InvalidRequestError:
                continue  # some templates want a question at the end
            if text.startswith(shorter):
                ends[count] = len(shorter)
            elif count == len(conversation.messages):
                ends[count] = _common_length(text, shorter)
        return Rendered(text, ends, stop=self._stop(text), stop_tokens=self._stop_tokens)

    def follow(self, _text: str) -> str:
        return ""

    def _stop(self, text: str) -> tuple[str, ...]:
        """Return what ends an answer: the token that ends texts where it is a plain text, or World's blank line."""
        end = self._special_tokens.get("eos_token", "")
        if end and not end.strip():
            return (end,)
        return ("\n\n",) if text.endswith("\n\nAssistant:") else ()

    def _render(self, conversation: Conversation, messages: Sequence[_Object], most_characters: int) -> str:
        tools = [tool_object(tool) for tool in conversation.tools] if self._tells_tools else []
        values = {
            **self._special_tokens,
            **_llama_cpps(tools),
            **_thinking(conversation.variables),
            "messages": self._complete(conversation, messages),
            "tools": tools or None,
            "add_generation_prompt": conversation.answers and not conversation.continues,
        }
        try:
            text = self._environment.render_bounded(self._template, values, most_characters)
        except InvalidRequestError:
            raise
        except Exception as error:  # whatever the template's own code meets
            raise InvalidRequestError(
                "messages", _roles(conversation), f"what the chat template takes ({error})"
            ) from error
        if not conversation.continues:
            return text
        begun, mark, _ = text.rpartition(_END_MARK)
        if not mark:
            raise InvalidRequestError(
                "messages", _roles(conversation), "a question at the end: the chat template can't continue an answer"
            )
        return begun

    def _complete(self, conversation: Conversation, messages: Sequence[_Object]) -> list[_Object]:
        """Return the messages with what is said of tools, and with a mark at the end of one to be continued."""
        found = list(messages)
        if conversation.tools and not self._tells_tools:
            described = self.tool_format.describe(conversation.tools)
            if conversation.num_leading_system > 0:
                found[0] = {**found[0], "content": f"{found[0]['content']}\n\n{described}"}
            else:
                found.insert(0, {"role": "system", "content": described})
        if conversation.continues:
            found[-1] = {**found[-1], "content": f"{found[-1]['content']}{_END_MARK}"}
        return found


def _llama_cpps(tools: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    """Return the variables that llama.cpp gives to templates beside those of transformers; of times, the day alone."""
    now = datetime.now()
    return {
        "date_string": now.strftime("%d %b %Y"),
        "datetime": now.strftime("%b %d %Y"),
        "functions": to_json(tools) if tools else "",
    }


def _thinking(variables: Mapping[str, object]) -> Mapping[str, object]:
    """Return the client's variables, and those that say the same as `reasoning_effort` where they are absent."""
    effort = variables.get("reasoning_effort")
    if effort is None:
        return variables
    return {"enable_thinking": effort != "none", "thinking": effort != "none", **variables}


def _prefix_lengths(conversation: Conversation) -> list[int]:
    """Return of which beginnings of a conversation the ends are looked for: those that its next request has too."""
    if conversation.continues:
        return []
    count = len(conversation.messages)
    return sorted({*range(max(count - _MOST_PREFIXES + 2, 1), count + 1), conversation.num_leading_system} - {0})


def _beginning(conversation: Conversation, count: int) -> Conversation:
    return Conversation(
        conversation.messages[:count], conversation.tools, answers=False, variables=conversation.variables
    )


def _common_length(one: str, other: str) -> int:
    """Return with how many characters both begin, comparing ever shorter slices."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _roles(conversation: Conversation) -> str:
    return ", ".join(_ROLES[message.role] for message in conversation.messages[-8:])


def _as_object(message: ChatMessage) -> _Object:
    """Return a message as templates expect it, with arguments as values."""
    found: dict[str, object] = {"role": _ROLES[message.role], "content": message.content}
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.parsed_arguments}}
            for call in message.tool_calls
        ]
    optional = {"tool_call_id": message.tool_call_id, "name": message.name, "reasoning_content": message.reasoning}
    return found | {name: value for name, value in optional.items() if value is not None}
