"""Options for commands that generate text: sampling, and the format of the answer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from rnn_engine.bounds import FILE, TEXT, Kind, setting
from rnn_engine.cli.options import AddOption, Parsed, bad_value, option_group, parse_tokens
from rnn_engine.errors import InvalidRequestError
from rnn_engine.sampling.params import (
    PARAMETERS,
    Parameter,
    SamplerChoice,
    SamplingParams,
    Seed,
    StepNames,
    Texts,
    TokenBias,
    Words,
    parse_ai00,
)

if TYPE_CHECKING:
    from rnn_engine.grammar import Grammar

_TOKENS = Kind(metavar="1,2,3|FILE.npy", parse=parse_tokens)


@dataclass(frozen=True, slots=True)
class Task:
    """The text to continue, the state from which it starts, and the texts that end it."""

    prompt: str | None = setting(None, TEXT, "-p", "--prompt").help("The text to continue.  [default: standard input]")
    tokens: Sequence[int] | None = setting(None, _TOKENS).help("Token ids to continue; the output is token ids, too.")
    chat: bool = setting(False).help("Send the text to the model as a user's message, and print the answer.")
    stop: Sequence[str] = setting((), TEXT).help("Stop before this text.")
    state: Path | None = setting(None, FILE).help(
        "Start from the state in this file, or from an empty state if FILE is `none`.  [default: the model file's own]"
    )


_MAX_TOKENS = click.option("--max-tokens", default=256, help="The most tokens to generate.")


def _make_option(parameter: Parameter) -> AddOption:
    name, help_text = "--" + parameter.name.replace("_", "-"), parameter.allowed.help
    kind = parameter.type
    if kind in _REPEATED:
        parse, metavar = _REPEATED[kind]
        return click.option(
            name, multiple=True, callback=parse, metavar=metavar, help=f"{help_text} May be given several times."
        )
    if kind in _PARSED:
        parse, metavar = _PARSED[kind]
        return click.option(name, type=Parsed(parse), metavar=metavar, help=help_text)
    if kind == Seed:
        return click.option(name, type=int, help=help_text)
    return click.option(name, type=kind, default=parameter.default, help=help_text)


def _parse_bias(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> dict[int | str, float]:
    """A click callback: parse biases as ID=NUMBER, TEXT=NUMBER or ID=false (a ban); those of one token add up."""
    bias: dict[int | str, float] = {}
    for text in texts:
        token, _, number = text.rpartition("=")
        try:
            value = -math.inf if number == "false" else float(number)
        except ValueError:
            value = math.nan
        if not token or math.isnan(value):
            raise bad_value(text, "ID=NUMBER or TEXT=NUMBER, such as 65530=-1.5")
        key = int(token) if token.isascii() and token.isdigit() else token
        bias[key] = bias.get(key, 0.0) + value
    return bias


def _parse_texts(_context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """A click callback that returns the texts given for an option, or the option's default if none was given."""
    [default] = [one.default for one in PARAMETERS if one.name == parameter.name]
    return texts or tuple(default)


def _parse_steps(text: str) -> tuple[str, ...]:
    from rnn_engine.sampling.chain import ORDER, parse_order

    return parse_order([name.strip() for name in text.split(",")] if "," in text or text in ORDER else text)


def _parse_sampler(text: str) -> SamplerChoice:
    """Parse the JSON object with which ai00 chooses a sampler."""
    try:
        return parse_ai00(json.loads(text))
    except InvalidRequestError as error:
        raise click.BadParameter(str(error)) from None
    except ValueError as error:
        raise bad_value(text, f"JSON ({error})") from None


_REPEATED: Mapping[Any, tuple[Callable[..., Any], str]] = MappingProxyType(
    {TokenBias: (_parse_bias, "ID=NUMBER"), Texts: (_parse_texts, "TEXT"), Words: (_parse_texts, "TEXT")}
)
_PARSED: Mapping[Any, tuple[Callable[..., Any], str]] = MappingProxyType(
    {StepNames: (_parse_steps, "NAMES|LETTERS"), SamplerChoice: (_parse_sampler, "JSON")}
)

sampling_options = option_group("Sampling", SamplingParams, _MAX_TOKENS, *map(_make_option, PARAMETERS))

# Options for what an answer must match: a grammar, a JSON schema or a regular expression.

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _make_grammar(grammar: Path | None, json_schema: Path | None, regex: str | None) -> Grammar | None:
    """Return the grammar that the command's options specify, or None. Raises UsageError if they specify several."""
    options = {"--grammar": grammar, "--json-schema": json_schema, "--regex": regex}
    given = [option for option, value in options.items() if value is not None]
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} and {given[1]} can't be used together")
    if not given:
        return None
    from rnn_engine.grammar import Grammar, written_grammar

    if regex is not None:
        return Grammar("regex", regex, "--regex")
    if json_schema is not None:
        return Grammar("json_schema", _read("--json-schema", json_schema), "--json-schema")
    assert grammar is not None
    text = _read("--grammar", grammar)
    return Grammar("kbnf", text, "--grammar") if grammar.suffix == ".kbnf" else written_grammar(text, "--grammar")


def _read(option: str, path: Path) -> str:
    from rnn_engine.files import read_text

    try:
        return read_text(path)
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{option} {path} can't be read: {error}") from None


grammar_options = option_group(
    "Format of the answer",
    _make_grammar,
    click.option(
        "--grammar",
        type=_FILE,
        metavar="FILE",
        help="A grammar that the answer matches: llama.cpp's GBNF, llguidance's Lark, or kbnf in a file that ends in "
        ".kbnf.",
    ),
    click.option("--json-schema", type=_FILE, metavar="FILE", help="A JSON schema that the answer matches."),
    click.option("--regex", metavar="PATTERN", help="A regular expression that the whole answer matches."),
)
