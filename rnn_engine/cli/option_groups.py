"""Options of commands that belong together: a command takes them as one typed object."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import cloup

T = TypeVar("T")
P = ParamSpec("P")

AddOption: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
"""What `click.option` returns."""


def option_group(
    title: str, make: Callable[..., T], *options: AddOption
) -> Callable[[Callable[Concatenate[T, P], None]], Callable[P, None]]:
    """Return a decorator that adds `options` to a command, which takes what `make` returns as its first argument.

    The parameters of `make` are options by their names; an option that is none of them stays one of the command's own.
    A command with several groups takes that of the nearest decorator first.
    """
    names = tuple(signature(make).parameters)

    def add(command: Callable[Concatenate[T, P], None]) -> Callable[P, None]:
        @wraps(command)
        def with_group(*arguments: P.args, **values: P.kwargs) -> None:
            made = make(**{name: values.pop(name) for name in names})
            command(made, *arguments, **values)

        return cloup.option_group(title, *options)(with_group)

    return add
