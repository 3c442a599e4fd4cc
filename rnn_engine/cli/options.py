"""Arguments and options that several subcommands share, and click callbacks that parse their values."""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import click
import cloup
from click.core import ParameterSource
from cloup.formatting import HelpSection

from rnn_engine.bounds import AUTO, AUTO_FORMATS, DEFAULT_DRAFT, FORMAT_NAMES, LONGEST_WAIT, MAX_DRAFT, STORED
from rnn_engine.demo import model_path
from rnn_engine.errors import InvalidRequestError, ModelError
from rnn_engine.files import is_same_file, is_special
from rnn_engine.hub import locate_model
from rnn_engine.hub.local import WEIGHTS, could_be_wanted
from rnn_engine.loading.settings import LoadSettings

if TYPE_CHECKING:
    from rnn_engine.model import LoraChoice
    from rnn_engine.types import ModelShape

# Groups of options: a command gets the values of options that belong together as one typed object.

T = TypeVar("T")
P = ParamSpec("P")

AddOption: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
"""A decorator that adds an option to a command, as `click.option` returns it."""


def option_group(
    title: str, make: Callable[..., T], *options: AddOption
) -> Callable[[Callable[Concatenate[T, P], None]], Callable[P, None]]:
    """Return a decorator that adds options to a command and passes it one object, made of their values by `make`.

    The object is the command's first argument. The parameters of `make` have the names of options; an option with
    another name stays one of the command's own. A parameter without an option keeps its default. A command with several
    groups takes the object of the nearest decorator first.
    """
    names = tuple(signature(make).parameters)

    def add(command: Callable[Concatenate[T, P], None]) -> Callable[P, None]:
        @wraps(command)
        def with_group(*arguments: P.args, **values: P.kwargs) -> None:
            made = make(**{name: values.pop(name) for name in names if name in values})
            command(made, *arguments, **values)

        return cloup.option_group(title, *options)(with_group)

    return add


# The help of commands with many options.

_MOST_NEEDED = (
    "--help --help-all --device --weights --device-memory --tokenizer --chat-template --lora --slots --config --host "
    "--port --default-model --model-folder --cache-folder --state --state-folder --api-key --api-key-file --open "
    "--cors-origin --log-level --replicas --max-replicas --address --replica-gpus --url --system --prompt --tokens "
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


# Types of options with numbers: sizes in bytes, such as 4096, 256M or 2G, and finite numbers in a range.

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


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


def parse_size(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """A click callback that parses a number of bytes such as 4096 or 256M. K, M, G and T are powers of 1024."""
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,15})([KMGT]?)", text, re.IGNORECASE)
    if match is None:
        raise bad_value(text, "a whole number of bytes, such as 0, 4096, 256M or 2G")
    return int(match[1]) * _UNITS[match[2].upper()]


def size_in_words(num_bytes: int) -> str:
    unit = max((name for name in _UNITS if num_bytes % _UNITS[name] == 0), key=_UNITS.__getitem__)
    return f"{num_bytes // _UNITS[unit]}{unit}"


def find_model(value: str | None) -> Path:
    """Return the path of the model that `value` names: a path, a name that `pull` knows, or None for the demo model.

    Raises UsageError if the model can't be found.
    """
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
    """Divide the arguments `[MODEL] FILE` of a command into the paths of the model and of the file.

    `file` is what the command calls the file. Raises UsageError for another number of arguments.
    """
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


def parse_model(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Path:
    """A click callback that finds a model, as `find_model` does."""
    return find_model(value)


model_argument = click.argument("model", required=False, callback=parse_model, metavar="[MODEL]")
device_option = click.option(
    "--device",
    default="auto",
    show_default=True,
    metavar="auto|INDEX|NAME|cpu",
    help="auto, cpu (numpy), or the index or a part of the name of a device that `rnn-engine devices` lists.",
)


def _weights(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is None or value == AUTO:
        return value
    from rnn_engine.forward import WeightChoice

    try:
        WeightChoice.parse(value)
    except InvalidRequestError as error:
        raise bad_value(value, f"{AUTO}, or {error.allowed}") from None
    return value


weights_option = click.option(
    "--weights",
    show_default="f16, but stored for a quantised file",
    metavar="auto|FORMAT[,CLASS=FORMAT...][,layers=N][,activations=f32|int8]",
    callback=_weights,
    help=f"The format of the matrices on the device: {', '.join((*FORMAT_NAMES, STORED))}. CLASS is att, ffn, "
    "first (the first layer), last (the last layer), head, emb or adapters. With layers=N, the layers from N on are "
    "f16. Example: int4,head=int8. With activations=int8, the inputs of matrices in int8 or q8_0 are rounded to bytes, "
    f"too. auto takes the first of {', '.join(AUTO_FORMATS)} that fits into the device's memory; for a quantised file, "
    f"{STORED} takes the place of {AUTO_FORMATS[0]}. On cpu, all matrices are f32.",
)
device_memory_option = click.option(
    "--device-memory",
    callback=parse_size,
    metavar="SIZE",
    help="How much of the device's memory the model may take, such as 6G.  [default: this computer's free memory; "
    "for a discrete GPU it is unknown and not checked]",
)


def _tune_seconds(_context: click.Context, _parameter: click.Parameter, value: str) -> float | None:
    if value == "auto":
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise bad_value(value, "auto, or a number of seconds of at least 0")
    return seconds


tune_option = click.option(
    "--tune",
    "tune_seconds",
    default="auto",
    show_default=True,
    envvar="RNN_ENGINE_TUNE",
    show_envvar=True,
    callback=_tune_seconds,
    metavar="auto|SECONDS",
    help="How long the first load on a device may search for the fastest kernels; later loads use them, too. auto is "
    "10 seconds for a model of 64 MB or more on a GPU, and no search otherwise; 0 uses fixed kernels.",
)
v5_epsilon_option = click.option(
    "--v5-group-norm-eps",
    "v5_group_norm_epsilon",
    type=FiniteRange(min=0, min_open=True),
    metavar="NUMBER",
    help="The epsilon of the group norm of an RWKV-5 that was trained with another one, such as 1e-5.  [default: "
    "64e-5]",
)


def _loras(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> tuple[LoraChoice, ...]:
    if not values:
        return ()
    from rnn_engine.model import LoraChoice

    with as_bad_parameter():
        return tuple(map(LoraChoice.parse, values))


lora_option = click.option(
    "--lora",
    "loras",
    multiple=True,
    metavar="FILE[:ALPHA]",
    callback=_loras,
    help="A LoRA to merge into the weights: a file of ai00 or BlinkDL with its alpha, one of RWKV-PEFT (PiSSA, DiSHA, "
    "Bone), or a folder of PEFT. May be given several times.",
)
tokenizer_option = click.option(
    "--tokenizer",
    default="auto",
    show_default=True,
    metavar="auto|world|none|FILE",
    help="auto finds the tokenizer that fits the model; none takes only token ids; FILE is a tokenizer.json or a "
    "vocabulary.",
)

chat_template_option = click.option(
    "--chat-template",
    default="auto",
    show_default=True,
    metavar="auto|world|FILE",
    help="How conversations become a prompt. auto takes the model's own template, else RWKV World's; FILE is a Jinja "
    "template, or JSON as the user guide describes it.",
)


def _parse_reranker(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Path | None:
    return None if value is None else find_model(value)


reranker_option = click.option(
    "--reranker",
    callback=_parse_reranker,
    metavar="MODEL",
    help="The reranker of the first model, which must be an embedding model: it ranks documents by the states after "
    "them.",
)
speculate_option = click.option(
    "--speculate",
    type=click.IntRange(0, MAX_DRAFT),
    default=DEFAULT_DRAFT,
    show_default=True,
    metavar="TOKENS",
    help="The most tokens of a draft: a guess from earlier text, which a step checks at once if that is faster. The "
    "answers stay the same. 0 makes no drafts.",
)

_LOADING = (
    tokenizer_option,
    chat_template_option,
    device_option,
    weights_option,
    device_memory_option,
    tune_option,
    v5_epsilon_option,
    lora_option,
    speculate_option,
)
loading_options = option_group("Model and device", LoadSettings, *_LOADING)
served_loading_options = option_group("Model and device", LoadSettings, *_LOADING, reranker_option)


def _policy_name(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    from rnn_engine.scheduler import parse_policy

    with as_bad_parameter():
        parse_policy(value)
    return value


batching_option = click.option(
    "--batching",
    default="eager",
    show_default=True,
    callback=_policy_name,
    metavar="POLICY",
    help="How a step waits for more requests: eager (not at all), k:NUMBER (for this many), t:SECONDS, "
    f"k-or-t:NUMBER,SECONDS, or adaptive (if waiting is likely to pay). SECONDS are at most {LONGEST_WAIT:g}.",
)


def slots_option(default: int) -> AddOption:
    return click.option(
        "--slots",
        type=click.IntRange(min=1),
        default=default,
        show_default=True,
        help="How many sequences run at the same time. Each keeps its state on the device.",
    )


def parse_tokens(_context: click.Context, _parameter: click.Parameter, text: str | None) -> list[int] | None:
    """A click callback that parses token ids from `1,2,3` or from a .npy file with one axis of whole numbers."""
    if text is None:
        return None
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


api_key_option = click.option(
    "--api-key",
    metavar="KEY",
    envvar="RNN_ENGINE_API_KEY",
    show_envvar=True,
    help="The server's API key. Other users of this machine can see this option in the list of processes, but not the "
    "environment variable.",
)


WITH_URL = "with --url: the server has loaded its model"
"""Why options of a model have no effect with --url."""


def command_to_resume() -> str:
    """Return the command line that goes on with this run, with `--resume`."""
    words = ["rnn-engine", *sys.argv[1:]]
    return shlex.join(words if "--resume" in words else [*words, "--resume"])


def refuse_options(context: click.Context, names: Iterable[str], without_effect: str) -> None:
    """Raise UsageError, which says when options are `without_effect`, if one of the options `names` was given."""
    for parameter in context.command.params:
        if parameter.name in names and context.get_parameter_source(parameter.name) == ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{parameter.opts[0]} can't be used {without_effect}")


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
