"""The systems that the fleet benchmark measures: a server over one engine, or over a fleet of replicas on Ray Serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial

from rnn_engine.chat_template import WorldTemplate
from rnn_engine.engine import Engine
from rnn_engine.fleet.remote import Front, RemoteEngine
from rnn_engine.fleet.routing import Candidate, PrefixRouter
from rnn_engine.fleet.settings import ReplicaPlace
from rnn_engine.loading.settings import make_state_store
from tools.bench.fleet.asking import Question
from tools.bench.modelled import MODEL, SHAPE, Hardware, make_engine, served
from tools.bench.runners import WordTokenizer
from tools.live_server.asking import Answer
from tools.live_server.process import run_elsewhere

_APPLICATION = "bench"
_CLIENTS = 1000  # at a time
_MOST_REPLICAS = 8  # for which Ray has workers ready
_CPUS = 0.01  # a replica: its steps take time and no processor


class LeastBusyRouter(PrefixRouter):
    """A router that ignores prompts and chooses the replica with the fewest requests."""

    def choose(self, candidates: Sequence[Candidate], root: str, prompt: Sequence[int]) -> Candidate:  # noqa: ARG002
        return min(candidates, key=lambda candidate: candidate.outstanding)


@asynccontextmanager
async def one_engine(hardware: Hardware) -> AsyncIterator[int]:
    """Serve one engine over HTTP, without a fleet, until the block ends. Yields the server's port."""
    async with served(make_engine(hardware), _CLIENTS) as port:
        yield port


@asynccontextmanager
async def fleet(hardware: Hardware, replicas: int, *, routed: bool = True) -> AsyncIterator[int]:
    """Serve a fleet over HTTP until the block ends. Yields the server's port.

    Without `routed`, each request goes to the replica with the fewest requests, whatever its prompt.
    """
    from rnn_engine.fleet.cluster import RayLinks, deploy, start_ray
    from rnn_engine.fleet.deployment import make_application
    from rnn_engine.fleet.settings import Resources

    await asyncio.to_thread(start_ray, None, _MOST_REPLICAS, Resources(_CPUS))
    load = partial(_load_replica, hardware)
    application = make_application(load, replicas=replicas, slots=hardware.slots, resources=Resources(_CPUS))
    await asyncio.to_thread(deploy, _APPLICATION, application)
    links = RayLinks(_APPLICATION, owned=True)
    router = PrefixRouter() if routed else LeastBusyRouter()
    engine = await RemoteEngine.open(links, _make_front(), max_queued=_CLIENTS, router=router)
    while engine.info.num_slots < replicas * hardware.slots:
        await asyncio.sleep(0.1)
    async with served(engine, _CLIENTS) as port:
        yield port


async def _load_replica(hardware: Hardware, _place: ReplicaPlace) -> Engine:
    """Return the engine of a replica. Ray calls it in the replica's process."""
    return make_engine(hardware)


def _make_front() -> Front:
    """Return the server process's part of a modelled fleet: tokenizer, chat template and named states."""
    states = make_state_store(SHAPE, MODEL)
    return Front(WordTokenizer(SHAPE.vocab_size), WorldTemplate(), states, states.files)


async def ask(port: int, chains: Sequence[Sequence[Question]], seconds: float = float("inf")) -> list[Answer]:
    """Send all questions of a plan from another process, and return the answers; see `asking.ask_all`."""
    plan = {"port": port, "chains": [list(map(asdict, chain)) for chain in chains], "seconds": seconds}
    return [Answer(**answer) for answer in await run_elsewhere("tools.bench.fleet.asking", plan)]
