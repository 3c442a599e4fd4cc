"""From settings to a fleet: replicas deployed on Ray, and the engine that stands for them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from rnn_engine.fleet.cluster import RayLinks, deploy, start_ray
from rnn_engine.fleet.deployment import LoadReplica, Resources, Scaling, make_application
from rnn_engine.fleet.remote import Front, RemoteEngine


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """How many replicas there are, and where."""

    replicas: int = 2
    scaling: Scaling | None = None  # None: always as many as `replicas`
    address: str | None = None  # of a Ray cluster; None starts one on this machine
    resources: Resources = field(default_factory=Resources)
    device: str = "auto"  # of each replica
    drain_seconds: float = 30.0  # in which a replica that leaves ends its requests

    @property
    def most_replicas(self) -> int:
        return self.replicas if self.scaling is None else self.scaling.most


async def open_fleet(
    name: str,
    load: LoadReplica,
    open_front: Callable[[], Front],
    settings: FleetSettings,
    *,
    slots: int,
    max_queued: int,
) -> RemoteEngine:
    """Deploy replicas of a model, wait until they run, and return the engine over them, which removes them.

    `load` loads a replica's engine, with `slots` slots, and can be pickled. Raises what `start_ray`, `deploy` and
    `open_front` raise.
    """
    front = await asyncio.to_thread(open_front)
    application = f"{name}-{uuid.uuid4().hex[:8]}"  # other commands may serve the same model on the cluster
    replicas = make_application(
        load,
        replicas=settings.replicas,
        scaling=settings.scaling,
        slots=slots,
        resources=settings.resources,
        drain_seconds=settings.drain_seconds,
    )
    try:
        await asyncio.to_thread(
            start_ray, settings.address, settings.most_replicas, settings.resources, settings.device
        )
        await asyncio.to_thread(deploy, application, replicas)
        return await RemoteEngine.open(RayLinks(application, owned=True), front, max_queued=max_queued)
    except BaseException:
        front.close()
        raise
