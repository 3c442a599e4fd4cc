"""Counts of the HTTP requests of one application."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

from rnn_engine.telemetry import REQUEST_SECONDS, Histogram
from server.telemetry.record import AbortCause, RequestRecord

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
_OTHER = "other"


class HttpCounters:
    """Counts since the start, by values of which there are few, whatever clients send. For the event loop."""

    def __init__(self) -> None:
        self.in_progress = 0
        self.requests: Counter[tuple[str, str, int]] = Counter()  # method, route, status
        self.seconds: dict[str, Histogram] = {}  # route -> the whole time of its requests
        self.over_quota = {"requests": 0, "tokens": 0}  # refusals, by what the client had too little of
        self.aborted: dict[AbortCause, int] = dict.fromkeys(get_args(AbortCause), 0)

    def refused_by_quota(self, what: str) -> None:
        """Count a request of a client that has too few `requests` or `tokens` left."""
        self.over_quota[what] += 1

    @contextmanager
    def running(self, record: RequestRecord) -> Iterator[None]:
        """Count a request as in progress while the block runs, and then by what `record` says of it."""
        self.in_progress += 1
        try:
            yield
        finally:
            self.in_progress -= 1
            self.ended(record)

    def ended(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        method = record.method if record.method in _METHODS else _OTHER
        self.requests[method, record.route, record.status] += 1
        if record.route not in self.seconds:
            self.seconds[record.route] = Histogram(REQUEST_SECONDS)
        self.seconds[record.route].add(record.seconds)
        if (cause := record.abort_cause) is not None:
            self.aborted[cause] += 1
