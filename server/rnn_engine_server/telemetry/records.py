"""Records of HTTP requests, from which metrics, log lines, response headers and traces are made."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, TypeAlias, get_args

from aiohttp import web
from aiohttp.typedefs import Handler

from rnn_engine.telemetry import REQUEST_SECONDS, Histogram, Outcome, RequestReport, Timing, reports_to
from rnn_engine_server.auth.admission import PRINCIPAL
from rnn_engine_server.auth.keys import Principal, Scope
from rnn_engine_server.core.routing import SETTINGS, path_of, route_of
from rnn_engine_server.telemetry.logs import LINE_FIELDS, current_request_id
from rnn_engine_server.telemetry.traces import RequestTracer

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
_log = logging.getLogger(__name__)
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
    trace_id: str | None = None
    reports: list[RequestReport] = field(default_factory=list)  # of the requests to the engine that have ended

    @classmethod
    def of(cls, request: web.Request) -> RequestRecord:
        """Begin the record of an HTTP request.

        The id that the client sent is used if it has 1 to 128 visible ASCII characters.
        """
        route = route_of(request)
        name = UNMATCHED if route is None else re.sub(r"\{(\w+):[^}]*\}", r"{\1}", route.path)
        given = request.headers.get(REQUEST_ID, "")
        return cls(
            request.method,
            name,
            given if _CLIENTS_ID.fullmatch(given) else uuid.uuid4().hex,
            request.remote,
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
        """Count a request that was rejected because its client has too few requests or tokens left.

        `what` is "requests" or "tokens".
        """
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


_MOST = 128


@dataclass(frozen=True, slots=True)
class RecentReport:
    """The report of an ended engine request, with its HTTP request's id and the name of that request's API key."""

    request_id: str
    key: str | None
    report: RequestReport


class RecentReports:
    """The reports of the latest ended engine requests, at most `_MOST`. For the event loop."""

    def __init__(self) -> None:
        self._reports: deque[RecentReport] = deque(maxlen=_MOST)

    def add(self, record: RequestRecord) -> None:
        """Add the reports of an ended HTTP request's engine requests."""
        self._reports.extend(RecentReport(record.id, record.key, report) for report in record.reports[-_MOST:])

    def seen_by(self, principal: Principal) -> Sequence[RecentReport]:
        """Return the reports that a principal may see, latest last: those of its own requests, or all for an admin."""
        sees_all = principal.scope is Scope.ADMIN
        return [each for each in self._reports if sees_all or each.key == principal.name]


# What the application and each request carry: counts, the tracer, the record and the last reports.

HTTP_COUNTERS = web.AppKey("http_counters", HttpCounters)
TRACER = web.AppKey("tracer", RequestTracer)
"""Absent if there are no traces."""
RECORD = web.RequestKey("record", RequestRecord)
RECENT = web.AppKey("recent", RecentReports)

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
    details = "".join(f" {name}={value}" for name, value in fields.items() if name not in _HEADING)
    _log.log(level, "%s %s %d%s", record.method, record.route, record.status, details, extra={LINE_FIELDS: fields})


_HEADING = frozenset({"method", "route", "status"})


def _fields_of(record: RequestRecord) -> dict[str, object]:
    """Return the fields to log about a request, without those that are None."""
    fields: dict[str, object | None] = {
        "method": record.method,
        "route": record.route,
        "status": record.status,
        "abort": record.abort_cause,
        "key": record.key,
        "client": record.client,
        "trace_id": record.trace_id,
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


# The middleware that records every request, also failed ones: for metrics, log, headers and traces.

_ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_REQUEST_ID = "request-id"  # the header that Anthropic's clients read


@web.middleware
async def telemetry_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Count a request, time it, and log it when it has ended. Stands before all other middleware."""
    record = request[RECORD] = RequestRecord.of(request)
    with request_logged_as(record.id), request.app[HTTP_COUNTERS].running(record):
        try:
            with reports_to(record.reports.append):
                response = await handler(request)
            record.status = response.status
            return response
        except ConnectionError as error:
            record.is_cut_off = isinstance(error.__cause__, TimeoutError)
            raise
        finally:
            record.ended = time.monotonic()
            principal = request.get(PRINCIPAL)
            record.key = principal.name or None if principal is not None else None
            request.app[RECENT].add(record)
            if (tracer := request.app.get(TRACER)) is not None:
                record.trace_id = tracer.trace(record, request.headers)
            log_request(record, request.app[SETTINGS].logs.slow_seconds)


async def set_telemetry_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the request's id to an answer's headers, and its times if the answer is no stream.

    A signal handler of aiohttp's.
    """
    record = request.get(RECORD)
    if record is None:
        return
    response.headers[REQUEST_ID] = record.id
    if path_of(request).startswith(_ANTHROPIC_PATH):
        response.headers[_ANTHROPIC_REQUEST_ID] = record.id
    if isinstance(response, web.Response):
        response.headers.update(timing_headers(record))
