"""The models of a server: how they are named on the command line, and what each of them is loaded with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click
import cloup

from rnn_engine.cli.options import find_model
from rnn_engine.cli.session import EngineChoice, load_engine
from rnn_engine.errors import InvalidRequestError
from rnn_engine.loading.parts import model_name
from server.app import ModelRegistry

_MOST_NAME = 128  # characters


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model's file, and the name by which requests choose it."""

    name: str
    path: Path

    @classmethod
    def parse(cls, text: str | None) -> NamedModel:
        """Parse `FILE` or `NAME=FILE`; None is the model that comes with the project."""
        name, equals, file = (text or "").partition("=")
        if not equals or (text is not None and Path(text).exists()):
            path = find_model(text)
            return cls(model_name(path), path)
        if not 0 < len(name) <= _MOST_NAME or not name.isprintable():
            raise click.BadParameter(f"{text!r}: {name!r} is not allowed; expected a name of 1 to {_MOST_NAME} letters")
        return cls(name, find_model(file))


def _parse(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> tuple[NamedModel, ...]:
    models = tuple(map(NamedModel.parse, values or (None,)))
    names = [model.name for model in models]
    for name in names:
        if names.count(name) > 1:
            raise click.BadParameter(f"two models are called {name!r}; expected NAME=FILE for one of them")
    return models


models_argument = click.argument("models", nargs=-1, callback=_parse, metavar="[[NAME=]MODEL]...")

models_options = cloup.option_group(
    "Several models",
    click.option(
        "--default-model",
        metavar="NAME",
        help="Which model answers requests that name none.  [default: the first]",
    ),
    click.option(
        "--any-model",
        is_flag=True,
        help="Let the default model answer also for a name that no model has, and not 404.",
    ),
    click.option(
        "--idle-unload",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="Free a model that no request has used for so long; the next request for it loads it again.",
    ),
)


async def load_models(choice: EngineChoice, models: Sequence[NamedModel], default: str | None) -> ModelRegistry:
    """Load all models. What `choice` says of one model's file counts for the first.

    Raises InvalidRequestError where there is no model called `default`.
    """
    names = [model.name for model in models]
    if default is not None and default not in names:
        raise InvalidRequestError("--default-model", default, f"one of {', '.join(names)}")
    first, *others = models
    choices = [replace(choice, model=first.path, name=first.name), *(_further(choice, model) for model in others)]
    loads = {str(each.name): partial(load_engine, each) for each in choices}
    return await ModelRegistry.load(loads, default or first.name)


def _further(choice: EngineChoice, model: NamedModel) -> EngineChoice:
    """Return what a model beside the first is loaded with: settings alike, and folders of its own."""
    folder, cache, states = _folder_name(model), choice.cache, choice.states
    if cache is not None and cache.disk is not None:
        cache = replace(cache, disk=replace(cache.disk, folder=cache.disk.folder / folder))
    states = replace(states, files=(), default=None, folder=None if states.folder is None else states.folder / folder)
    return replace(choice, model=model.path, name=model.name, states=states, cache=cache, loras=())


def _folder_name(model: NamedModel) -> str:
    """Return the model's name with characters that every file system takes."""
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in model.name)
    return f"model-{safe}"
