"""`python -m tools.bench.serve`: serve an engine without a model, or a fleet of such engines on Ray Serve.

Everything except the model is real: HTTP, chat template, scheduler, cache and router. The address is printed as
`rnn-engine serve` prints it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import click

from rnn_engine.chat_template import WorldTemplate
from rnn_engine.interface import EngineLike
from rnn_engine.loading.parts import freeze_modules
from rnn_engine.loading.states import make_state_store
from rnn_engine_server.core.app import run
from rnn_engine_server.core.settings import ConnectionSettings, ServerSettings
from rnn_engine_states.named.store import StateStore
from tools.bench.host import make_instant_engine
from tools.bench.modelled import MODEL, QUEUED, SHAPE, VOCAB, WordTokenizer, load_replica, make_engine

if TYPE_CHECKING:
    from rnn_engine.fleet.deployment import LoadReplica

_CLIENTS = 4096  # at a time
_CPUS = 0.01  # a replica: its steps take time and no processor


@click.command()
@click.option("--port", default=0, show_default=True, help="The port; 0 = a free one.")
@click.option("--slots", default=16, show_default=True, help="Slots of each engine.")
@click.option("--step", default=0.008, show_default=True, help="Seconds of a step.")
@click.option("--token", default=0.0001, show_default=True, help="Seconds that each token adds to a step.")
@click.option("--states", default=1000, show_default=True, help="States that a cache keeps; 0 = no cache.")
@click.option("--replicas", default=0, show_default=True, help="Replicas of a fleet; 0 = one engine without a fleet.")
@click.option("--instant", is_flag=True, help="Serve the engine of tools.bench.host, which has no cache.")
def main(port: int, slots: int, step: float, token: float, states: int, replicas: int, instant: bool) -> None:
    """Serve until the process is ended."""
    freeze_modules()

    async def load() -> EngineLike:
        if instant:
            return make_instant_engine(slots)
        if replicas:
            return await _open_fleet(partial(load_replica, slots, step, token, states), replicas, slots)
        return make_engine(slots, step, token, states)

    connections = ConnectionSettings(max_connections=_CLIENTS, max_per_client=_CLIENTS)
    settings = ServerSettings(port=port, connections=connections)
    run(load, settings, lambda _, url: print(f"address  {url}", flush=True))


async def _open_fleet(load: LoadReplica, replicas: int, slots: int) -> EngineLike:
    from rnn_engine.fleet.cluster import RayLinks, deploy, start_ray
    from rnn_engine.fleet.deployment import make_application
    from rnn_engine.fleet.remote import Front, RemoteEngine
    from rnn_engine.fleet.settings import FleetSettings, Resources

    settings = FleetSettings(replicas, resources=Resources(_CPUS))
    await asyncio.to_thread(start_ray, settings)
    await asyncio.to_thread(deploy, MODEL, make_application(load, settings))
    states = make_state_store(SHAPE, MODEL)
    front = Front(WordTokenizer(VOCAB), WorldTemplate(), StateStore(states), states.files)
    engine = await RemoteEngine.open(RayLinks(MODEL, owned=True), front, max_queued=QUEUED)
    while engine.info.num_slots < replicas * slots:
        await asyncio.sleep(0.1)
    return engine


if __name__ == "__main__":
    main()
