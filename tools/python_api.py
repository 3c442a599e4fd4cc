"""`python -m tools.python_api`: write docs/python-api.md, all public names of Python, from their docstrings."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import FunctionType
from typing import get_type_hints

import rnn_engine
from rnn_engine import errors
from rnn_engine.sampling.params import SamplingParams as TokenSampling
from tools.markdown import table

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "python-api.md"
_SPECIAL = ("__init__", "__getitem__", "__add__", "__sub__", "__mul__")

# The coroutine methods that also stand without `await` in a twin, where they are described.
_BLOCKING = {
    inspect.unwrap(member)
    for twin in (rnn_engine.LLM, rnn_engine.Collection)
    for member in vars(twin).values()
    if hasattr(member, "__wrapped__")
}

_HEAD = """\
# Python API

`from rnn_engine import ...` has the names below. The [user guide](user-guide.md#use-it-from-python) shows how to use \
them. The methods of `LLM` and `Collection` are those of `AsyncLLM` and `AsyncCollection`, too, there with `await`. \
This page is made from the docstrings by `python -m tools.python_api`; a test compares the two.
"""


def document() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    for name in rnn_engine.__all__:
        parts += [f"## {name}", *_describe(getattr(rnn_engine, name))]
    parts += ["## Errors", inspect.cleandoc(errors.__doc__ or "")]
    return "\n\n".join(parts) + "\n"


def _describe(kind: type) -> Iterator[str]:
    yield f"From `{kind.__module__}`."
    yield inspect.getdoc(kind) or ""
    if is_dataclass(kind):
        yield from _describe_fields(kind)
    for name, member in _members(kind):
        if name.startswith("_") and name not in _SPECIAL:
            continue
        found = getattr(member, "__func__", member)
        if isinstance(found, property):
            yield f"**`{name}`** (property)"
            yield inspect.getdoc(found) or ""
        elif isinstance(found, FunctionType) and found.__doc__ and found not in _BLOCKING:
            yield f"**`{name}`**"
            yield f"```python\n{_signature(found)}\n```"
            yield inspect.getdoc(found) or ""


def _members(kind: type) -> Iterator[tuple[str, object]]:
    """Yield the names and members of a class, and after them those of its private base classes."""
    for owner in kind.__mro__:
        if owner is kind or owner.__name__.startswith("_"):
            yield from vars(owner).items()


def _describe_fields(kind: type) -> Iterator[str]:
    """Yield the fields of a dataclass: those with a range as a table, the others as they stand in the source."""
    if issubclass(kind, TokenSampling):
        hints = get_type_hints(TokenSampling, include_extras=True)
        allowed = {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}
        rows = [(f"`{name}`", f"{each.low:g} to {each.high:g}", each.help) for name, each in allowed.items()]
        yield table(("field", "allowed", ""), rows)
    source = textwrap.dedent(inspect.getsource(kind))
    [node] = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    lines = source.splitlines()
    own = [lines[each.lineno - 1].strip() for each in node.body if isinstance(each, ast.AnnAssign)]
    if own:
        yield "```python\n" + "\n".join(own) + "\n```"


def _signature(function: FunctionType) -> str:
    """Return a function's signature as it stands in the source, with an ellipsis for its body."""
    source = textwrap.dedent(inspect.getsource(function))
    if hasattr(function, "__wrapped__"):
        source = source.removeprefix("async ")
    [node] = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return "\n".join(source.splitlines()[node.lineno - 1 : node.body[0].lineno - 1]) + " ..."


if __name__ == "__main__":
    DOCUMENT.write_text(document())
