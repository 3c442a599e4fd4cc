"""OpenTelemetry traces: one span for each HTTP request, and one for each phase of its engine requests.

OpenTelemetry's own environment variables switch traces on and name their destination. They need the extra
`rnn-engine[otel]`; OpenTelemetry is imported only if traces are switched on.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from rnn_engine.errors import InvalidRequestError
from rnn_engine.telemetry import RequestReport
from rnn_engine_server.telemetry.request_record import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

_EXPORTER = "OTEL_TRACES_EXPORTER"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_MOST_REPORTS = 64  # requests to the engine whose phases are in the trace of one HTTP request
_INSTALL = "an environment where `pip install 'rnn-engine[otel]'` was run"


class RequestTracer:
    """Emits the trace spans of an HTTP request, made from its record after it has ended. For one event loop."""

    def __init__(self, provider: TracerProvider, closing_seconds: float = 2.0) -> None:
        """Emit the spans of requests through OpenTelemetry's `provider`.

        `close` shuts it down, waiting at most `closing_seconds` for the last spans.
        """
        from opentelemetry import propagate, trace

        self._provider = provider
        self._closing_seconds = closing_seconds
        self._tracer = provider.get_tracer("rnn-engine")
        self._extract = propagate.extract
        self._server = trace.SpanKind.SERVER
        self._error = trace.StatusCode.ERROR
        self._inside = trace.set_span_in_context

    def trace(self, record: RequestRecord, headers: Mapping[str, str]) -> str | None:
        """Emit the spans of a request that has ended; return the id of its trace, None if it is not traced.

        The parent span is the one named by `headers`. Routine requests of those who watch the server are not traced.
        """
        if record.is_routine:
            return None
        offset = time.time() - time.monotonic()
        span = self._tracer.start_span(
            f"{record.method} {record.route}",
            context=self._extract(headers),
            kind=self._server,
            attributes=_attributes(record),
            start_time=_nanoseconds(record.begun + offset),
        )
        if span.is_recording():
            self._add_phases(span, record, offset)
            if record.abort_cause is not None:
                span.set_attribute("error.type", record.abort_cause)
                span.set_status(self._error)
        span.end(_nanoseconds(record.ended + offset))
        context = span.get_span_context()
        return f"{context.trace_id:032x}" if context.trace_flags.sampled else None

    def close(self) -> None:
        """Send the last spans, and give up after `closing_seconds`, since their receiver may not run. Blocks."""
        closing = threading.Thread(target=self._provider.shutdown, name="rnn-engine traces", daemon=True)
        closing.start()
        closing.join(self._closing_seconds)

    def _add_phases(self, parent: Span, record: RequestRecord, offset: float) -> None:
        for number, report in enumerate(record.reports[:_MOST_REPORTS]):
            for name, begun, ended, tokens in _phases(report):
                attributes = {"rnn_engine.request": number, **tokens}
                span = self._tracer.start_span(
                    name, self._inside(parent), attributes=attributes, start_time=_nanoseconds(begun + offset)
                )
                span.end(_nanoseconds(ended + offset))


def make_tracer(environment: Mapping[str, str] = os.environ) -> RequestTracer | None:
    """Return a tracer configured by OpenTelemetry's environment variables, or None if they configure no exporter.

    Raises InvalidRequestError if it asks for an exporter that is not installed.
    """
    name = _exporter_name(environment)
    if name is None:
        return None
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise InvalidRequestError(_EXPORTER, name, _INSTALL) from None
    found = {one.name: one for one in entry_points(group="opentelemetry_traces_exporter")}
    if name not in found:
        known = ", ".join(sorted(found))
        raise InvalidRequestError(_EXPORTER, name, f"one of none, {known}; or {_INSTALL}")
    resource = Resource.create({} if "OTEL_SERVICE_NAME" in environment else {"service.name": "rnn-engine"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(found[name].load()()))
    return RequestTracer(provider)


def _exporter_name(environment: Mapping[str, str]) -> str | None:
    """Return the entry point's name of the configured exporter of traces, or None if there is none.

    If the variables set only an endpoint, the exporter is OTLP's.
    """
    asked = environment.get(_EXPORTER) or ("otlp" if any(environment.get(name) for name in _ENDPOINTS) else "none")
    if asked == "none" or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if asked != "otlp":
        return asked
    protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), "http/protobuf")
    return "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"


def _attributes(record: RequestRecord) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "rnn_engine.request_id": record.id,
    }
    if record.reports:
        attributes |= {
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.completion_tokens,
            "rnn_engine.cached_tokens": record.cached_tokens,
        }
    return attributes


def _phases(report: RequestReport) -> Iterator[tuple[str, float, float, dict[str, int]]]:
    """Yield each phase of an engine request: name, start, end, and token counts as attributes."""
    timing = report.timing
    if timing is None:
        yield "queued", report.arrived, report.ended, {}
        return
    run = report.prompt_tokens - report.cached_tokens
    yield "queued", timing.arrived, timing.started, {}
    yield "prefill", timing.started, timing.first_token, {"rnn_engine.tokens": run}
    yield "decode", timing.first_token, report.ended, {"rnn_engine.tokens": report.completion_tokens}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
