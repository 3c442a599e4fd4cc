"""Run Jinja chat templates, as Hugging Face's folders and GGUF files contain them, in a sandbox with bounds.

jinja2's own sandbox bounds neither steps nor sizes. minijinja, which counts steps, does not do here: templates of one
line overflow its stack, which ends the process, or make it walk for ever through a list that was doubled often.
"""

from __future__ import annotations

import json
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from itertools import chain
from typing import Any, Final, NoReturn, TypeAlias

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from rnn_engine.chat_template.conversation import ChatMessage, Conversation, Rendered, Role
from rnn_engine.chat_template.tools import ToolFormat, guess_format, to_json, tool_object
from rnn_engine.errors import InvalidRequestError, ModelError

# The environment in which Jinja templates run: the functions of transformers and llama-server, with bounds.
#
# A template is a program by the author of the model: it can't reach anything outside, and its steps, its time and the
# sizes of its values are bounded.

MAX_STEPS: Final = 500_000  # turns of loops, and calls of macros, functions and operators
MAX_SECONDS: Final = 5.0
MAX_VALUE: Final = 8 * 2**20  # characters and items of a value, with those of the values that it holds
_MOST_LEVELS: Final = 500  # of values in values: Python's own functions overflow the stack at some 100,000
_STEP_SIZE: Final = 2048  # characters or items of what a template makes that count as a step
_MAX_WIDTH: Final = 1000  # to which a filter may pad
_UNBOUNDED_METHODS: Final = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_UNBOUNDED_FILTERS: Final = ("center", "format", "pprint", "urlize", "wordwrap", "xmlattr")
_GLOBALS: Final = ("cycler", "dict", "joiner", "range")
_WIDE_FIELD: Final = re.compile(r"%[^a-zA-Z]*(\d{4}|\*)")


class _Sized:
    """Base class of a template's containers: keeps their number of characters and items, and how deep they are nested.

    Containers are immutable in the sandbox. One may hold another any number of times, so that walking through it again
    to find its size could take for ever.
    """

    _sandbox_size = 0  # names that are no field of a template's own dicts
    _sandbox_levels = 0


class _List(list[Any], _Sized):
    """A list that a template has made, with its size and depth."""


class _Tuple(tuple[Any, ...], _Sized):
    """A tuple that a template has made, with its size and depth."""


class _Dict(dict[Any, Any], _Sized):
    """A dict that a template has made, with its size and depth."""


_SIZED: Final[Mapping[type, Any]] = {list: _List, tuple: _Tuple, dict: _Dict}
_CONTAINERS: Final[tuple[Any, ...]] = (dict, list, tuple, type({}.keys()), type({}.values()), type({}.items()))


class _Namespace(Namespace):
    """Jinja's `namespace`, the one mutable value of a template. As text it is fixed, since it may contain itself."""

    def __repr__(self) -> str:
        return "<Namespace>"


class Sandbox(ImmutableSandboxedEnvironment):
    """A jinja2 environment that bounds a template's steps, time and values. Several threads may render at a time."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        self._run = threading.local()
        for name in _UNBOUNDED_FILTERS:
            del self.filters[name]
        self.filters["tojson"] = _tojson
        self.filters = {name: self._bounded(function) for name, function in self.filters.items()}
        self.globals = {name: self.globals[name] for name in _GLOBALS}
        self.globals |= {"raise_exception": _raise_exception, "namespace": _Namespace}
        self.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)

    def render_bounded(self, template: Template, values: Mapping[str, object], most_characters: int) -> str:
        """Return the text of `template`. Raises what its code raises, and InvalidRequestError if it is too long."""
        self._run.steps = 0
        self._run.deadline = time.monotonic() + MAX_SECONDS
        pieces: list[str] = []
        length = 0
        for piece in template.generate(**values):
            self.count_step()
            length += len(piece)
            if length > most_characters:
                raise InvalidRequestError(
                    "messages", f"{length} characters or more", f"a prompt of at most {most_characters} characters"
                )
            pieces.append(piece)
        return "".join(pieces)

    def count_step(self, size: int = 0) -> str:
        """Count a step that made a value of `size`, and return an empty text; raise SecurityError after too many."""
        self._run.steps += 1 + size // _STEP_SIZE
        if self._run.steps > MAX_STEPS or time.monotonic() > self._run.deadline:
            raise SecurityError(f"rendering takes more than {MAX_STEPS} steps or {MAX_SECONDS:g} s")
        return ""

    def concatenate(self, *parts: object) -> str:
        """Join values as Jinja's operator ~ does."""
        return "".join(map(str, parts))

    def same(self, value: object) -> object:
        """Return a container literal of a template unchanged, so that `call`, which calls this, bounds its size."""
        return value

    def cut(self, value: Any, *bounds: Any) -> Any:  # noqa: ANN401
        """Return a slice of `value`, so that `call`, which calls this, bounds its size."""
        return value[slice(*bounds)]

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ANN401
        return not (isinstance(obj, str) and attr in _UNBOUNDED_METHODS) and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:  # noqa: ANN401
        """Raise SecurityError for the string methods `format` and `format_map`, whose fields may be of any width."""
        if getattr(value, "__name__", "") in ("format", "format_map") and isinstance(value.__self__, str):
            raise SecurityError("the string methods format and format_map are not available")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        self.count_step()
        if operator == "*":
            bits = _number(left).bit_length() + _number(right).bit_length()
            _check_size(_length(left) * _number(right), _number(left) * _length(right), bits)
        elif operator == "**":
            _check_size(_number(left).bit_length() * _number(right))
        elif operator == "%" and isinstance(left, str) and _WIDE_FIELD.search(left):
            raise SecurityError("a field of a text for the operator % is too wide")
        return self._bounded_value(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401, N805
        __self.count_step()
        if getattr(__obj, "__name__", "") == "replace" and len(args) > 1:
            _check_size(_length(getattr(__obj, "__self__", "")) * _length(args[1]))
        return __self._bounded_value(super().call(__context, __obj, *args, **kwargs))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = _Bounding().visit(super()._parse(source, name, filename))
        assert isinstance(tree, nodes.Template)
        return tree

    def _bounded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a filter of Jinja so that each call counts as a step and the size of its result is bounded."""

        @wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            self.count_step()
            if any(_number(value) > _MAX_WIDTH for value in (*args, *kwargs.values())):
                raise SecurityError(f"a filter's argument is too large; expected at most {_MAX_WIDTH}")
            if function.__name__ == "do_replace":
                texts = [value for value in args if isinstance(value, str)]
                _check_size(_length(texts[0]) * _length(texts[-1]) if texts else 0)
            return self._bounded_value(function(*args, **kwargs))

        return bounded

    def _bounded_value(self, value: Any) -> Any:  # noqa: ANN401
        """Return a template's new value, a container with its size. Raises SecurityError if it is too large."""
        if type(value) is str and len(value) < _STEP_SIZE:  # most are
            return value
        size, levels = _measure(value)
        if size >= _STEP_SIZE:
            self.count_step(size)
        if type(value) not in _SIZED:
            return value
        sized = _SIZED[type(value)](value)
        sized._sandbox_size, sized._sandbox_levels = size, levels
        return sized


class _Bounding(NodeTransformer):
    """Rewrites a template so that turns of loops and calls of macros count as steps, and new containers are bounded."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("concatenate", node.nodes, node.lineno)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return self._bound(node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = [bound or nodes.Const(None) for bound in (node.arg.start, node.arg.stop, node.arg.step)]
        return _call("cut", [node.node, *bounds], node.lineno)

    def _bound(self, node: nodes.List | nodes.Tuple | nodes.Dict) -> nodes.Node:
        """Have `Sandbox.same` called on a list, tuple or dict literal, to bound its size, unless it is constant."""
        try:
            node.as_const()
        except nodes.Impossible:
            self.generic_visit(node)
            return _call("same", [node], node.lineno)
        return node

    def _count(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.Output([_call("count_step", [], node.lineno)], lineno=node.lineno))
        return node

    visit_For = visit_Macro = visit_CallBlock = _count  # noqa: N815
    visit_List = visit_Dict = _bound  # noqa: N815


class _Generation(Extension):
    """The tag {% generation %}, which marks the model's own text for training; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _call(method: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    """Return the syntax node of a call of the environment's method called `method`."""
    return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None, lineno=line)


def _measure(value: Any) -> tuple[int, int]:  # noqa: ANN401
    """Return the size of a template's value and its levels of nesting. Raises SecurityError if these are too large."""
    if isinstance(value, str):
        _check_size(len(value))
        return len(value), 0
    if isinstance(value, _Sized):
        return value._sandbox_size, value._sandbox_levels
    if not isinstance(value, _CONTAINERS):
        return 1, 0
    size, levels = 1, 0
    for part in chain(value, value.values()) if isinstance(value, dict) else value:
        part_size, part_levels = _measure(part)
        size, levels = size + part_size + 1, max(levels, part_levels)
        _check_size(size)
    if levels == _MOST_LEVELS:
        raise SecurityError(f"a value is nested too deeply; expected at most {_MOST_LEVELS} levels")
    return size, levels + 1


def _check_size(*sizes: int) -> None:
    if max(sizes) > MAX_VALUE:
        raise SecurityError(f"a value is too large; expected at most {MAX_VALUE} characters or items")


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple | dict) else 0


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(value: object, indent: int | None = None, **_options: object) -> str:
    """Return `value` as JSON without HTML escapes, as in transformers: the filter `tojson`."""
    return to_json(value) if indent is None else json.dumps(value, ensure_ascii=False, indent=min(indent, 8))


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
        except (TemplateError, RecursionError, ValueError) as error:
            raise ModelError(f"the chat template is not a valid Jinja template: {error}") from error

    def most_characters(self, conversation: Conversation) -> int:
        return conversation.characters + len(self.source)

    def render(self, conversation: Conversation, most_characters: int) -> Rendered:
        """Return the prompt; a turn ends at the length up to which a shorter conversation gives the same text."""
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

    def follow(self, _text: str) -> str:
        return ""

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
            text = self._environment.render_bounded(self._template, values, most_characters)
        except InvalidRequestError:
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
