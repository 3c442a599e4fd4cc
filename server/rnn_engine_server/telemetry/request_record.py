"""The record of one HTTP request, from which metrics, log lines and response headers are made."""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, TypeAlias

from rnn_engine.telemetry import Outcome, RequestReport, Timing
from rnn_engine_server.core.routing import Route

AbortCause: TypeAlias = Literal["client_left", "timeout", "overloaded", "failed_step", "unavailable", "closed", "error"]
"""Why an answer was refused or cut short, though the client asked for nothing wrong."""

CLIENT_LEFT = 499
"""The status of a request whose client left before it was answered."""

UNMATCHED = "unmatched"
"""The route of requests that match none."""

REQUEST_ID = "X-Request-Id"

_OF_OUTCOMES: dict[Outcome, AbortCause] = {
    Outcome.FAILED_STEP: "failed_step",
    Outcome.OVERLOADED: "overloaded",
    Outcome.TIMED_OUT: "timeout",
    Outcome.UNAVAILABLE: "unavailable",
    Outcome.CLOSED: "closed",
    Outcome.ERROR: "error",
}
_OF_STATUSES: dict[int, AbortCause] = {
    CLIENT_LEFT: "client_left",
    408: "timeout",
    429: "overloaded",
    503: "closed",
    504: "timeout",
}
_CLIENTS_ID = re.compile(r"[!-~]{1,128}")


@dataclass(slots=True)
class RequestRecord:
    """The record of one HTTP request: its route, client, status and times, and reports of its engine requests."""

    method: str
    route: str  # a template, such as `/v1/states/{name}`
    id: str = ""
    client: str | None = None  # its address
    is_routine: bool = False  # asked for again and again by those who watch the server
    begun: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    status: int = CLIENT_LEFT
    is_cut_off: bool = False  # the server ended an answer that had begun, for it took too long
    key: str | None = None  # the name of its API key
    reports: list[RequestReport] = field(default_factory=list)  # of the requests to the engine that have ended

    @classmethod
    def of(cls, method: str, route: Route | None, given: str = "", client: str | None = None) -> RequestRecord:
        """Begin the record of a request for `route`.

        `given` is the id that its client at the address `client` sent; it is used if it has 1 to 128 visible ASCII
        characters.
        """
        name = UNMATCHED if route is None else re.sub(r"\{(\w+):[^}]*\}", r"{\1}", route.path)
        return cls(
            method,
            name,
            given if _CLIENTS_ID.fullmatch(given) else uuid.uuid4().hex,
            client,
            route is not None and (route.always or route.routine),
        )

    @property
    def seconds(self) -> float:
        """The time in seconds from the HTTP request's beginning to its end."""
        return self.ended - self.begun

    @property
    def prompt_tokens(self) -> int:
        return sum(report.prompt_tokens for report in self.reports)

    @property
    def cached_tokens(self) -> int:
        return sum(report.cached_tokens for report in self.reports)

    @property
    def completion_tokens(self) -> int:
        return sum([report.completion_tokens for report in self.reports])

    @property
    def queue_seconds(self) -> float | None:
        """How long the engine request that started first had waited in the queue, in seconds; None if none started."""
        first = min(self._timings, key=attrgetter("started"), default=None)
        return None if first is None else first.started - first.arrived

    @property
    def first_token_seconds(self) -> float | None:
        """The seconds from the HTTP request's beginning until the first token of any answer; None without a token."""
        return min((timing.first_token - self.begun for timing in self._timings), default=None)

    @property
    def inference_seconds(self) -> float | None:
        """The time from the start of the first engine request to the end of the last; None if none started."""
        started = min([timing.started for timing in self._timings], default=None)
        return None if started is None else max([report.ended for report in self.reports]) - started

    @property
    def _timings(self) -> list[Timing]:
        return [report.timing for report in self.reports if report.timing is not None]

    @property
    def abort_cause(self) -> AbortCause | None:
        """The reason why the server rejected the request or cut its answer short, for metrics and logs.

        None if the answer is whole, or was refused because of what the client sent.
        """
        if self.is_cut_off:
            return "timeout"
        outcomes = {report.outcome for report in self.reports}
        failure = next((cause for outcome, cause in _OF_OUTCOMES.items() if outcome in outcomes), None)
        return failure or _OF_STATUSES.get(self.status) or ("error" if self.status >= 500 else None)
