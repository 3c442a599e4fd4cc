"""Run Jinja chat templates, as Hugging Face's folders and GGUF files contain them, in jinja2's sandbox.

A template is a program by the author of the model. It can't reach anything outside, and its text and time are bounded.
Of what it computes with, only products are.
"""

from __future__ import annotations

import ctypes
import json
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, NoReturn, TypeAlias

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rnn_engine.chat_template.conversation import ChatMessage, Conversation, Rendered, Role
from rnn_engine.chat_template.tools import ToolFormat, guess_format, to_json, tool_object
from rnn_engine.errors import InvalidRequestError, ModelError
from rnn_engine.pauses import pause

MAX_SECONDS: Final = 5.0  # for a conversation
_MAX_PRODUCT: Final = 8 * 2**20  # characters, items or bits


class Sandbox(ImmutableSandboxedEnvironment):
    """jinja2's sandbox with the functions of transformers and llama-server."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        extensions = [loopcontrols, _Generation]
        # What is constant is computed when a template is rendered, within its time.
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=extensions)
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        """Multiply. Raises SecurityError for `**` and large results, which no time limit interrupts."""
        if operator == "**" or _product_size(left, right) > _MAX_PRODUCT:
            raise SecurityError(f"the result of the operator {operator} may be too large")
        return super().call_binop(context, operator, left, right)


def _product_size(left: object, right: object) -> int:
    """Return the characters or items of a product, or its bits; 0 for what does not grow."""
    match left, right:
        case int(), int():
            return left.bit_length() + right.bit_length()
        case (int(), str() | bytes() | list() | tuple()):
            return left * len(right)
        case (str() | bytes() | list() | tuple(), int()):
            return len(left) * right
    return 0


class _SlowError(BaseException):
    """Raised in a thread that renders a template for too long. No Exception, since jinja2 catches those."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise _SlowError in this thread if the block takes longer, between two instructions of its Python code."""
    thread, lock, is_over = ctypes.c_ulong(threading.get_ident()), threading.Lock(), False

    def interrupt() -> None:
        with lock:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_SlowError))

    timer = threading.Timer(seconds, interrupt)
    try:
        timer.start()
        yield
    finally:
        with lock:
            is_over = True
        timer.cancel()


class _Generation(Extension):
    """The tag {% generation %}, which marks the model's own text for training; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return `value` as JSON without HTML escapes: the filter `tojson` of transformers, with an indent of at most 8."""
    indent = None if indent is None else min(indent, 8)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def render_bounded(template: Template, values: Mapping[str, object], most_characters: int) -> str:
    """Return the text of `template`. Raises what its code raises, and InvalidRequestError if it is too long."""
    pieces: list[str] = []
    length = 0
    for piece in template.generate(**values):
        pause()
        length += len(piece)
        if length > most_characters:
            allowed = f"a prompt of at most {most_characters} characters"
            raise InvalidRequestError("messages", f"{length} characters or more", allowed)
        pieces.append(piece)
    return "".join(pieces)


_MAX_SOURCE: Final = 2**20  # characters
_MOST_PREFIXES: Final = 8  # beginnings of a conversation that are rendered to find the ends of turns
_END_MARK: Final = "\ufdef"  # a noncharacter: marks the end of a message to be continued
_ROLES: Final = {Role.SYSTEM: "system", Role.USER: "user", Role.ASSISTANT: "assistant", Role.OBSERVATION: "tool"}

_Object: TypeAlias = dict[str, object]


class JinjaTemplate:
    """A Jinja chat template, with the special tokens that it may name, such as bos_token. Implements `ChatTemplate`."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], *, stop_tokens: Sequence[str] = ()) -> None:
        """Compile a template with the texts of its special tokens. Raises ModelError if `source` is not valid."""
        if len(source) > _MAX_SOURCE:
            raise ModelError(f"the chat template has {len(source)} characters; expected at most {_MAX_SOURCE}")
        self.source = self.as_jinja = source
        self.tool_format: ToolFormat = guess_format(source)
        self._tells_tools = "tools" in source
        self.special_tokens: Mapping[str, str] = dict(special_tokens)
        self._stop_tokens = tuple(stop_tokens)
        self._environment = Sandbox()
        try:
            self._template = self._environment.from_string(source)
        except (TemplateError, SyntaxError, RecursionError, ValueError) as error:
            raise ModelError(f"the chat template is not a valid Jinja template: {error}") from error

    def most_characters(self, conversation: Conversation) -> int:
        return conversation.characters + len(self.source)

    def render(self, conversation: Conversation, most_characters: int) -> Rendered:
        """Return the prompt; a turn ends at the length up to which a shorter conversation gives the same text."""
        try:
            with _time_limit(MAX_SECONDS):
                return self._render_turns(conversation, most_characters)
        except _SlowError:
            allowed = f"messages that the chat template renders within {MAX_SECONDS:g} s"
            raise InvalidRequestError("messages", _roles(conversation), allowed) from None

    def follow(self, _text: str) -> str:
        return ""

    def _render_turns(self, conversation: Conversation, most_characters: int) -> Rendered:
        messages = [_as_object(message) for message in conversation.messages]
        text = self._render(conversation, messages, most_characters)
        ends: dict[int, int] = {}
        for count in _prefix_lengths(conversation):
            try:
                beginning = Conversation(
                    conversation.messages[:count], conversation.tools, answers=False, variables=conversation.variables
                )
                shorter = self._render(beginning, messages[:count], most_characters)
            except InvalidRequestError:
                continue  # some templates need a question at the end
            if text.startswith(shorter):
                ends[count] = len(shorter)
            elif count == len(conversation.messages):
                ends[count] = _common_length(text, shorter)
        return Rendered(text, ends, stop=self._stop(text), stop_tokens=self._stop_tokens)

    def _stop(self, text: str) -> tuple[str, ...]:
        """Return what ends an answer to `text`: an end of text that is white space, or World's blank line."""
        end = self.special_tokens.get("eos_token", "")
        if end and not end.strip():
            return (end,)
        return ("\n\n",) if text.endswith("\n\nAssistant:") else ()

    def _render(self, conversation: Conversation, messages: Sequence[_Object], most_characters: int) -> str:
        tools = [tool_object(tool) for tool in conversation.tools] if self._tells_tools else []
        values = {
            **self.special_tokens,
            **_llama_cpps(tools),
            **_thinking(conversation),
            "messages": self._complete(conversation, messages),
            "tools": tools or None,
            "add_generation_prompt": conversation.answers and not conversation.continues,
        }
        try:
            text = render_bounded(self._template, values, most_characters)
        except (InvalidRequestError, _SlowError):
            raise
        except Exception as error:  # any error of the template's own code
            raise InvalidRequestError(
                "messages", _roles(conversation), f"messages that the chat template accepts ({error})"
            ) from error
        if not conversation.continues:
            return text
        begun, mark, _ = text.rpartition(_END_MARK)
        if not mark:
            raise InvalidRequestError(
                "messages",
                _roles(conversation),
                "a last message of the user or a tool, since the chat template can't continue an answer",
            )
        return begun

    def _complete(self, conversation: Conversation, messages: Sequence[_Object]) -> list[_Object]:
        """Return the messages, with tools described that the template does not, and a mark at an end to go on from."""
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
    """Return the variables that llama.cpp passes to templates besides those of transformers, such as the date."""
    now = datetime.now()
    return {
        "date_string": now.strftime("%d %b %Y"),
        "datetime": now.strftime("%b %d %Y"),
        "functions": to_json(tools) if tools else "",
    }


def _thinking(conversation: Conversation) -> Mapping[str, object]:
    """Return the client's variables, with `enable_thinking` and `thinking` if only other fields imply them."""
    wanted, effort = conversation.thinking, conversation.variables.get("reasoning_effort")
    if wanted is None and effort is not None:
        wanted = effort != "none"
    implied = {} if wanted is None else {"enable_thinking": wanted, "thinking": wanted}
    return {**implied, **conversation.variables}


def _prefix_lengths(conversation: Conversation) -> list[int]:
    """Return the numbers of messages to render alone, to find the ends of turns that a next request also has."""
    if conversation.continues:
        return []
    count = len(conversation.messages)
    return sorted({*range(max(count - _MOST_PREFIXES + 2, 1), count + 1), conversation.num_leading_system} - {0})


def _common_length(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    lengths = range(1, min(len(one), len(other)) + 1)
    return bisect_left(lengths, True, key=lambda length: one[:length] != other[:length])


def _roles(conversation: Conversation) -> str:
    return ", ".join(_ROLES[message.role] for message in conversation.messages[-8:])


def _as_object(message: ChatMessage) -> _Object:
    """Return a message as the dict that Jinja templates expect, with the arguments of tool calls as dicts."""
    found: dict[str, object] = {"role": _ROLES[message.role], "content": message.content}
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.named_arguments}}
            for call in message.tool_calls
        ]
    optional = {"tool_call_id": message.tool_call_id, "name": message.name, "reasoning_content": message.reasoning}
    return found | {name: value for name, value in optional.items() if value is not None}
