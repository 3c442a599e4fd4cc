"""Messages between a front (server process) and a replica, as bytes that the transport copies without reading them."""

from __future__ import annotations

import pickle
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from rnn_engine.errors import InvalidRequestError, RnnEngineError, UnavailableError
from rnn_engine.interface import EngineInfo, EngineStats
from rnn_engine.requests import Event, GenerateRequest, Started
from rnn_engine.telemetry import EngineCounters, Health, SlotUse, Timing
from rnn_engine_states.cache.browse import SummaryChanges
from rnn_engine_states.cache.config import CacheStats

RETRY_SECONDS = 1.0  # after which another replica is likely to answer


class ReplicaLostError(UnavailableError):
    """The replica that ran a request is gone. Another one may run it from the start."""

    def __init__(self, replica: str, reason: str) -> None:
        super().__init__(f"the replica {replica} that ran the request is gone: {reason}", RETRY_SECONDS)


Outcome: TypeAlias = Event | RnnEngineError | None
"""A message about a request: an event, the error that ends it, or None if it ended without an error and `Finished`."""


@dataclass(frozen=True, slots=True)
class Report:
    """A replica's report to a server process: description, health, counters, slots and cache changes of its engine."""

    name: str  # no other replica of the deployment has it
    info: EngineInfo  # without folders and chat template: a front has its own
    stats: EngineStats
    health: Health
    counters: EngineCounters
    cache: CacheStats | None
    slots: tuple[SlotUse, ...]
    changes: SummaryChanges | None  # of its cache's summary; None if there is no summary, or not yet


def pack_request(request: GenerateRequest, wait_for_room: bool) -> bytes:
    """Pickle a request, with its deadline as seconds from now. Raises InvalidRequestError for a token mask."""
    if request.token_mask is not None:
        raise InvalidRequestError(
            "token_mask", request.token_mask, "null, since replicas run the requests; use `grammar`"
        )
    left = None if request.deadline is None else request.deadline - time.monotonic()
    return pickle.dumps((replace(request, deadline=None), left, wait_for_room), pickle.HIGHEST_PROTOCOL)


def unpack_request(data: bytes) -> tuple[GenerateRequest, bool]:
    """Return the request of `pack_request`, with its deadline by this clock, and True if it may wait for room."""
    request, left, wait_for_room = pickle.loads(data)
    if left is not None:
        request = replace(request, deadline=time.monotonic() + left)
    return request, wait_for_room


def pack_outcomes(outcomes: list[tuple[int, Outcome]]) -> bytes:
    """Pickle events and errors of several requests, each with the key (number) of its request."""
    return pickle.dumps((_monotonic_zero(), outcomes), pickle.HIGHEST_PROTOCOL)


def unpack_outcomes(data: bytes) -> list[tuple[int, Outcome]]:
    """Return what `pack_outcomes` pickled, with times by this clock, as exact as the machines' clocks agree."""
    zero, outcomes = pickle.loads(data)
    ahead = zero - _monotonic_zero()
    return [(key, _shifted(outcome, ahead) if type(outcome) is Started else outcome) for key, outcome in outcomes]


def _monotonic_zero() -> float:
    """Return the time of day, in Unix seconds, at which the clock of `time.monotonic` was 0."""
    return time.time() - time.monotonic()


def _shifted(started: Started, seconds: float) -> Started:
    timing = started.timing
    if timing is None:
        return started
    shifted = Timing(timing.arrived + seconds, timing.started + seconds, timing.first_token + seconds)
    return replace(started, timing=shifted)


def pack_question(method: str, *args: object, **named: object) -> bytes:
    """Pickle a call of a method of a replica's engine: the method's name and its arguments."""
    return pickle.dumps((method, args, named))


def pack_answer(value: object, error: RnnEngineError | None) -> bytes:
    """Pickle the outcome of a method call at a replica: the result `value`, or the error that the method raised."""
    return pickle.dumps((value, error), pickle.HIGHEST_PROTOCOL)


def unpack_answer(data: bytes) -> Any:  # noqa: ANN401 - the question says which type it has
    """Return the result that `pack_answer` pickled, or raise the error in its place."""
    value, error = pickle.loads(data)
    if error is not None:
        raise error
    return value


NOTHING_KNOWN: Mapping[str, int] = MappingProxyType({})


class Links(Protocol):
    """The interface by which a server process (front) calls the replicas of one deployment. For one event loop."""

    async def survey(self, known: Mapping[str, int] = NOTHING_KNOWN) -> Sequence[Report] | None:
        """Return a `Report` of each replica, with changes since `known`; None if not all answer in time."""

    def run(self, replica: str, front: str, key: int, call: bytes) -> Coroutine[Any, Any, None]:
        """Have `replica` run a pickled request to its end. May be cancelled. Raises ReplicaLostError if it is gone."""

    def parcels(self, replica: str, front: str) -> AsyncGenerator[bytes]:
        """Yield the pickled events of a front's requests until the replica is gone; see `Replica.parcels`."""

    async def hold(self, replica: str, front: str, key: int, held: bool) -> None:
        """Have `replica` stop or resume sending a request's events. Does nothing if the replica is gone."""

    async def ask(self, replica: str, question: bytes) -> bytes:
        """Send `replica` a pickled question about its cache; return the pickled answer. Raises ReplicaLostError."""

    async def close(self) -> None:
        """Disconnect from the replicas, and stop them if they were started for this server process alone."""
