"""Record every request, whatever becomes of it: for the metrics, the log, the headers of its answer and traces."""

from __future__ import annotations

import time

from aiohttp import web
from aiohttp.typedefs import Handler

from rnn_engine.telemetry import reports_to
from server.http.context import HTTP_COUNTERS, PRINCIPAL, RECENT, RECORD, SETTINGS, TRACER
from server.telemetry.logs import log_request, request_logged_as
from server.telemetry.record import REQUEST_ID, RequestRecord, timing_headers

_ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_REQUEST_ID = "request-id"  # where Anthropic's clients look for it


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
    """Tell the request's id and, where the answer comes whole, how long it took. A signal handler of aiohttp's."""
    record = request.get(RECORD)
    if record is None:
        return
    response.headers[REQUEST_ID] = record.id
    if request.path.startswith(_ANTHROPIC_PATH):
        response.headers[_ANTHROPIC_REQUEST_ID] = record.id
    if isinstance(response, web.Response):
        response.headers.update(timing_headers(record))
