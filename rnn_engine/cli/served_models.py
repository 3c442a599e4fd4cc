"""The models of a server: how they are named on the command line, and what each of them is loaded with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import click

from rnn_engine.cli.config_file import configured_models
from rnn_engine.cli.option_groups import option_group
from rnn_engine.cli.options import find_model
from rnn_engine.cli.session import EngineChoice
from rnn_engine.cli.sizes import FiniteRange
from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward import Progress
from rnn_engine.interface import EngineLike
from rnn_engine.loading.parts import model_name
from server.app import LoadEngine, LoadOrder, ModelRegistry

LoadChoice: TypeAlias = Callable[[EngineChoice, Progress], Awaitable[EngineLike]]
"""Loads what a choice says, here or elsewhere, and tells how far it is."""

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


def _parse(context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> tuple[NamedModel, ...]:
    models = tuple(map(NamedModel.parse, values or configured_models(context) or (None,)))
    names = [model.name for model in models]
    for name in names:
        if names.count(name) > 1:
            raise click.BadParameter(f"two models are called {name!r}; expected NAME=FILE for one of them")
    return models


models_argument = click.argument("models", nargs=-1, callback=_parse, metavar="[[NAME=]MODEL]...")


@dataclass(frozen=True, slots=True)
class ServedModels:
    """The models of a server, how requests choose one, and what of them an admin may change."""

    models: tuple[NamedModel, ...]
    default_model: str | None
    model_folder: Path | None
    admin_folders: tuple[Path, ...]
    unzip_folders: tuple[Path, ...]
    embed_model: Path | None
    any_model: bool
    idle_unload: float | None


models_options = option_group(
    "Several models",
    ServedModels,
    click.option(
        "--default-model",
        metavar="NAME",
        help="Which model answers requests that name none.  [default: the first]",
    ),
    click.option(
        "--model-folder",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        metavar="FOLDER",
        help="Let admins load models from this folder while the server runs, by POST /admin/models/load.",
    ),
    click.option(
        "--admin-folder",
        "admin_folders",
        multiple=True,
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        metavar="FOLDER",
        help="Let admins read files in this folder, too, and write settings there, as in ai00's assets/configs. May be "
        "given several times.",
    ),
    click.option(
        "--unzip-folder",
        "unzip_folders",
        multiple=True,
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        metavar="FOLDER",
        help="Let admins unpack archives into folders in this one, in place of what is there. May be given several "
        "times.",
    ),
    click.option(
        "--embed-model",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        metavar="FOLDER",
        help="Answer ai00's /api/oai/embeds with the embedding model in this folder: ONNX with its tokenizer.json. "
        "Needs the extra `embeds`.",
    ),
    click.option(
        "--any-model",
        is_flag=True,
        help="Let the default model answer also for a name that no model has, and not 404.",
    ),
    click.option(
        "--idle-unload",
        type=FiniteRange(min=0, min_open=True),
        metavar="SECONDS",
        help="Free a model that no request has used for so long; the next request for it loads it again.",
    ),
)


async def load_models(
    choice: EngineChoice, models: Sequence[NamedModel], default: str | None, load: LoadChoice
) -> ModelRegistry:
    """Load all models, each by `load`. What `choice` says of one model's file counts for the first.

    Raises InvalidRequestError where there is no model called `default`.
    """
    names = [model.name for model in models]
    if default is not None and default not in names:
        raise InvalidRequestError("--default-model", default, f"one of {', '.join(names)}")
    first, *others = models
    states = choice.states
    orders = [
        LoadOrder(first.name, first.path, tuple(choice.loading.loras), tuple(states.files), states.default),
        *(LoadOrder(model.name, model.path) for model in others),
    ]
    return await ModelRegistry.load(orders, default or first.name, partial(_make_load, choice, first.name, load))


def _make_load(choice: EngineChoice, first: str, load: LoadChoice, order: LoadOrder) -> LoadEngine:
    return partial(load, _choose(choice, first, order))


def _choose(choice: EngineChoice, first: str, order: LoadOrder) -> EngineChoice:
    """Return what a model is loaded with. All but the first have folders of their own in those of `choice`."""
    cache, folder = choice.cache, choice.states.folder
    if order.name != first:
        own = _folder_name(order.name)
        folder = None if folder is None else folder / own
        if cache is not None and cache.disk is not None:
            cache = replace(cache, disk=replace(cache.disk, folder=cache.disk.folder / own))
    return replace(
        choice,
        model=order.path,
        name=order.name,
        loading=replace(
            choice.loading,
            loras=order.loras,
            weights=order.weights or choice.loading.weights,
            device=order.device or choice.loading.device,
            tokenizer=order.tokenizer or choice.loading.tokenizer,
        ),
        cache=cache,
        states=replace(choice.states, files=order.states, default=order.default_state, folder=folder),
        slots=order.slots or choice.slots,
    )


def _folder_name(name: str) -> str:
    """Return the name of a model with characters that every file system takes."""
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
    return f"model-{safe}"
