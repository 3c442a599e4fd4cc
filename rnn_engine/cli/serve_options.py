"""The options of a server: its models, what it keeps of their work, and who may ask for how much."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, get_args

import click

from rnn_engine.chat_template.answer import ReasoningFormat
from rnn_engine.cli.config_file import config_option, configured_models
from rnn_engine.cli.options import (
    FiniteRange,
    bad_value,
    batching_option,
    find_model,
    option_group,
    served_loading_options,
    slots_option,
)
from rnn_engine.cli.server_options import connection_options, door_options, limit_options, log_options
from rnn_engine.cli.state_options import cache_options, state_options
from rnn_engine.hub import model_name
from rnn_engine.loading.settings import LoadSettings, StateSettings
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


models_argument = click.argument("models", nargs=-1, callback=_parse_models, metavar="[[NAME=]MODEL]...")


@dataclass(frozen=True, slots=True)
class ServedModels:
    """The options for a server's models: their files, how requests choose one, and what admins may change."""

    models: tuple[NamedModel, ...]
    default_model: str | None
    model_folder: Path | None
    admin_folders: tuple[Path, ...]
    unzip_folders: tuple[Path, ...]
    embed_model: Path | None
    any_model: bool | None
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
        "--any-model/--known-models",
        default=None,
        help="Let the default model answer requests for an unknown model, instead of the status 404.  "
        "[default: if one model is served, without --strict]",
    ),
    click.option(
        "--idle-unload",
        type=FiniteRange(min=0, min_open=True),
        metavar="SECONDS",
        help="Unload a model that no request has used for this long; the next request for it loads it again.  "
        "[default: never]",
    ),
)


P = ParamSpec("P")

_DEFAULT = ServerSettings()
_JOBS = "jobs"  # the folder within that of the states


def _parse_mode(_context: click.Context, _parameter: click.Parameter, text: str) -> int:
    """A click callback that parses a file's permissions in octal digits, such as 660."""
    if not re.fullmatch("[0-7]{3,4}", text):
        raise bad_value(text, "three or four octal digits, such as 660")
    return int(text, 8)


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The options for how the server reads and runs requests."""

    slots: int
    batching: str
    reasoning_format: ReasoningFormat
    strict: bool


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """The options for the server's address and for how its process ends."""

    host: str
    port: int
    unix_socket: Path | None
    unix_socket_mode: int
    root_path: str
    web: bool
    drain_seconds: float
    exit_on_failure: bool


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options for files, batches and tuning jobs."""

    job_folder: Path | None
    tuning_share: float


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The values of all options of `rnn-engine serve`, with one field for each group of options."""

    loading: LoadSettings
    requests: RequestOptions
    process: ProcessOptions
    served: ServedModels
    cache: CacheConfig
    states: StateSettings
    collection_folder: Path | None
    jobs: JobOptions
    auth: AuthSettings
    limits: Limits
    connections: ConnectionSettings
    logs: LogSettings

    @property
    def settings(self) -> ServerSettings:
        process, served = self.process, self.served
        return ServerSettings(
            host=process.host,
            port=process.port,
            unix_socket=process.unix_socket,
            unix_socket_mode=process.unix_socket_mode,
            root_path=process.root_path,
            web=process.web,
            drain_seconds=process.drain_seconds,
            exit_on_failure=process.exit_on_failure,
            reasoning_format=self.requests.reasoning_format,
            strict=self.requests.strict,
            model_folder=served.model_folder,
            admin_folders=served.admin_folders,
            unzip_folders=served.unzip_folders,
            embed_model=served.embed_model,
            collection_folder=self.collection_folder,
            job_folder=self._job_folder,
            tuning_share=self.jobs.tuning_share,
            loading=self.loading,
            any_model=served.any_model,
            idle_unload_seconds=served.idle_unload,
            auth=self.auth,
            limits=self.limits,
            connections=self.connections,
            logs=self.logs,
        )

    @property
    def _job_folder(self) -> Path | None:
        """The folder of jobs, by default one beside the persistent states; None = a temporary one."""
        states = self.states.folder
        return self.jobs.job_folder or (None if states is None else states / _JOBS)


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
        "header X-Left-Out, unless a name looks misspelled. Both accept null and known fields that can't change the "
        "answer, and both refuse known fields of other systems that would change the answer.",
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
        "--root-path",
        metavar="PATH",
        default=_DEFAULT.root_path,
        help="Serve under this path, too, such as /llm, for a proxy that passes on paths that begin with it. A proxy "
        "that removes it needs no such option.",
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


def _collection_folder(collection_folder: Path | None) -> Path | None:
    return collection_folder


_collection_options = option_group(
    "Collections of documents",
    _collection_folder,
    click.option(
        "--collection-folder",
        type=click.Path(path_type=Path, file_okay=False),
        help="Keep collections of documents in this folder over restarts. Use --cache-folder, too, so that the states "
        "after the documents are kept.  [default: keep them in memory]",
    ),
)


_job_options = option_group(
    "Jobs",
    JobOptions,
    click.option(
        "--job-folder",
        type=click.Path(path_type=Path, file_okay=False),
        help="Keep files, batches and tuning jobs in this folder over restarts. Only one server at a time may use it.  "
        f"[default: {_JOBS} in --state-folder, or else a temporary folder]",
    ),
    click.option(
        "--tuning-share",
        type=FiniteRange(min=0, max=1),
        metavar="SHARE",
        default=_DEFAULT.tuning_share,
        show_default=True,
        help="The share of time that tuning a state may take while requests run. Without requests, it takes all.",
    ),
)


def serving_options(serve_command: Callable[Concatenate[ServeOptions, P], None]) -> Callable[P, None]:
    """Return the command `serve_command` with a server's options added, which it takes as one `ServeOptions`.

    This is a decorator. The `ServeOptions` is the command's first argument.
    """

    @models_argument
    @served_loading_options
    @_request_options
    @_process_options
    @models_options
    @cache_options
    @state_options
    @_collection_options
    @_job_options
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
        jobs: JobOptions,
        collection_folder: Path | None,
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
        options = ServeOptions(
            loading,
            requests,
            process,
            served,
            cache,
            states,
            collection_folder,
            jobs,
            auth,
            limits,
            connections,
            logs,
        )
        serve_command(options, *arguments, **values)

    return with_options
