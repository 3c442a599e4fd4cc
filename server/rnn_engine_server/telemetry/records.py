"""The records of HTTP requests, and what is made of them: counts for metrics, log lines and response headers."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, TypeAlias, get_args

from rnn_engine.telemetry import REQUEST_SECONDS, Histogram, Outcome, RequestReport, Timing, reports_to
from rnn_engine_server.core.routing import SETTINGS, App, AppKey, Route
from rnn_engine_server.telemetry.logs import LINE_FIELDS, current_request_id

_log = logging.getLogger(__name__)

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


def timing_headers(record: RequestRecord) -> dict[str, str]:
    """Return response headers with the times of a complete answer, in milliseconds; none if no model was run."""
    queue_seconds, inference_seconds = record.queue_seconds, record.inference_seconds
    if queue_seconds is None or inference_seconds is None:
        return {}
    tokens = max(record.completion_tokens, 1)
    seconds = {
        "X-Queue-Time": queue_seconds,
        "X-Inference-Time": inference_seconds,
        "X-Time-Per-Token": inference_seconds / tokens,
    }
    return {name: f"{round(value * 1000)}" for name, value in seconds.items()}


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
_OTHER = "other"


class HttpCounters:
    """Counts of HTTP requests since the start, by labels with few values, whatever clients send. For the event loop."""

    def __init__(self) -> None:
        self.in_progress = 0
        self.requests: Counter[tuple[str, str, int]] = Counter()  # method, route, status
        self.seconds: dict[str, Histogram] = {}  # route -> the whole time of its requests
        self.over_quota = {"requests": 0, "tokens": 0}  # refusals, by what the client had too little of
        self.aborted: dict[AbortCause, int] = dict.fromkeys(get_args(AbortCause), 0)

    def refused_by_quota(self, what: str) -> None:
        """Count a request that was rejected because its client has too few "requests" or "tokens" left."""
        self.over_quota[what] += 1

    @contextmanager
    def running(self, record: RequestRecord) -> Iterator[None]:
        """Count a request as in progress during a `with` block, and then as ended with the values in `record`."""
        self.in_progress += 1
        try:
            yield
        finally:
            self.in_progress -= 1
            self.ended(record)

    def ended(self, record: RequestRecord) -> None:
        """Count an ended HTTP request by its route and status, and add its duration to the histogram."""
        method = record.method if record.method in _METHODS else _OTHER
        self.requests[method, record.route, record.status] += 1
        if record.route not in self.seconds:
            self.seconds[record.route] = Histogram(REQUEST_SECONDS)
        self.seconds[record.route].add(record.seconds)
        if (cause := record.abort_cause) is not None:
            self.aborted[cause] += 1


# What the application carries.

HTTP_COUNTERS = AppKey("http_counters", HttpCounters)

# The log: the id of a request on each of its lines, and one line for each request.


@contextmanager
def request_logged_as(request_id: str) -> Iterator[None]:
    """Add the id of a request to the log lines of a `with` block and of the tasks started in it."""
    token = current_request_id.set(request_id)
    try:
        yield
    finally:
        current_request_id.reset(token)


def log_request(record: RequestRecord, slow_seconds: float | None) -> None:
    """Log one line about a request that has ended, without texts of the request; of its API key only the name.

    Routine requests of those who watch the server are logged at the level DEBUG, except slow ones.
    """
    slow = slow_seconds is not None and record.seconds > slow_seconds
    level = logging.WARNING if slow else logging.DEBUG if record.is_routine else logging.INFO
    if not _log.isEnabledFor(level):
        return
    fields = _fields_of(record) | ({"slow": True} if slow else {})
    details = "".join(f" {name}={value}" for name, value in fields.items() if name not in ("method", "route", "status"))
    _log.log(level, "%s %s %d%s", record.method, record.route, record.status, details, extra={LINE_FIELDS: fields})


def _fields_of(record: RequestRecord) -> dict[str, object]:
    """Return the fields to log about a request, without those that are None."""
    fields: dict[str, object | None] = {
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "abort": record.abort_cause,
        "key": record.key,
        "client": record.client,
    }
    if record.reports:
        fields |= {
            "tokens_in": record.prompt_tokens,
            "tokens_cached": record.cached_tokens,
            "tokens_out": record.completion_tokens,
            "queue_ms": _milliseconds(record.queue_seconds),
            "ttft_ms": _milliseconds(record.first_token_seconds),
        }
    fields["total_ms"] = _milliseconds(record.seconds)
    return {name: value for name, value in fields.items() if value is not None}


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


@contextmanager
def recorded(app: App, record: RequestRecord) -> Iterator[None]:
    """Count, time and log a request that runs in a `with` block, which sets the record's status and key."""
    with request_logged_as(record.id), app[HTTP_COUNTERS].running(record):
        try:
            with reports_to(record.reports.append):
                yield
        finally:
            record.ended = time.monotonic()
            log_request(record, app[SETTINGS].logs.slow_seconds)
