"""From settings to a fleet: replicas deployed on Ray, and the engine that stands for them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack

from rnn_engine.fleet.cluster import RayLinks, check_application, deploy, remove, start_ray
from rnn_engine.fleet.deployment import LoadReplica, make_application
from rnn_engine.fleet.remote import Front, RemoteEngine
from rnn_engine.fleet.settings import FleetSettings


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

    Or take those of an application that is there, and leave them. `load` loads a replica's engine, with `slots` slots,
    and can be pickled. Raises what `start_ray`, `deploy`, `check_application` and `open_front` raise.
    """
    front = await asyncio.to_thread(open_front)
    owned = settings.application is None
    application = settings.application or f"{name}-{uuid.uuid4().hex[:8]}"  # others may serve the same model
    async with AsyncExitStack() as undo:
        undo.callback(front.close)
        await asyncio.to_thread(
            start_ray, settings.address, settings.most_replicas, settings.resources, settings.device
        )
        if owned:
            replicas = make_application(
                load,
                replicas=settings.replicas,
                scaling=settings.scaling,
                slots=slots,
                resources=settings.resources,
                drain_seconds=settings.drain_seconds,
            )
            undo.push_async_callback(asyncio.to_thread, remove, application)
            await asyncio.to_thread(deploy, application, replicas)
        else:
            await asyncio.to_thread(check_application, application)
        links = RayLinks(application, owned=owned)
        engine = await RemoteEngine.open(links, front, max_queued=max_queued)
        undo.pop_all()
        return engine
