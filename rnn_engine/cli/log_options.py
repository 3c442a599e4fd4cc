"""The options of the server's log."""

from __future__ import annotations

from typing import get_args

import click

from rnn_engine.cli.option_groups import option_group
from rnn_engine.cli.sizes import FiniteRange
from server.telemetry.logs import LogFormat, LogLevel, LogSettings

_DEFAULT = LogSettings()

log_options = option_group(
    "Log",
    LogSettings,
    click.option(
        "--log-format",
        "format",
        type=click.Choice(get_args(LogFormat)),
        default=_DEFAULT.format,
        show_default=True,
        help="How the lines on standard error are written; json is one object a line.",
    ),
    click.option(
        "--log-level",
        "level",
        type=click.Choice(get_args(LogLevel)),
        default=_DEFAULT.level,
        show_default=True,
        help="The least that is logged. Requests are info, but those of /health and /metrics are debug.",
    ),
    click.option(
        "--slow-seconds",
        type=FiniteRange(0, min_open=True),
        metavar="SECONDS",
        help="Log a request that takes longer as a warning.  [default: none]",
    ),
)
