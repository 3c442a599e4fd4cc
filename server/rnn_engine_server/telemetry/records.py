"""What is made of the records of HTTP requests: counts for metrics, log lines and response headers."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

from rnn_engine.telemetry import REQUEST_SECONDS, Histogram, reports_to
from rnn_engine_server.core.routing import SETTINGS, App, AppKey
from rnn_engine_server.telemetry.logs import LINE_FIELDS, current_request_id
from rnn_engine_server.telemetry.request_record import AbortCause, RequestRecord

_log = logging.getLogger(__name__)


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
