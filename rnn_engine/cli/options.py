"""Arguments and options that several subcommands share, and click options of the settings that fields describe."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import click
import cloup
from cloup.formatting import HelpSection

from rnn_engine.bounds import SETTING, Kind, Part, Setting
from rnn_engine.demo import model_path
from rnn_engine.errors import InvalidRequestError, ModelError
from rnn_engine.files import is_same_file, is_special
from rnn_engine.hub import WEIGHTS, could_be_wanted, locate_model
from rnn_engine.loading.settings import LoadSettings

if TYPE_CHECKING:
    from rnn_engine.types import ModelShape

T = TypeVar("T")
P = ParamSpec("P")

AddOption: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
"""A decorator that adds an option to a command, as `click.option` returns it."""

# Types of options: finite numbers, and values that a function parses.


@contextmanager
def as_bad_parameter() -> Iterator[None]:
    """While the block runs, raise BadParameter in place of InvalidRequestError; click adds the option's name."""
    try:
        yield
    except InvalidRequestError as error:
        raise bad_value(error.value, error.allowed, error.message) from None


def bad_value(value: object, allowed: str, message: str | None = None) -> click.BadParameter:
    """Return the error for an option's wrong value, with `message` in place of the usual words."""
    return click.BadParameter(message or f"{value!r}; expected {allowed}")


class FiniteRange(click.FloatRange):
    """A click type for finite numbers within a range. Click's own type accepts NaN and infinity."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class Parsed(click.ParamType[Any]):
    """A click type of values that a function makes of texts; it may raise InvalidRequestError or ModelError."""

    name = "text"

    def __init__(self, parse: Callable[[str], object]) -> None:
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:  # noqa: ARG002
        try:
            with as_bad_parameter():
                return self._parse(value) if isinstance(value, str) else value
        except ModelError as error:
            raise click.UsageError(str(error), ctx) from None


def _click_type(kind: Kind) -> click.ParamType[Any]:
    if kind.parse is not None:
        return Parsed(kind.parse)
    if kind.choices:
        return click.Choice(kind.choices)
    if kind.value_type is Path:
        is_file = kind.metavar == "FILE"
        return click.Path(path_type=Path, exists=kind.exists, file_okay=is_file, dir_okay=not is_file)
    if kind.value_type is int:
        low, high = (None if bound is None else int(bound) for bound in (kind.low, kind.high))
        return click.INT if low is high is None else click.IntRange(low, high)
    return FiniteRange(kind.low, kind.high, min_open=kind.is_open) if kind.value_type is float else click.STRING


# Options of settings: a dataclass says of its fields how a user gives them (`rnn_engine.bounds.Setting`).


def options_of(settings: type, *names: str) -> list[AddOption]:
    """Return the options of a settings' class and of its parts, or only those of the fields called `names`."""
    return [_make_option(field, is_optional=is_optional) for field, is_optional in _settings_in(settings, names)]


def parameters_of(settings: type, *names: str) -> list[str]:
    """Return the names of the click parameters of the same options."""
    return [_parameter(field) for field, _ in _settings_in(settings, names)]


def make(settings: type[T], values: dict[str, Any], **given: object) -> T:
    """Return settings of `given` and of options, which leave `values`. Raises UsageError if one needs another."""
    return settings(**_collect(settings, values, given))


def _collect(settings: type, values: dict[str, Any], given: Mapping[str, object]) -> dict[str, object]:
    made = dict(given)
    for field in fields(settings):
        found = field.metadata.get(SETTING)
        if field.name in given:
            continue
        if isinstance(found, Part):
            made[field.name] = make(found.settings, values) if found.needed is None else _make_optional(found, values)
        elif isinstance(found, Setting) and _parameter(field) in values:
            made[field.name] = values.pop(_parameter(field))
    return made


def _make_optional(part: Part, values: dict[str, Any]) -> object:
    """Return a part of settings, or None if its first field is not given."""
    made = {name: value for name, value in _collect(part.settings, values, {}).items() if value is not None}
    first, *others = fields(part.settings)
    if first.name in made:
        return part.settings(**made)
    for field in others:
        if field.name in made:
            raise click.UsageError(f"{_option(field)} needs {_option(first)}, {part.needed}")
    return None


def _settings_in(settings: type, names: Sequence[str], is_optional: bool = False) -> Iterator[tuple[Field[Any], bool]]:
    """Yield the fields with settings, and whether they are in a part that may be missing."""
    for field in fields(settings):
        found = field.metadata.get(SETTING)
        if found is None or (names and field.name not in names):
            continue
        if isinstance(found, Part):
            yield from _settings_in(found.settings, (), is_optional or found.needed is not None)
        else:
            yield field, is_optional


def _option(field: Field[Any]) -> str:
    found = field.metadata[SETTING]
    if isinstance(found, Part):
        return _option(fields(found.settings)[0])
    named = next((name for name in found.names if name.startswith("--")), f"--{field.name.replace('_', '-')}")
    return named.partition("/")[0]


def _parameter(field: Field[Any]) -> str:
    return _option(field).removeprefix("--").replace("-", "_")


def _make_option(field: Field[Any], *, is_optional: bool) -> AddOption:
    found: Setting = field.metadata[SETTING]
    kind, meaning, is_repeated = found.kind, found.help, field.default == ()
    has_default = field.default not in (MISSING, None, ())
    default = found.text or (kind.write(field.default) if has_default else None)
    if is_repeated:
        meaning += " May be given several times."
    if is_optional and default is not None:  # None shows that it was not given
        meaning += f"  [default: {default:g}]" if isinstance(default, float) else f"  [default: {default}]"
        default = None
    return click.option(
        *(found.names or (_option(field),)),
        _parameter(field),
        type=None if kind.value_type is bool else _click_type(kind),
        is_flag=kind.value_type is bool,
        multiple=is_repeated,
        metavar=kind.metavar,
        default=default,
        show_default=isinstance(default, str | int | float) and default != "",
        envvar=found.env,
        show_envvar=found.env is not None,
        help=meaning,
    )


# Groups of options: a command gets the values of options that belong together as one typed object.


def option_group(
    title: str | None, make: Callable[..., T], *options: AddOption, names: Iterable[str] | None = None
) -> Callable[[Callable[Concatenate[T, P], None]], Callable[P, None]]:
    """Return a decorator that adds options to a command and passes it one object, made of their values by `make`.

    The object is the command's first argument. `names` are the options that `make` takes, by default its parameters; an
    option with another name stays one of the command's own. A command with several groups takes the object of the
    nearest decorator first. Without a title, the options are not apart from others in the help.
    """
    taken = tuple(signature(make).parameters if names is None else names)

    def add(command: Callable[Concatenate[T, P], None]) -> Callable[P, None]:
        @wraps(command)
        def with_group(*arguments: P.args, **values: P.kwargs) -> None:
            made = make(**{name: values.pop(name) for name in taken})
            command(made, *arguments, **values)

        decorated: Callable[..., Any] = with_group
        if title is not None:
            return cloup.option_group(title, *options)(decorated)
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return add


def settings_options(
    settings: type[T], *names: str, title: str | None = None
) -> Callable[[Callable[Concatenate[T, P], None]], Callable[P, None]]:
    """Return a decorator for the options of a settings' class, or of its fields called `names`; see `option_group`."""

    def make_settings(**values: Any) -> T:  # noqa: ANN401
        return make(settings, values)

    options, parameters = options_of(settings, *names), parameters_of(settings, *names)
    return option_group(title, make_settings, *options, names=parameters)


# The help of commands with many options.

_MOST_NEEDED = (
    "--help --help-all --device --weights --device-memory --tokenizer --chat-template --lora --slots --config --host "
    "--port --default-model --model-folder --cache-folder --state --state-folder --api-key --api-key-file --open "
    "--cors-origin --log-level --replicas --address --replica-gpus --system --prompt --tokens "
    "--chat --stop --max-tokens --temperature --top-p --top-k --presence-penalty --frequency-penalty --seed --grammar "
    "--json-schema --regex"
)
_SHOWN = frozenset(_MOST_NEEDED.split())


class LongCommand(cloup.Command):
    """A command with many options: --help shows those that most people need, and --help-all shows all."""

    def __init__(self, *args: Any, params: Sequence[click.Parameter] = (), **more: Any) -> None:  # noqa: ANN401
        show_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=self._show_all,
            help="Show all options and exit.",
        )
        super().__init__(*args, params=[*params, show_all], **more)

    def _show_all(self, ctx: click.Context, _parameter: click.Parameter, is_wanted: bool) -> None:
        if is_wanted and not ctx.resilient_parsing:
            ctx.meta[__name__] = self
            click.echo(ctx.get_help())
            ctx.exit()

    def format_params(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections of the options that are shown, and how to see the others."""
        if ctx.meta.get(__name__) is self:
            super().format_params(ctx, formatter)
            return
        groups = [*self.option_groups, self.get_default_option_group(ctx)]
        shown = {group.title: [option for option in group if _SHOWN & set(option.opts)] for group in groups}
        num_left_out = sum(map(len, groups)) - sum(map(len, shown.values()))
        sections = [
            HelpSection(title, [record for option in options if (record := option.get_help_record(ctx))])
            for title, options in shown.items()
            if options
        ]
        assert isinstance(formatter, cloup.HelpFormatter)
        formatter.write_many_sections(sections)
        formatter.write(f"\n{num_left_out} more options: `{ctx.command_path} --help-all` shows them.\n")


# Models, and what several commands ask for.


def find_model(value: str | None) -> Path:
    """Return a model's path: a path, a name that `pull` knows, or None for the demo. Raises UsageError if missing."""
    if value is not None:
        try:
            return locate_model(value)
        except ModelError as error:
            raise click.UsageError(str(error)) from None
    demo = model_path()
    if not demo.is_file():
        raise click.UsageError(f"no MODEL was given, and the model that comes with rnn-engine is missing: {demo}")
    return demo


def model_and_file(words: Sequence[str], file: str) -> tuple[Path, Path]:
    """Divide `[MODEL] FILE` into two paths; the command calls the second `file`. Raises UsageError."""
    match words:
        case [path]:
            return find_model(None), Path(path)
        case [model, path]:
            return find_model(model), Path(path)
    raise click.UsageError(f"{len(words)} arguments; expected {file}, or MODEL and {file}")


def names_model(word: str) -> bool:
    """Return True if `word` looks like a model: it is an existing path, or has the form or ending of a model's name."""
    if len(word.split()) == 1 and could_be_wanted(word):
        return True
    return word.endswith((*WEIGHTS, ".prefab")) or os.path.exists(word)  # `os.path.exists`, unlike Path, takes any text


model_argument = click.argument(
    "model", required=False, callback=lambda _context, _parameter, value: find_model(value), metavar="[MODEL]"
)

LOADING = tuple(field.name for field in fields(LoadSettings) if field.name != "reranker")
"""The fields of `LoadSettings` whose options all commands have that load an engine."""

loading_options = settings_options(LoadSettings, *LOADING, title="Model and device")


def slots_option(default: int) -> AddOption:
    return click.option(
        "--slots",
        type=click.IntRange(min=1),
        default=default,
        help="How many sequences run at the same time. Each keeps its state on the device.",
    )


def parse_tokens(text: str) -> list[int]:
    """Parse token ids from `1,2,3` or from a .npy file with one axis of whole numbers. Raises BadParameter."""
    if not text.endswith(".npy"):
        try:
            return [int(part) for part in text.split(",")]
        except ValueError:
            raise bad_value(text, "token ids such as 1,2,3, or a FILE.npy") from None
    import numpy as np

    try:
        tokens = np.load(text, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{text} can't be read: {error}") from error
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        found = f"{tokens.dtype} of shape {tokens.shape}"
        raise click.BadParameter(f"{text} holds {found}; expected whole numbers in one dimension")
    return [int(token) for token in tokens]


def command_to_resume() -> str:
    """Return the command line that goes on with this run, with `--resume`."""
    words = ["rnn-engine", *sys.argv[1:]]
    return shlex.join(words if "--resume" in words else [*words, "--resume"])


_MOST_PATH = 4096  # characters
_MODEL_ENDINGS = (*WEIGHTS, ".json", ".txt", ".jinja", ".model")  # of the files in a model's folder


def check_outputs(context: click.Context, outputs: Mapping[str, Path | None]) -> None:
    """Raise UsageError if a file that a command writes is also one that it reads, or that it writes twice.

    `outputs` are named as in the help. Every path among the command's other parameters counts as read, and so does a
    model's file in a folder among them. Call it before anything runs.
    """
    written = {name: path for name, path in outputs.items() if path is not None and not is_special(path)}
    others = [value for value in context.params.values() if not any(value is path for path in outputs.values())]
    inputs = list(_paths_in(others))
    for name, path in written.items():
        is_part = path.exists() and path.suffix in _MODEL_ENDINGS
        for other in inputs:
            if is_same_file(path, other) or (is_part and other.is_dir() and is_same_file(path.parent, other)):
                raise click.UsageError(f"{name}: {path} is what the command reads ({other}); expected another file")
        twice = next((each for each in written if each != name and is_same_file(path, written[each])), None)
        if twice is not None:
            raise click.UsageError(f"{name}: {path} is {twice}, too; expected two files")


def _paths_in(value: object) -> Iterator[Path]:
    """Yield the existing paths in a parameter's value: a path, a text such as NAME=FILE or FILE:WEIGHT, or several."""
    match value:
        case Path():
            if value.exists():
                yield value
        case str():
            parts = {value, value.partition("=")[2], value.partition("=")[0], value.rpartition(":")[0]} - {""}
            yield from (Path(part) for part in parts if len(part) < _MOST_PATH and os.path.exists(part))
        case Mapping():
            yield from _paths_in(tuple(value.values()))
        case tuple() | list():
            for each in value:
                yield from _paths_in(each)
        case _ if is_dataclass(value):
            for field in fields(value):
                yield from _paths_in(getattr(value, field.name))


def describe_shape(shape: ModelShape) -> str:
    """Return one line of text with a model's RWKV version and its sizes, such as the number of layers."""
    sizes = ", ".join(f"{name.removeprefix('num_').replace('_', ' ')} {size}" for name, size in shape.sizes.items())
    return f"RWKV {shape.version}, {sizes}"
