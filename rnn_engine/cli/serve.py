"""`rnn-engine serve`: serve models over HTTP."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeAlias, get_args

import click
import cloup

from rnn_engine.chat_template.answer import ReasoningFormat
from rnn_engine.cli.config_file import config_option, configured_models
from rnn_engine.cli.options import (
    FiniteRange,
    batching_option,
    describe_shape,
    find_model,
    loading_options,
    option_group,
    slots_option,
)
from rnn_engine.cli.server_options import connection_options, door_options, limit_options, log_on_stderr, log_options
from rnn_engine.cli.session import EngineChoice, load_engine
from rnn_engine.cli.state_options import cache_options, state_options, with_demo_state
from rnn_engine.errors import InvalidRequestError
from rnn_engine.forward import Progress
from rnn_engine.interface import EngineInfo, EngineLike
from rnn_engine.loading.parts import freeze_modules, model_name
from rnn_engine.loading.settings import LoadSettings, StateSettings
from server.core.app import LoadEngine, LoadOrder, ModelRegistry, ServerSettings, run
from server.core.settings import AuthSettings, ConnectionSettings, Limits
from server.telemetry.logs import LogSettings
from states.cache.config import CacheConfig

# The models of a server: how the command line names them, and the settings with which each is loaded.

LoadChoice: TypeAlias = Callable[[EngineChoice, Progress], Awaitable[EngineLike]]
"""Loads the model of a choice, in this process or in others, and reports its progress."""

_MOST_NAME = 128  # characters


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model to serve: the path of its file, and the name by which requests choose it."""

    name: str
    path: Path

    @classmethod
    def parse(cls, text: str | None) -> NamedModel:
        """Parse `FILE` or `NAME=FILE`; None is the demo model, which comes with the project."""
        name, equals, file = (text or "").partition("=")
        if not equals or (text is not None and Path(text).exists()):
            path = find_model(text)
            return cls(model_name(path), path)
        if not 0 < len(name) <= _MOST_NAME or not name.isprintable():
            allowed = f"a name of 1 to {_MOST_NAME} printable characters"
            raise click.BadParameter(f"{text!r}: {name!r} is not allowed; expected {allowed}")
        return cls(name, find_model(file))


def _parse_models(context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> tuple[NamedModel, ...]:
    models = tuple(map(NamedModel.parse, values or configured_models(context) or (None,)))
    names = [model.name for model in models]
    for name in names:
        if names.count(name) > 1:
            raise click.BadParameter(f"two models are called {name!r}; give one of them another name as NAME=FILE")
    return models


models_argument = click.argument("models", nargs=-1, callback=_parse_models, metavar="[[NAME=]MODEL]...")


@dataclass(frozen=True, slots=True)
class ServedModels:
    """The options on a server's models: their files, how requests choose one, and what admins may change."""

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
        help="The model that answers requests that name no model.  [default: the first]",
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
        help="Let admins read files in this folder and write settings there, as in ai00's assets/configs. May be given "
        "several times.",
    ),
    click.option(
        "--unzip-folder",
        "unzip_folders",
        multiple=True,
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        metavar="FOLDER",
        help="Let admins unpack archives into folders within this folder, and replace those that exist. May be given "
        "several times.",
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
        help="Let the default model answer requests for an unknown model, instead of the status 404.",
    ),
    click.option(
        "--idle-unload",
        type=FiniteRange(min=0, min_open=True),
        metavar="SECONDS",
        help="Unload a model that no request has used for this long; the next request for it loads it again.  "
        "[default: never]",
    ),
)


async def load_models(
    choice: EngineChoice, models: Sequence[NamedModel], default: str | None, load: LoadChoice
) -> ModelRegistry:
    """Load all `models`, each by calling `load`; return their registry. LoRAs and states of `choice` are for the first.

    `default` is the name of the model that answers requests without a model's name. Raises InvalidRequestError if there
    is no model called `default`.
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
    """Return the settings with which to load the model of `order`, adapted from those of the first model, `choice`.

    All models except the one called `first` use their own folders within those of `choice`.
    """
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
    """Return the name of a folder for the model called `name`, in characters that all file systems allow."""
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
    return f"model-{safe}"


P = ParamSpec("P")

_DEFAULT = ServerSettings()


def _parse_mode(_context: click.Context, _parameter: click.Parameter, text: str) -> int:
    """Parse a file's permissions in octal digits, such as 660. A click callback."""
    if not re.fullmatch("[0-7]{3,4}", text):
        raise click.BadParameter(f"{text!r} is not allowed; expected three or four octal digits, such as 660")
    return int(text, 8)


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The options on how the server reads and runs requests."""

    slots: int
    batching: str
    reasoning_format: ReasoningFormat
    strict: bool


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """The options on the server's address, and on how its process ends."""

    host: str
    port: int
    unix_socket: Path | None
    unix_socket_mode: int
    web: bool
    drain_seconds: float
    exit_on_failure: bool


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """All options of `rnn-engine serve`, with one field for each group."""

    loading: LoadSettings
    requests: RequestOptions
    process: ProcessOptions
    served: ServedModels
    cache: CacheConfig
    states: StateSettings
    auth: AuthSettings
    limits: Limits
    connections: ConnectionSettings
    logs: LogSettings

    @property
    def choice(self) -> EngineChoice:
        """The settings with which the first model is loaded."""
        model = self.served.models[0].path
        return EngineChoice(
            model,
            self.loading,
            self.requests.slots,
            cache=self.cache,
            states=with_demo_state(model, self.states),
            batching=self.requests.batching,
            queue_seconds=self.limits.max_queue_seconds,
            max_queued=self.limits.max_queued,
            grammar_seconds=self.limits.max_grammar_seconds,
        )

    @property
    def settings(self) -> ServerSettings:
        process, served = self.process, self.served
        return ServerSettings(
            host=process.host,
            port=process.port,
            unix_socket=process.unix_socket,
            unix_socket_mode=process.unix_socket_mode,
            web=process.web,
            drain_seconds=process.drain_seconds,
            exit_on_failure=process.exit_on_failure,
            reasoning_format=self.requests.reasoning_format,
            strict=self.requests.strict,
            model_folder=served.model_folder,
            admin_folders=served.admin_folders,
            unzip_folders=served.unzip_folders,
            embed_model=served.embed_model,
            any_model=served.any_model,
            idle_unload_seconds=served.idle_unload,
            auth=self.auth,
            limits=self.limits,
            connections=self.connections,
            logs=self.logs,
        )


_request_options = option_group(
    "Requests",
    RequestOptions,
    slots_option(8),
    batching_option,
    click.option(
        "--reasoning-format",
        type=click.Choice(get_args(ReasoningFormat)),
        default=_DEFAULT.reasoning_format,
        show_default=True,
        help="auto and deepseek return the thoughts in <think>...</think> as `reasoning_content`; none leaves them in "
        "the content.",
    ),
    click.option(
        "--strict/--no-strict",
        default=_DEFAULT.strict,
        show_default=True,
        help="Refuse requests with unknown fields. --no-strict ignores these fields and lists them in the answer's "
        "header X-Left-Out. Both accept null and known fields that can't change the answer, and both refuse known "
        "fields of other systems that would change the answer.",
    ),
)
_process_options = option_group(
    "Address and process",
    ProcessOptions,
    config_option,
    click.option(
        "-i",
        "--host",
        "--ip",
        "host",
        default="127.0.0.1",
        show_default=True,
        help="The address to listen on. 0.0.0.0 listens on all addresses, and needs an API key or --open.",
    ),
    click.option(
        "-p",
        "--port",
        type=click.IntRange(0, 65535),
        default=65530,
        show_default=True,
        help="The port to listen on; 0 takes any free port.",
    ),
    click.option(
        "--unix-socket",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Listen on a Unix socket at this path instead of a port.",
    ),
    click.option(
        "--unix-socket-mode",
        callback=_parse_mode,
        metavar="MODE",
        default=f"{_DEFAULT.unix_socket_mode:o}",
        show_default=True,
        help="The permissions of the Unix socket's file, in octal digits.",
    ),
    click.option(
        "--web/--no-web",
        default=_DEFAULT.web,
        show_default=True,
        help="Serve the web page at /. With --no-web, / is the reference of the routes, like /docs.",
    ),
    click.option(
        "--drain-seconds",
        type=FiniteRange(min=0),
        metavar="SECONDS",
        default=_DEFAULT.drain_seconds,
        show_default=True,
        help="How long running requests may go on after a signal to stop.",
    ),
    click.option(
        "--exit-on-failure",
        is_flag=True,
        help="Exit with code 1 if a failed device can't be opened again, so that a supervisor restarts the server.",
    ),
)


def serving_options(serve_command: Callable[Concatenate[ServeOptions, P], None]) -> Callable[P, None]:
    """Add the options of a server to `serve_command`, which takes them as a `ServeOptions`, its first argument."""

    @models_argument
    @loading_options
    @_request_options
    @_process_options
    @models_options
    @cache_options
    @state_options
    @door_options
    @limit_options
    @connection_options
    @log_options
    @wraps(serve_command)
    def with_options(
        logs: LogSettings,
        connections: ConnectionSettings,
        limits: Limits,
        auth: AuthSettings,
        states: StateSettings,
        cache: CacheConfig,
        served: ServedModels,
        process: ProcessOptions,
        requests: RequestOptions,
        loading: LoadSettings,
        /,
        *arguments: P.args,
        **values: P.kwargs,
    ) -> None:
        options = ServeOptions(loading, requests, process, served, cache, states, auth, limits, connections, logs)
        serve_command(options, *arguments, **values)

    return with_options


def serve(load: LoadChoice, options: ServeOptions) -> None:
    """Load the models of `options`, each by calling `load`, and serve them over HTTP until a signal to stop."""
    freeze_modules()
    with log_on_stderr(options.logs):
        served = options.served
        load_all = partial(load_models, options.choice, served.models, served.default_model, load)
        run(load_all, options.settings, partial(_announce, has_keys=bool(options.auth.keys)))


@cloup.command()
@serving_options
def serve_command(options: ServeOptions) -> None:
    """Serve models over HTTP, as OpenAI's API has it.

    MODEL is a .safetensors, .st, .prefab, .pth or .gguf file, a .bin of rwkv.cpp, a Hugging Face folder or the name of
    a model that was pulled, or NAME=FILE. Without MODEL, the model that comes with rnn-engine is served. Of several
    models, each answers the requests that name it. --state, --default-state and --lora are for the first; the others
    keep what they write in folders of their own names, within the folders that are given. Ctrl-C or SIGTERM ends the
    server when its running requests have ended; a second one does not wait. Sockets that systemd passes (LISTEN_FDS)
    are used in place of --unix-socket, and --unix-socket in place of --port.
    """
    serve(load_engine, options)


def _announce(infos: Sequence[EngineInfo], url: str, has_keys: bool) -> None:
    info = infos[0]
    key = " -H 'Authorization: Bearer KEY'" if has_keys else ""
    taken = [each.device_bytes for each in infos if each.device_bytes is not None]
    memory = f", {sum(taken) / 1e6:.1f} MB of its memory" if taken else ""
    path, body = "chat/completions", '{"messages": [{"role": "user", "content": "Hello"}]}'
    if info.tokenizer == "none":
        path, body = "completions", '{"prompt": [1, 2, 3], "return_token_ids": true}'
    server = f"--unix-socket {url.removeprefix('unix:')} http://localhost" if url.startswith("unix:") else url
    models = (
        f"{each.model}: {describe_shape(each.shape)}; weights {each.weights}, tokenizer {each.tokenizer}"
        for each in infos
    )
    lines = {
        "model": "\n         ".join(models),
        "device": f"{info.device}, {info.num_slots} slots{memory}",
        "address": url,
        "try": f"curl {server}/v1/{path}{key} -d '{body}'",
    }
    for name, text in lines.items():
        click.echo(f"{name:8} {text}")
