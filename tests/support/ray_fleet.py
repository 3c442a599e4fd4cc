"""Fleets on one Ray cluster, which ends with the tests."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import psutil
import ray
from ray import serve
from ray._common.utils import import_attr
from ray.serve.schema import ServeDeploySchema

from rnn_engine.cli.replicas import front_opener, load_replica
from rnn_engine.cli.session import EngineChoice
from rnn_engine.errors import RnnEngineError
from rnn_engine.fleet.cluster import RayLinks, deploy, start_ray
from rnn_engine.fleet.deployment import make_application
from rnn_engine.fleet.remote import RemoteEngine
from rnn_engine.fleet.settings import FleetSettings, Resources
from rnn_engine.loading.settings import StateSettings
from rnn_engine.telemetry import EngineCounters
from tests.support.fleet import replica_processes

REPLICAS = 2
SETTINGS = FleetSettings(REPLICAS, resources=Resources(cpus=0.1))
_MOST = 4  # models at a time
_STARTS = 5  # of Ray: a node ends itself if its agent, which imports much, is not there after 15 seconds


class RayFleets:
    """Fleets with two replicas of each model. Tests that soon ask for the same model again get the same replicas."""

    def __init__(self) -> None:
        """Start Ray on a thread that then ends, like a thread of an event loop's pool. Blocks."""
        for start in range(_STARTS):
            try:
                with ThreadPoolExecutor(1) as threads:
                    threads.submit(start_ray, SETTINGS).result()
                break
            except RnnEngineError:
                if start == _STARTS - 1:
                    raise
        self._names: dict[str, str] = {}  # of applications by what they serve, the last used last
        self._numbers = itertools.count()

    async def __call__(self, choice: EngineChoice, _: object = None, /) -> RemoteEngine:
        """Return a fleet with named states of its own. Its replicas have nothing left from earlier tests."""
        front = await asyncio.to_thread(front_opener(choice))
        name = await asyncio.to_thread(self._deploy, _shared(choice))
        engine = await RemoteEngine.open(RayLinks(name, owned=False), front, max_queued=choice.max_queued)
        await engine.drop_cache()
        return engine

    async def counters(self, choice: EngineChoice) -> dict[str, EngineCounters]:
        """Return the present counters of each replica."""
        links = RayLinks(self._names[repr(_shared(choice))], owned=False)
        return {report.name: report.counters for report in await links.survey() or ()}

    def processes(self, choice: EngineChoice) -> list[psutil.Process]:
        """Return the processes of a model's replicas."""
        return replica_processes(self._names[repr(_shared(choice))])

    async def build(self, described: Mapping[str, Any], args: Mapping[str, Any]) -> str:
        """Deploy the one application of a config file as Serve does, with other `args` and resources; return its name.

        Raises Serve's own error if the file is wrong.
        """
        [schema] = ServeDeploySchema.model_validate(described).applications
        built = import_attr(schema.import_path)({**schema.args, **args})
        [deployment] = schema.deployments
        options = {"num_replicas": deployment.num_replicas, "ray_actor_options": {"num_cpus": SETTINGS.resources.cpus}}
        root = built._bound_deployment
        assert root.name == deployment.name
        await asyncio.to_thread(deploy, schema.name, root.options(**options).bind(*root.init_args))
        return str(schema.name)

    def close(self) -> None:
        serve.shutdown()
        ray.shutdown()

    def _deploy(self, choice: EngineChoice) -> str:
        name = self._names.pop(repr(choice), None)
        if name is None:
            if len(self._names) == _MOST:
                serve.delete(self._names.pop(next(iter(self._names))))
            name = f"tests-{next(self._numbers)}"
            load = partial(load_replica, choice)
            deploy(name, make_application(load, SETTINGS))
        self._names[repr(choice)] = name
        return name


def _shared(choice: EngineChoice) -> EngineChoice:
    """Return the choice without its named states, which the front keeps and replicas don't load."""
    return replace(choice, states=StateSettings())
