"""The options of the server's log."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import get_args

import click
import cloup

from server.telemetry.logs import LogFormat, LogLevel, LogSettings

_DEFAULT = LogSettings()

_OPTIONS = (
    click.option(
        "--log-format",
        type=click.Choice(get_args(LogFormat)),
        default=_DEFAULT.format,
        show_default=True,
        help="How the lines on standard error are written; json is one object a line.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(get_args(LogLevel)),
        default=_DEFAULT.level,
        show_default=True,
        help="The least that is logged. Requests are info, but those of /health and /metrics are debug.",
    ),
    click.option(
        "--slow-seconds",
        type=click.FloatRange(0, min_open=True),
        metavar="SECONDS",
        help="Log a request that takes longer as a warning.  [default: none]",
    ),
)


def log_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to `command`, which takes them together as `logs`."""

    @wraps(command)
    def with_logs(*, log_format: LogFormat, log_level: LogLevel, slow_seconds: float | None, **others: object) -> None:
        command(logs=LogSettings(log_format, log_level, slow_seconds), **others)

    return cloup.option_group("Log", *_OPTIONS)(with_logs)
