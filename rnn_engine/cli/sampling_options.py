"""The options for how tokens are drawn, made from `SamplingParams`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click
import cloup

from rnn_engine.sampling.params import PARAMETERS, Parameter, SamplingParams, Seed, TokenBias

_MAX_TOKENS = click.option("--max-tokens", default=256, show_default=True, help="The most tokens to generate.")


def sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --max-tokens to `command`, and the options that it takes together as `sampling`."""

    @wraps(command)
    def with_sampling(**values: Any) -> None:  # noqa: ANN401
        sampling = SamplingParams(**{parameter.name: values.pop(parameter.name) for parameter in PARAMETERS})
        command(sampling=sampling, **values)

    return cloup.option_group("Sampling", _MAX_TOKENS, *map(_make_option, PARAMETERS))(with_sampling)


def _make_option(parameter: Parameter) -> Callable[[Any], Any]:
    name, help_text = "--" + parameter.name.replace("_", "-"), parameter.allowed.help
    if parameter.type == TokenBias:
        return click.option(
            name,
            multiple=True,
            callback=_parse_bias,
            metavar="ID=NUMBER",
            help=f"{help_text} May be given several times.",
        )
    if parameter.type == Seed:
        return click.option(name, type=int, help=help_text)
    return click.option(name, type=parameter.type, default=parameter.default, show_default=True, help=help_text)


def _parse_bias(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> dict[int, float]:
    """Parse ID=NUMBER, given several times. A click callback."""
    bias = {}
    for text in texts:
        token, _, number = text.partition("=")
        try:
            bias[int(token)] = float(number)
        except ValueError:
            raise click.BadParameter(f"{text!r} is not allowed; expected ID=NUMBER, as 65530=-1.5") from None
    return bias
