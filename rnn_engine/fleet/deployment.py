"""Deploy engine replicas on Ray Serve, with a router that sends each call to the replica that the call names."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TypeAlias

from ray import get_runtime_context, serve
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from rnn_engine.engine import Engine
from rnn_engine.fleet.replica import Replica
from rnn_engine.fleet.settings import FleetSettings, ReplicaPlace
from rnn_engine.fleet.wire import ReplicaLostError
from rnn_engine.loading.parts import freeze_modules

LoadReplica: TypeAlias = Callable[[ReplicaPlace], Awaitable[Engine]]
"""A function that loads a replica's engine in the replica's process, given its place in the fleet. Can be pickled."""

NAME = "replica"  # of the deployment in its application
_MOST_STARTS = 3  # of a replica that fails while it loads, before the deployment counts as failed
_MOST_CALLS = 100_000  # at a time: the engine bounds its requests itself
_CHECK_SECONDS = 2.0  # between two of Serve's checks that a replica lives


class EngineReplica:
    """What Ray Serve deploys: it owns a replica's engine. Calls begin with the replica's name, for the router."""

    async def __init__(self, load: LoadReplica) -> None:  # type: ignore[misc] # Serve awaits it
        """Load the replica's engine by calling `load`. Ray Serve sends calls only after this returns."""
        freeze_modules()
        context = serve.get_replica_context()
        gpus = get_runtime_context().get_accelerator_ids()["GPU"]
        self._engine = await load(ReplicaPlace(context.rank.rank, context.rank.local_rank, tuple(map(str, gpus))))
        self._replica = Replica(self._engine, context.replica_id.unique_id)

    async def run(self, _replica: str, front: str, key: int, call: bytes) -> None:
        await self._replica.run(front, key, call)

    async def parcels(self, _replica: str, front: str) -> AsyncGenerator[bytes]:
        async for parcel in self._replica.parcels(front):
            yield parcel

    async def hold(self, _replica: str, front: str, key: int, held: bool) -> None:
        await self._replica.hold(front, key, held)

    async def ask(self, _replica: str, question: bytes) -> bytes:
        return await self._replica.ask(question)

    async def report(self, known: Mapping[str, int]) -> bytes:
        return await self._replica.report(known)

    async def check_health(self) -> None:
        """Raise RuntimeError if the engine has failed for good, so that Ray Serve starts another replica."""
        health = self._engine.health()
        if health.status == "failed":
            raise RuntimeError(health.reason)

    async def __del__(self) -> None:
        """Save the cache and free the device. Serve calls this after the replica's last call has ended."""
        await self._replica.close()


class NamedReplicaRouter(RequestRouter):
    """A request router for Ray Serve that sends a call to the replica that its first argument names.

    It does so even if that replica is about to leave. `RemoteEngine` decides beforehand which replica runs a request.
    It has the prompt, and knows at once how many of its requests each replica has; a router would have to ask the
    replicas. A call to a replica that has died raises ReplicaLostError at once: Serve routes few calls at a time, and a
    call that waits blocks the others.
    """

    def initialize_state(self, **_: object) -> None:
        self._known: dict[str, RunningReplica] = {}

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._known |= {replica.replica_id.unique_id: replica for replica in replicas}

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._known.pop(replica_id.unique_id, None)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],  # without those about to leave
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        assert pending_request is not None
        if not pending_request.future.done():
            name = pending_request.args[0]
            found = self._known.get(name)
            if found is not None:
                self._fulfill_next_pending_request(found, pending_request.metadata)
            else:
                self._remove_pending_request_from_indices(pending_request)
                pending_request.future.set_exception(ReplicaLostError(name, "it has died"))
        return [candidate_replicas]  # Serve then sees that the call is settled, and asks none of them


def make_application(load: LoadReplica, settings: FleetSettings) -> serve.Application:
    """Return the application of a fleet's replicas. One that is removed finishes its requests first."""
    resources = settings.resources
    deployment = serve.deployment(
        EngineReplica,
        name=NAME,
        num_replicas=settings.replicas,
        max_ongoing_requests=_MOST_CALLS,
        health_check_period_s=_CHECK_SECONDS,
        max_constructor_retry_count=_MOST_STARTS,
        graceful_shutdown_timeout_s=settings.drain_seconds,
        graceful_shutdown_wait_loop_s=0.2,
        ray_actor_options={"num_cpus": resources.cpus, "num_gpus": resources.gpus},
        request_router_config=RequestRouterConfig(request_router_class=NamedReplicaRouter),
    )
    return deployment.bind(load)
