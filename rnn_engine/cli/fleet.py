"""`rnn-engine fleet`: serve models with several replicas."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import click
import cloup

from rnn_engine.cli.options import LongCommand, settings_options
from rnn_engine.cli.serve_options import ServeOptions, serving_options
from rnn_engine.fleet.settings import FleetSettings


@cloup.command(cls=LongCommand)
@settings_options(FleetSettings, title="Replicas")
@serving_options
def fleet_command(options: ServeOptions, fleet: FleetSettings, /) -> None:
    """Serve models with several replicas, on Ray Serve.

    The routes and options are those of `serve`, and replicas share the requests. Each replica is a process with the
    model on its device, and --slots, --device and the options of kept states apply to each. The model's file must be at
    the same path on every machine. Named states are kept by this command. Needs the extra `fleet`.
    """
    if find_spec("ray") is None:
        raise click.UsageError("Ray is not installed; run pip install 'rnn-engine[fleet]'")
    if fleet.application is not None and (fleet.address is None or len(options.models) > 1):
        raise click.UsageError("--application needs --address, and at most one MODEL")
    from rnn_engine.cli.replicas import start_fleet
    from rnn_engine.cli.serving import serve

    drain_seconds = options.settings.drain_seconds
    serve(partial(start_fleet, replace(fleet, device=options.loading.device, drain_seconds=drain_seconds)), options)
