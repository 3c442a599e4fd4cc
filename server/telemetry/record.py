"""What is known of one HTTP request while it runs, for metrics, log and traces alike."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from aiohttp import web

from rnn_engine.telemetry import Outcome, RequestReport
from server.http.routing import route_of

CLIENT_LEFT = 499
"""The status of a request whose client left before it was answered."""

UNMATCHED = "unmatched"
"""The route of requests for which there is none."""

_FAILURES = (Outcome.FAILED_STEP, Outcome.OVERLOADED, Outcome.UNAVAILABLE, Outcome.CLOSED, Outcome.ERROR)
_CAUSES = {
    CLIENT_LEFT: "client_left",
    408: "timeout",
    429: Outcome.OVERLOADED.value,
    503: Outcome.CLOSED.value,
    504: "timeout",
}


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request: what was asked for, and how its requests to the engine went."""

    method: str
    route: str  # a template, such as `/v1/states/{name}`
    begun: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    status: int = CLIENT_LEFT
    reports: list[RequestReport] = field(default_factory=list)  # of the requests to the engine that have ended

    @property
    def seconds(self) -> float:
        """How long the request took."""
        return self.ended - self.begun

    @property
    def abort_cause(self) -> str | None:
        """Why the answer was refused or cut short; None where it is whole, or refused for what the client sent."""
        outcomes = {report.outcome for report in self.reports}
        failure = next((outcome.value for outcome in _FAILURES if outcome in outcomes), None)
        return failure or _CAUSES.get(self.status) or ("error" if self.status >= 500 else None)


def route_name(request: web.Request) -> str:
    """Return the first path of the route that a request is for, without the patterns that its parts must match."""
    route = route_of(request)
    return UNMATCHED if route is None else re.sub(r"\{(\w+):[^}]*\}", r"{\1}", route.path)
