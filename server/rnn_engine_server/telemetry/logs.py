"""The log's format: text or JSON, with the id of the request that each line belongs to."""

from __future__ import annotations

import json
import logging
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, get_args

from rnn_engine.bounds import POSITIVE_SECONDS, Kind, Settings, setting

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

LINE_FIELDS = "fields"  # the attribute of a log record that holds more fields of its line
current_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogSettings(Settings):
    """The format and the level of the log, and the duration from which a request is logged as slow."""

    format: LogFormat = setting("text", Kind(choices=get_args(LogFormat)), "--log-format").help(
        "How the lines on standard error are written; json is one object a line."
    )
    level: LogLevel = setting("info", Kind(choices=get_args(LogLevel)), "--log-level").help(
        "The lowest level that is logged. Requests have the level info, except those of /health and /metrics: debug."
    )
    slow_seconds: float | None = setting(None, POSITIVE_SECONDS).help(
        "Log a request that takes longer as a warning.  [default: none]"
    )


class RequestIdFilter(logging.Filter):
    """A logging filter that adds to each log record the id of the request that is being handled."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = current_request_id.get()
        return True


class TextFormatter(logging.Formatter):
    """Formats a log record as a line of text: time, level, message, then the request's id."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, the name is logging's
        line = super().formatMessage(record)
        request_id = getattr(record, "request_id", None)
        return line if request_id is None else f"{line} request_id={request_id}"


class JsonFormatter(logging.Formatter):
    """Formats a log record as a line with one JSON object."""

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
        fields |= getattr(record, LINE_FIELDS, {})
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def make_formatter(kind: LogFormat) -> logging.Formatter:
    return JsonFormatter() if kind == "json" else TextFormatter()
