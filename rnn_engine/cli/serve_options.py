"""The options of a server: its models, what it keeps of their work, and who may ask for how much."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec

import click
import cloup

from rnn_engine.cli.config_file import config_option, configured_models
from rnn_engine.cli.options import AddOption, bad_value, find_model, make, options_of, slots_option
from rnn_engine.hub import model_name
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine_server.auth.keys import ApiKey, check_key_name, read_keys
from rnn_engine_server.core.settings import AuthSettings, ConnectionSettings, Limits, ServerSettings
from rnn_engine_server.telemetry.logs import LogSettings
from rnn_engine_states.cache.config import CacheConfig

# The models of a server, and how the command line names them.

_MOST_NAME = 128  # characters


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model to serve: its path, and the name by which requests choose it."""

    name: str
    path: Path

    @classmethod
    def parse(cls, text: str | None) -> NamedModel:
        """Parse a model argument, `FILE` or `NAME=FILE`. None is the demo model, which comes with the project."""
        name, equals, file = (text or "").partition("=")
        if not equals or (text is not None and Path(text).exists()):
            path = find_model(text)
            return cls(model_name(path), path)
        if not 0 < len(name) <= _MOST_NAME or not name.isprintable():
            raise bad_value(text, f"a name of 1 to {_MOST_NAME} printable characters before the =")
        return cls(name, find_model(file))


def _parse_models(context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> tuple[NamedModel, ...]:
    models = tuple(map(NamedModel.parse, values or configured_models(context) or (None,)))
    names = [model.name for model in models]
    for name in names:
        if names.count(name) > 1:
            raise click.BadParameter(f"two models are called {name!r}; give one of them another name as NAME=FILE")
    return models


P = ParamSpec("P")

_JOBS: Final = "jobs"  # the folder within that of the states


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The values of all options of `rnn-engine serve`."""

    models: Sequence[NamedModel]
    default_model: str | None
    slots: int
    loading: LoadSettings
    cache: CacheConfig
    states: StateSettings
    settings: ServerSettings


_GROUPS: Final[Mapping[str, Sequence[AddOption]]] = {
    "Model and device": options_of(LoadSettings),
    "Requests": (
        slots_option(8),
        *options_of(ServerSettings, "reasoning_format", "strict"),
    ),
    "Address and process": (
        config_option,
        *options_of(ServerSettings, "host", "port", "unix_socket", "unix_socket_mode", "root_path", "web"),
        *options_of(ServerSettings, "drain_seconds", "exit_on_failure"),
    ),
    "Several models": (
        click.option(
            "--default-model",
            metavar="NAME",
            help="The model that answers requests that name no model.  [default: the first]",
        ),
        *options_of(ServerSettings, "model_folder", "admin_folders", "unzip_folders"),
        *options_of(ServerSettings, "any_model", "idle_unload_seconds"),
    ),
    "Kept states": options_of(CacheConfig),
    "States by name": options_of(StateSettings),
    "Collections of documents": options_of(ServerSettings, "collection_folder"),
    "Jobs": options_of(ServerSettings, "job_folder", "tuning_share"),
    "Access": (
        click.option(
            "--api-key",
            metavar="KEY",
            envvar="RNN_ENGINE_API_KEY",
            show_envvar=True,
            help="Accept only requests with the header `Authorization: Bearer KEY`. Other users of this machine can "
            "see this option in the list of processes, but not the environment variable.  [default: accept requests "
            "from this machine]",
        ),
        click.option(
            "--api-key-file",
            type=click.Path(path_type=Path, dir_okay=False),
            envvar="RNN_ENGINE_API_KEY_FILE",
            show_envvar=True,
            help="A file of API keys, one a line as NAME:SCOPE KEY; `rnn-engine key` makes such lines.",
        ),
        click.option(
            "--app-key",
            multiple=True,
            metavar="NAME=KEY",
            help="An API key of the scope admin and its name, like ai00's app_keys. May be given several times.",
        ),
        *options_of(AuthSettings),
    ),
    "Limits of a request": options_of(Limits),
    "Connections": options_of(ConnectionSettings),
    "Log": options_of(LogSettings),
}


def serving_options(serve_command: Callable[Concatenate[ServeOptions, P], None]) -> Callable[P, None]:
    """Return a command with a server's options, which it takes as its first argument. A decorator."""

    @wraps(serve_command)
    def with_options(
        *arguments: Any,  # noqa: ANN401
        models: Sequence[NamedModel],
        default_model: str | None,
        slots: int,
        api_key: str | None,
        api_key_file: Path | None,
        app_key: Sequence[str],
        **values: Any,  # noqa: ANN401
    ) -> None:
        keys = _read_all_keys(api_key, api_key_file, app_key)
        loading, states = make(LoadSettings, values), make(StateSettings, values)
        cache = make(CacheConfig, values).with_one_precision()
        settings = make(ServerSettings, values, loading=loading, auth=make(AuthSettings, values, keys=keys))
        if settings.job_folder is None and states.folder is not None:
            settings = replace(settings, job_folder=states.folder / _JOBS)
        options = ServeOptions(models, default_model, slots, loading, cache, states, settings)
        serve_command(options, *arguments, **values)

    command: Callable[..., Any] = with_options
    for title, options in reversed(tuple(_GROUPS.items())):
        command = cloup.option_group(title, *options)(command)
    argument = click.argument("models", nargs=-1, callback=_parse_models, metavar="[[NAME=]MODEL]...")
    return argument(command)


def _read_all_keys(api_key: str | None, file: Path | None, app_keys: Sequence[str]) -> tuple[ApiKey, ...]:
    keys = () if file is None else read_keys(file)
    if api_key is not None:
        keys = (ApiKey.of(api_key), *keys)
    keys = (*map(_app_key, app_keys), *keys)
    if file is not None and not keys:
        raise click.UsageError(f"--api-key-file {file} contains no key")
    return keys


def _app_key(text: str) -> ApiKey:
    name, equals, key = text.partition("=")
    if not equals:
        raise click.UsageError("--app-key has no name; expected NAME=KEY")  # the text may be a key
    return ApiKey.of(key, check_key_name(name))
