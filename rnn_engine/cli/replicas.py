"""Start or load the replicas of `rnn-engine fleet`, and make the application for Ray Serve (deploy/serve.yaml)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, PositiveInt

from rnn_engine.bounds import MAX_QUEUED
from rnn_engine.cli.session import EngineChoice, load_engine
from rnn_engine.engine import Engine
from rnn_engine.fleet.settings import FleetSettings, ReplicaPlace, device_at
from rnn_engine.forward import Progress
from rnn_engine.hub import model_name
from rnn_engine.loading.settings import LoadSettings, StateSettings
from rnn_engine_states.cache.config import CacheConfig
from rnn_engine_states.shared.config import StoreConfig, StoreUrl

if TYPE_CHECKING:
    from rnn_engine.fleet.remote import Front, RemoteEngine


async def start_fleet(settings: FleetSettings, choice: EngineChoice, progress: Progress) -> RemoteEngine:
    """Start the replicas of one model, or connect to them; return the engine that runs requests on them."""
    from rnn_engine.fleet.cluster import open_fleet

    progress("starting replicas", 0, settings.replicas)
    choice = replace(choice, model=choice.model.absolute())
    name, load = choice.name or model_name(choice.model), partial(load_replica, choice)
    return await open_fleet(name, load, front_opener(choice), settings, max_queued=choice.max_queued)


def front_opener(choice: EngineChoice) -> Callable[[], Front]:
    """Return a function that opens, in the server's process, a model's tokenizer, chat template and named states."""
    from rnn_engine.fleet.remote import open_front

    return partial(
        open_front,
        choice.model,
        choice.loading,
        states=choice.states,
        store=None if choice.cache is None else choice.cache.store,
    )


async def load_replica(choice: EngineChoice, place: ReplicaPlace) -> Engine:
    """Load the engine of one replica, in its own process, with a device and a folder of the cache of its own."""
    cache = choice.cache
    if cache is not None and cache.disk is not None:
        cache = replace(cache, disk=replace(cache.disk, folder=cache.disk.folder / f"replica-{place.number}"))
    most = 2 * choice.max_queued + choice.slots  # a place that is free in the front may not be free here yet
    loading = replace(choice.loading, device=device_at(place, choice.loading.device))
    return await load_engine(replace(choice, loading=loading, cache=cache, states=StateSettings(), max_queued=most))


class ReplicaArgs(BaseModel):
    """The settings of a replica in a config file of Ray Serve. They are options of `fleet` with the same defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Path  # the same on each machine
    tokenizer: str = "auto"
    device: str = "auto"
    weights: str | None = None
    slots: PositiveInt = 8
    max_queued: PositiveInt = MAX_QUEUED
    store: str | None = None


def application(args: dict[str, Any]) -> Any:  # noqa: ANN401 - an application of Ray Serve's
    """Return a model's replicas for Ray Serve, which calls this with the `args` of a config file."""
    from rnn_engine.fleet.deployment import make_application

    given = ReplicaArgs.model_validate(args)
    store = None if given.store is None else StoreConfig(StoreUrl.parse(given.store))
    loading = LoadSettings(given.device, given.tokenizer, weights=given.weights)
    choice = EngineChoice(given.model, loading, given.slots, CacheConfig(store=store), max_queued=given.max_queued)
    return make_application(partial(load_replica, choice), FleetSettings(replicas=1))
