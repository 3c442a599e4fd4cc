"""A call of a route as its handler sees it: the client, its limits, and what the headers of the answer report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from aiohttp import web

from rnn_engine.interface import EngineLike
from rnn_engine.requests import Client
from rnn_engine_server.auth.keys import Principal
from rnn_engine_server.auth.quotas import Spending
from rnn_engine_server.core.errors import RefusalError
from rnn_engine_server.core.memory import MemoryLease
from rnn_engine_server.core.routing import SETTINGS, App, Route
from rnn_engine_server.core.settings import Limits
from rnn_engine_server.models.registry import ModelUse
from rnn_engine_server.telemetry.request_record import RequestRecord

RECORD = web.RequestKey("record", RequestRecord)
"""The record of an HTTP request."""


@dataclass(slots=True, eq=False)
class Call:
    """One call of a route. It has come over a connection, or the server makes it itself."""

    app: App
    route: Route
    principal: Principal
    client: Client  # under whose name it waits for slots, and counts against the rates of `principal`
    record: RequestRecord
    path: str  # for which it was sent, decoded
    parameters: Mapping[str, str] = field(default_factory=dict)  # in the path
    query: Mapping[str, str] = field(default_factory=dict)
    deadline: float = math.inf  # when what it generates must end at the latest, by `time.monotonic`
    origin: object = None  # for which part of the server it is made
    http: web.Request | None = None  # with which it has come
    text: bytes | bytearray = b""  # of the body, if the route keeps it
    left_out: set[str] = field(default_factory=set)  # unknown fields of the body and parts of its schemas: ignored
    spending: Spending | None = None  # of the client's quota; None if there is no quota, or no engine was used
    use: ModelUse | None = None  # of a model; None if the route uses none
    lease: MemoryLease = field(init=False)
    ending: ExitStack = field(default_factory=ExitStack)  # what is done when the call has ended

    @property
    def model(self) -> ModelUse:
        """The use of the model that the call names."""
        assert self.use is not None, self.route.path
        return self.use

    @property
    def engine(self) -> EngineLike:
        """The engine of the model that the call names, as its principal sees it."""
        return self.model.engine

    @property
    def limits(self) -> Limits:
        """The server's limits on what one call may ask for."""
        return self.app[SETTINGS].limits

    @property
    def request(self) -> web.Request:
        """The HTTP request of the call, for routes that read more of it than a body in JSON."""
        assert self.http is not None, self.route.path
        return self.http

    def hold_more(self, what: str, num_bytes: int) -> None:
        """Add `num_bytes` to the memory that the call holds. `what` names their use in errors.

        Raises OverloadedError if calls hold too much memory, and RefusalError if one may not hold as much.
        """
        if num_bytes > (most := self.lease.budget.most_each):
            raise too_large(f"{what} would take about {num_bytes} bytes of memory", most)
        self.lease.hold(self.lease.num_bytes + num_bytes)


def too_large(found: str, most: int) -> RefusalError:
    """Return the error for a body, or what it asks for, that takes more than `most` bytes."""
    return RefusalError(413, f"{found}; expected at most {most}")
