"""`rnn-engine fleet`: serve models with several replicas."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

import click
import cloup

from rnn_engine.cli.options import FiniteRange, LongCommand
from rnn_engine.cli.serve_options import ServeOptions, serving_options


@cloup.command(cls=LongCommand)
@cloup.option_group(
    "Replicas",
    click.option(
        "--replicas", type=click.IntRange(min=1), default=2, show_default=True, help="The number of replicas."
    ),
    click.option(
        "--max-replicas",
        type=click.IntRange(min=1),
        metavar="N",
        help="Run up to this many replicas when requests need them, and never fewer than --replicas.",
    ),
    click.option(
        "--address",
        metavar="HOST:PORT",
        help="The Ray cluster that runs the replicas: the address of its head, or auto on a machine of the cluster.  "
        "[default: a cluster on this machine, which ends with the command]",
    ),
    click.option(
        "--application",
        metavar="NAME",
        help="Use the replicas of this application, which runs on the cluster, instead of starting replicas; see "
        "deploy/serve.yaml.",
    ),
    click.option(
        "--replica-cpus",
        type=FiniteRange(min=0),
        default=1.0,
        show_default=True,
        help="CPUs that Ray reserves for each replica, which may use more.",
    ),
    click.option(
        "--replica-gpus",
        type=FiniteRange(min=0, max=1),
        default=0.0,
        show_default=True,
        help="GPUs that Ray reserves for each replica, such as 0.5 for two replicas on one GPU.",
    ),
)
@serving_options
def fleet_command(
    options: ServeOptions,
    replicas: int,
    max_replicas: int | None,
    address: str | None,
    application: str | None,
    replica_cpus: float,
    replica_gpus: float,
) -> None:
    """Serve models with several replicas, on Ray Serve.

    The routes and options are those of `serve`, and replicas share the requests. Each replica is a process with the
    model on its device, and --slots, --device and the options of kept states apply to each. The model's file must be at
    the same path on every machine. Named states are kept by this command. Needs the extra `fleet`.
    """
    if find_spec("ray") is None:
        raise click.UsageError("Ray is not installed; run pip install 'rnn-engine[fleet]'")
    if max_replicas is not None and max_replicas < replicas:
        raise click.UsageError(f"--max-replicas {max_replicas} is less than --replicas {replicas}")
    if application is not None and (address is None or len(options.served.models) > 1):
        raise click.UsageError("--application needs --address, and at most one MODEL")
    from rnn_engine.cli.replicas import start_fleet
    from rnn_engine.cli.serving import serve
    from rnn_engine.fleet.settings import FleetSettings, Resources, Scaling

    settings = FleetSettings(
        replicas=replicas,
        scaling=None if max_replicas is None else Scaling(max_replicas),
        address=address,
        application=application,
        resources=Resources(replica_cpus, replica_gpus),
        device=options.loading.device,
        drain_seconds=options.process.drain_seconds,
    )
    serve(partial(start_fleet, settings), options)
