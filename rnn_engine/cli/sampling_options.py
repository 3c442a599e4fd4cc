"""The options for how tokens are drawn, made from `SamplingParams`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import click

from rnn_engine.cli.option_groups import AddOption, option_group
from rnn_engine.errors import InvalidRequestError
from rnn_engine.sampling.ai00 import parse_ai00
from rnn_engine.sampling.chain import ORDER, parse_order
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
)

_MAX_TOKENS = click.option("--max-tokens", default=256, show_default=True, help="The most tokens to generate.")


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
        return click.option(name, callback=parse, metavar=metavar, help=help_text)
    if kind == Seed:
        return click.option(name, type=int, help=help_text)
    return click.option(name, type=kind, default=parameter.default, show_default=True, help=help_text)


def _parse_bias(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> dict[int | str, float]:
    """Parse ID=NUMBER, TEXT=NUMBER or ID=false, given several times. A click callback."""
    bias: dict[int | str, float] = {}
    for text in texts:
        token, _, number = text.rpartition("=")
        try:
            value = -math.inf if number == "false" else float(number)
        except ValueError:
            value = math.nan
        if not token or math.isnan(value):
            raise click.BadParameter(f"{text!r} is not allowed; expected ID=NUMBER, as 65530=-1.5, or TEXT=NUMBER")
        bias[int(token) if token.isascii() and token.isdigit() else token] = value
    return bias


def _parse_texts(_context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the texts, or the default where there are none. A click callback."""
    [default] = [one.default for one in PARAMETERS if one.name == parameter.name]
    return texts or tuple(default)


def _parse_steps(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    """Parse names that commas part, or letters. A click callback."""
    if text is None:
        return None
    try:
        return parse_order([name.strip() for name in text.split(",")] if "," in text or text in ORDER else text)
    except InvalidRequestError as error:
        raise click.BadParameter(f"{error.value!r} is not allowed; expected {error.allowed}") from None


def _parse_sampler(_context: click.Context, _parameter: click.Parameter, text: str | None) -> SamplerChoice:
    """Parse a JSON object. A click callback."""
    if text is None:
        return None
    try:
        return parse_ai00(json.loads(text))
    except (InvalidRequestError, ValueError) as error:
        raise click.BadParameter(f"{text!r} is not allowed: {error}") from None


_REPEATED: Mapping[Any, tuple[Callable[..., Any], str]] = MappingProxyType(
    {TokenBias: (_parse_bias, "ID=NUMBER"), Texts: (_parse_texts, "TEXT"), Words: (_parse_texts, "TEXT")}
)
_PARSED: Mapping[Any, tuple[Callable[..., Any], str]] = MappingProxyType(
    {StepNames: (_parse_steps, "NAMES|LETTERS"), SamplerChoice: (_parse_sampler, "JSON")}
)

sampling_options = option_group("Sampling", SamplingParams, _MAX_TOKENS, *map(_make_option, PARAMETERS))
