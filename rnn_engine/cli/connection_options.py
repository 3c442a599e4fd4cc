"""The options that bound connections: how many, and how long a client may take."""

from __future__ import annotations

import click

from rnn_engine.cli.option_groups import AddOption, option_group
from rnn_engine.cli.sizes import FiniteRange
from server.connections.settings import ConnectionSettings

_DEFAULT = ConnectionSettings()


def seconds_option(name: str, default: float, meaning: str) -> AddOption:
    """Return an option that takes a time in seconds, more than none."""
    return click.option(
        name,
        type=FiniteRange(min=0, min_open=True),
        metavar="SECONDS",
        default=default,
        show_default=True,
        help=meaning,
    )


connection_options = option_group(
    "Connections",
    ConnectionSettings,
    click.option(
        "--max-connections",
        type=click.IntRange(min=1),
        default=_DEFAULT.max_connections,
        show_default=True,
        help="Open at the same time. One more closes the one that has waited longest for a request.",
    ),
    click.option(
        "--max-connections-per-client",
        "max_per_client",
        type=click.IntRange(min=1),
        default=_DEFAULT.max_per_client,
        show_default=True,
        help="The same for one address.",
    ),
    seconds_option("--idle-seconds", _DEFAULT.idle_seconds, "How long a connection may wait for a request."),
    seconds_option("--header-seconds", _DEFAULT.header_seconds, "How long the head of a request may take."),
    seconds_option(
        "--body-seconds",
        _DEFAULT.body_seconds,
        "How long its body may take; each 4 kB that come give a second of it back.",
    ),
    seconds_option(
        "--stall-seconds",
        _DEFAULT.stall_seconds,
        "After how long a client that takes less than 512 bytes a second of its answer is dropped.",
    ),
)
