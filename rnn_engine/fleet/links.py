"""How a front reaches the replicas; what Ray does for it, and what the tests put in its place."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from rnn_engine.fleet.wire import Report

NOTHING_KNOWN: Mapping[str, int] = MappingProxyType({})


class Links(Protocol):
    """The way to all replicas of one deployment. For one event loop."""

    async def survey(self, known: Mapping[str, int] = NOTHING_KNOWN) -> Sequence[Report] | None:
        """Return what each replica that takes requests tells of itself; None where not all answer in time.

        `known` has by replica the version of its cache's summary that is known; what has changed since is told.
        """
        ...

    def run(self, replica: str, front: str, key: int, call: bytes) -> Coroutine[Any, Any, None]:
        """Have a replica run a request; see `Replica.run`. Being cancelled cancels the request there.

        Raises ReplicaLostError where the replica is gone.
        """
        ...

    def parcels(self, replica: str, front: str) -> AsyncGenerator[bytes]:
        """Yield what becomes of the requests of `front`; see `Replica.parcels`.

        Ends, or raises, where the replica is gone.
        """
        ...

    async def hold(self, replica: str, front: str, key: int, held: bool) -> None:
        """See `Replica.hold`. A replica that is gone is ignored."""
        ...

    async def ask(self, replica: str, question: bytes) -> bytes:
        """Return a replica's answer; see `Replica.ask`. Raises ReplicaLostError where the replica is gone."""
        ...

    async def close(self) -> None:
        """Let go of the replicas; stop them where they were started for this front alone."""
        ...
