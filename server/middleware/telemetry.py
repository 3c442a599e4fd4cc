"""Record every request, whatever becomes of it."""

from __future__ import annotations

import time

from aiohttp import web
from aiohttp.typedefs import Handler

from rnn_engine.telemetry import reports_to
from server.http.context import HTTP_COUNTERS
from server.telemetry.record import RequestRecord, route_name


@web.middleware
async def telemetry_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Count a request and time it. Stands before all other middleware."""
    counters = request.app[HTTP_COUNTERS]
    record = RequestRecord(request.method, route_name(request))
    counters.in_progress += 1
    try:
        with reports_to(record.reports.append):
            response = await handler(request)
        record.status = response.status
        return response
    finally:
        record.ended = time.monotonic()
        counters.in_progress -= 1
        counters.ended(record)
