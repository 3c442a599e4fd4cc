"""The lines of the log: as text or as JSON, each with the id of the request that it belongs to, and one a request."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from rnn_engine.checks import check_finite
from server.telemetry.record import RequestRecord

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

_FIELDS = "fields"  # the attribute of a log record that holds more fields of its line
_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How the log is written, and which requests are slow."""

    format: LogFormat = "text"
    level: LogLevel = "info"
    slow_seconds: float | None = None  # a request that takes longer is logged as a warning; None = none is

    def __post_init__(self) -> None:
        """Raise InvalidRequestError for a number that is none."""
        check_finite("slow_seconds", self.slow_seconds)


@contextmanager
def request_logged_as(request_id: str) -> Iterator[None]:
    """Mark the log lines of the block, and of tasks begun there, with the id of a request."""
    token = _request_id.set(request_id)
    try:
        yield
    finally:
        _request_id.reset(token)


def log_request(record: RequestRecord, slow_seconds: float | None) -> None:
    """Log the one line of a request that has ended: no text of it, and of its key the name alone.

    Requests of those who watch the server, which come again and again, are logged for debugging only.
    """
    slow = slow_seconds is not None and record.seconds > slow_seconds
    level = logging.WARNING if slow else logging.DEBUG if record.is_routine else logging.INFO
    if not _log.isEnabledFor(level):
        return
    fields = _fields_of(record) | ({"slow": True} if slow else {})
    details = "".join(f" {name}={value}" for name, value in fields.items() if name not in _HEADING)
    _log.log(level, "%s %s %d%s", record.method, record.route, record.status, details, extra={_FIELDS: fields})


_HEADING = frozenset({"method", "route", "status"})


def _fields_of(record: RequestRecord) -> dict[str, object]:
    """Return what is known of a request; what is not is left out."""
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


class RequestIdFilter(logging.Filter):
    """Notes on each log record the id of the request in whose context it was made. Stands at a handler."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = _request_id.get()
        return True


class TextFormatter(logging.Formatter):
    """A line of text: time, level, message, and the request's id at its end."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, the name is logging's
        line = super().formatMessage(record)
        request_id = getattr(record, "request_id", None)
        return line if request_id is None else f"{line} request_id={request_id}"


class JsonFormatter(logging.Formatter):
    """A line with one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, object] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request_id := getattr(record, "request_id", None)) is not None:
            fields["request_id"] = request_id
        fields |= getattr(record, _FIELDS, {})
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def make_formatter(kind: LogFormat) -> logging.Formatter:
    return JsonFormatter() if kind == "json" else TextFormatter()
