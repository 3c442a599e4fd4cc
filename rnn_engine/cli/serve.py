"""`rnn-engine serve` and `rnn-engine fleet`: the options of a server, its models, and who may ask for how much."""

from __future__ import annotations

import logging
import tomllib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial, wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeAlias

import click
import cloup

from rnn_engine.cli.options import (
    AddOption,
    LongCommand,
    bad_value,
    find_model,
    make,
    options_of,
    settings_options,
    slots_option,
)
from rnn_engine.files import read_text
from rnn_engine.fleet.settings import FleetSettings
from rnn_engine.hub import model_name
from rnn_engine.loading.settings import LoadSettings, StateFile, StateSettings
from rnn_engine_server.auth.keys import ApiKey, check_key_name, read_keys
from rnn_engine_server.core.settings import AuthSettings, ConnectionSettings, Limits, ServerSettings
from rnn_engine_server.telemetry.logs import LogSettings
from rnn_engine_states.cache.config import CacheConfig

# The config file: TOML with the options' names, or ai00's Config.toml.

Settings: TypeAlias = Mapping[str, object]
"""Parameter name of the command -> its value, as in click's `default_map`."""

MODELS = "models"  # the parameter of the command's arguments

_WEIGHTS = {"none": "f16", "int8": "int8", "nf4": "nf4", "sf4": "sf4"}
_UNUSED = frozenset({"bnf", "embed", "web"})
_CHUNK_SIZES = frozenset({"head_chunk_size", "state_chunk_size", "token_chunk_size"})
_UNUSED_OF_MODEL = frozenset({"embed_device", "max_runtime_batch", "precision", "stop", *_CHUNK_SIZES})
_OF_MODEL = frozenset({"path", "name", "model_path", "model_name", "quant", "quant_type", "max_batch"})
_UNUSED_OF_LISTEN = frozenset({"domain", "expire_sec", "force_pass", "slot"})
_CERTIFICATE, _CERTIFICATE_KEY = "assets/certs/cert.pem", "assets/certs/key.pem"  # where ai00 has them
_ADMIN_FOLDERS = "assets/tokenizer", "assets/configs", "assets/www"  # of which ai00 lets admins read and write files
_UNZIP_FOLDERS = "assets/unzip", "assets/temp"
_SECRET = frozenset({"api_key", "app_key", "app_keys", "store"})  # settings whose values no message shows
_NO_ID = uuid.UUID(int=0)
_OF_LISTEN = frozenset({"ip", "port", "app_keys", "tls", "acme"})
_TABLES = frozenset({"model", "lora", "state", "tokenizer", "adapter", "listen"})
_log = logging.getLogger(__name__)


def read_config(context: click.Context, _parameter: click.Parameter, path: Path | None) -> None:
    """A click callback that makes the settings in the TOML file `path` the defaults of the command's options."""
    if path is None:
        return
    try:
        content = tomllib.loads(read_text(path))
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--config {path}: {error}") from error
    try:
        settings = _from_ai00(content) if isinstance(content.get("model"), dict) else _own(context.command, content)
    except KeyError as error:
        raise click.UsageError(
            f"--config {path}: {error.args[0]} is missing in a [[lora]], [[state]] or app key"
        ) from None
    except ValueError as error:
        raise click.UsageError(f"--config {path}: {error}") from None
    context.default_map = {**(context.default_map or {}), **settings}


def _own(command: click.Command, content: Mapping[str, Any]) -> Settings:
    """Return the settings in TOML data by options' names, with `-` or `_`. Raises ValueError for any other key."""
    known: dict[str, click.Parameter] = {
        name.removeprefix("--").replace("-", "_"): parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.expose_value
        for name in parameter.opts
        if name.startswith("--")
    }
    [known["model"]] = [parameter for parameter in command.params if parameter.name == MODELS]
    settings: dict[str, object] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in known:
            nearest = get_close_matches(name, known, n=1)
            meant = nearest[0].replace("_", "-") if nearest else ""
            advice = f"did you mean {meant!r}?" if nearest else "`rnn-engine serve --help-all` lists the options"
            raise ValueError(f"unknown option {key!r}; {advice}")
        parameter = known[name].name or ""
        if parameter in settings:
            raise ValueError(f"{key} is not allowed; expected the option at most once, and it is there already")
        settings[parameter] = _value(key, known[name], value)
    return settings


def _value(key: str, parameter: click.Parameter, value: object) -> object:
    """Return a setting's value in the form that click takes. Raises ValueError for a wrong type."""
    if isinstance(parameter, click.Option) and parameter.is_flag:
        if isinstance(value, bool):
            return value
        raise _not_allowed(key, value, "true or false")
    if parameter.multiple or parameter.nargs == -1:
        values = value if isinstance(value, list) else [value]
        return [_text(key, each, "a text, a number or a list of these") for each in values]
    return _text(key, value, "a text or a number")


def _text(key: str, value: object, allowed: str) -> str:
    """Return a value as on the command line. Raises ValueError, which names the types `allowed`, for a wrong type."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise _not_allowed(key, value, allowed)


def _not_allowed(key: str, value: object, allowed: str) -> ValueError:
    shown = f"a {type(value).__name__}" if key.replace("-", "_") in _SECRET else f"{value!r:.80}"
    return ValueError(f"{key} is {shown}; expected {allowed}")


def _from_ai00(content: Mapping[str, Any]) -> Settings:
    """Convert ai00's Config.toml to settings of `serve`. Raises ValueError for one that can't be applied."""
    _check("the file", content, _TABLES, _UNUSED)
    model, listen = content["model"], _table(content, "listen")
    all_states, app_keys = _tables(content, "state"), _tables(listen, "app_keys")
    _check("[model]", model, _OF_MODEL, _UNUSED_OF_MODEL)
    _check("[listen]", listen, _OF_LISTEN, _UNUSED_OF_LISTEN)
    folder, name = Path(_of(model, "path", "model_path", "assets/models")), _of(model, "name", "model_name", "")
    if not name:
        raise ValueError("[model] name is missing; expected the name of a model's file")
    if listen.get("acme"):
        raise ValueError(f"[listen] acme is not supported; set it to false, and tls = true with {_CERTIFICATE}")
    states = [_state(folder, each) for each in all_states]
    settings: dict[str, object] = {
        MODELS: [str(folder / name)],
        "model_folder": str(folder),
        "state_file_folder": str(folder),
        "admin_folder": _there(_ADMIN_FOLDERS),
        "unzip_folder": _there(_UNZIP_FOLDERS),
        "lora": [_lora(folder, each) for each in _tables(content, "lora")],
        "state": states,
        "app_key": [f"{each['app_id']}={each['secret_key']}" for each in app_keys],
        **_weights(model),
        **_renamed(model, {"max_batch": "slots"}),
        **_renamed(listen, {"ip": "host", "port": "port"}),
        **_device(content.get("adapter", "Auto")),
        **_renamed(_table(content, "tokenizer"), {"path": "tokenizer"}),
    }
    if listen.get("tls"):
        settings |= {"tls_cert": _CERTIFICATE, "tls_key": _CERTIFICATE_KEY}
    defaults = [state.name for state, each in zip(states, all_states, strict=True) if each.get("default")]
    return settings | ({"default_state": defaults[-1]} if defaults else {})


def _table(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the table `name` of a config file, empty if it is missing. Raises ValueError if it is no table."""
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise _not_allowed(name, table, "a table")
    return table


def _tables(content: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    """Return the tables `name` of a config file; none if it is missing. Raises ValueError if it is anything else."""
    tables = content.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise _not_allowed(name, tables, "a list of tables")
    return tables


def _check(place: str, table: Mapping[str, Any], known: frozenset[str], unused: frozenset[str]) -> None:
    for key in table:
        if key in unused:
            _log.info("ai00's setting %s %s has no effect", place, key)
        elif key not in known:
            raise ValueError(f"unknown setting {key!r} in {place}; expected one of {', '.join(sorted(known | unused))}")


def _of(table: Mapping[str, Any], name: str, older: str, default: str) -> str:
    """Return the setting `name`, which may also have its `older` name. Raises ValueError if the two differ."""
    value = table.get(name, table.get(older, default))
    if table.get(older, value) != value:
        raise ValueError(f"{older}: {table[older]!r:.80} is not allowed; expected the value of {name}, or no {older}")
    return str(value)


def _renamed(table: Mapping[str, Any], names: Mapping[str, str]) -> Settings:
    return {ours: str(table[theirs]) for theirs, ours in names.items() if table.get(theirs) is not None}


def _weights(model: Mapping[str, Any]) -> Settings:
    quant, kind = model.get("quant", 0), str(model.get("quant_type", "None"))
    if kind.lower() not in _WEIGHTS:
        raise ValueError(f"[model] quant_type is {kind!r}; expected one of None, Int8, NF4, SF4")
    if not quant or kind.lower() == "none":
        return {}
    return {"weights": f"{_WEIGHTS[kind.lower()]},layers={quant}"}


def _device(adapter: object) -> Settings:
    """Return the device for ai00's `adapter`, such as `Auto` or `{ Manual = 0 }`. Raises ValueError."""
    from rnn_engine.gpu import economical_device

    match {adapter: None} if isinstance(adapter, str) else adapter:
        case {"Auto": _, **rest} if not rest:
            return {}
        case {"Economical": _, **rest} if not rest:
            return {"device": economical_device()}
        case {"Manual": int(index), **rest} if not rest and not isinstance(index, bool) and index >= 0:
            return {"device": str(index)}
    raise _not_allowed("adapter", adapter, "Auto, Economical or a table such as { Manual = 0 }")


def _there(folders: Sequence[str]) -> list[str]:
    return [folder for folder in folders if Path(folder).is_dir()]


def _lora(folder: Path, lora: Mapping[str, Any]) -> str:
    path = _place(folder, lora["path"])
    return f"{path}:{lora['alpha']}" if "alpha" in lora else str(path)


def _state(folder: Path, state: Mapping[str, Any]) -> StateFile:
    path = _place(folder, state["path"])
    try:
        key = uuid.UUID(str(state.get("id", _NO_ID)))
    except ValueError:
        raise ValueError(f"[[state]] id is {state['id']!r}; expected a UUID") from None
    return StateFile(path, str(state.get("name") or path.stem), None if key == _NO_ID else key)


def _place(folder: Path, file: object) -> Path:
    """Return the path of a file named in ai00's settings, which are relative to ai00's folder of models, `folder`."""
    path = Path(str(file))
    return path if path.is_relative_to(folder) else folder / path  # an absolute one stays as it is


config_option = click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    is_eager=True,
    expose_value=False,
    callback=read_config,
    metavar="FILE",
    help="Read the options that are not on the command line from this TOML file: by their names, or as ai00's "
    "Config.toml.",
)


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
    configured = (context.default_map or {}).get(MODELS)
    models = tuple(map(NamedModel.parse, values or configured or (None,)))
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
    "Requests": (slots_option(8), *options_of(ServerSettings, "reasoning_format", "strict")),
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


@cloup.command(cls=LongCommand)
@serving_options
def serve_command(options: ServeOptions) -> None:
    """Serve models over HTTP, as OpenAI's API has it.

    MODEL is a .safetensors, .st, .prefab, .pth or .gguf file, a Hugging Face folder or the name of a model that was
    pulled, or NAME=FILE. Without MODEL, the model that comes with rnn-engine is served. Of several models, each
    answers the requests that name it. --state, --default-state and --lora are for the first; the others keep what
    they write in folders of their own names, within the folders that are given. Ctrl-C or SIGTERM ends the server
    when its running requests have ended; a second one does not wait. Sockets that systemd passes (LISTEN_FDS) are
    used in place of --unix-socket, and --unix-socket in place of --port.
    """
    from rnn_engine.cli.serving import serve
    from rnn_engine.cli.session import load_engine

    serve(load_engine, options)


@cloup.command(cls=LongCommand)
@settings_options(FleetSettings, title="Replicas")
@serving_options
def fleet_command(options: ServeOptions, fleet: FleetSettings, /) -> None:
    """Serve models with several replicas, on Ray Serve.

    The routes and options are those of `serve`, and replicas share the requests. Each replica is a process with the
    model on its device, and --slots, --device and the options of kept states apply to each. The model's file must be at
    the same path on every machine. Named states are kept by this command. Needs the extra `fleet`.
    """
    if find_spec("ray") is None:
        raise click.UsageError("Ray is not installed; run pip install 'rnn-engine[fleet]'")
    if fleet.application is not None and (fleet.address is None or len(options.models) > 1):
        raise click.UsageError("--application needs --address, and at most one MODEL")
    from rnn_engine.cli.replicas import start_fleet
    from rnn_engine.cli.serving import serve

    drain_seconds = options.settings.drain_seconds
    serve(partial(start_fleet, replace(fleet, device=options.loading.device, drain_seconds=drain_seconds)), options)
