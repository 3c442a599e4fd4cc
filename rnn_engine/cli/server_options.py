"""Options of a server: who may send requests, the limits of requests and connections, and the log."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import get_args

import click

from rnn_engine.cli.options import AddOption, FiniteRange, as_bad_parameter, option_group, parse_size, size_in_words
from rnn_engine_server.auth.keys import ApiKey, check_key_name, read_keys
from rnn_engine_server.auth.rates import UNBOUNDED, Rate, parse_rate
from rnn_engine_server.auth.tls import TlsFiles
from rnn_engine_server.core.settings import BOUNDS, AuthSettings, Bound, ConnectionSettings, Limits
from rnn_engine_server.telemetry.logs import LogFormat, LogLevel, LogSettings, RequestIdFilter, make_formatter


def _parse_origins(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """A click callback that checks the origins of web pages that may call the server."""
    if not texts:
        return ()
    from rnn_engine_server.auth.admission import check_origin

    with as_bad_parameter():
        return tuple(map(check_origin, texts))


def _parse_rate(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Rate:
    """A click callback that parses an API key's rate limit, such as `requests=60,tokens=100000`; None is no limit."""
    with as_bad_parameter():
        return UNBOUNDED if text is None else parse_rate(text)


def _app_key(text: str) -> ApiKey:
    name, equals, key = text.partition("=")
    if not equals:
        raise click.UsageError("--app-key has no name; expected NAME=KEY")  # the text may be a key
    return ApiKey.of(key, check_key_name(name))


def _make_doors(
    api_key: str | None,
    key_file: Path | None,
    app_keys: tuple[str, ...],
    open_to_all: bool,
    allowed_hosts: tuple[str, ...],
    cors_origins: tuple[str, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    share_cache: bool,
    rate: Rate,
) -> AuthSettings:
    keys = () if key_file is None else read_keys(key_file)
    if api_key is not None:
        keys = (ApiKey.of(api_key), *keys)
    keys = (*map(_app_key, app_keys), *keys)
    if key_file is not None and not keys:
        raise click.UsageError(f"--api-key-file {key_file} contains no key")
    if tls_key is not None and tls_cert is None:
        raise click.UsageError("--tls-key needs --tls-cert, the certificate that it belongs to")
    tls = None if tls_cert is None else TlsFiles(tls_cert, tls_key)
    return AuthSettings(keys, open_to_all, allowed_hosts, cors_origins, tls, share_cache, rate)


door_options = option_group(
    "Access",
    _make_doors,
    click.option(
        "--api-key",
        metavar="KEY",
        envvar="RNN_ENGINE_API_KEY",
        show_envvar=True,
        help="Accept only requests with the header `Authorization: Bearer KEY`. Other users of this machine can see "
        "this option in the list of processes, but not the environment variable.  [default: accept requests from this "
        "machine]",
    ),
    click.option(
        "--api-key-file",
        "key_file",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="RNN_ENGINE_API_KEY_FILE",
        show_envvar=True,
        help="A file of API keys, one a line as NAME:SCOPE KEY; `rnn-engine key` makes such lines.",
    ),
    click.option(
        "--key-rate",
        "rate",
        callback=_parse_rate,
        metavar="RATE",
        help="The most that each API key, or each address without keys, may use in a minute: "
        "requests=60,tokens=100000, or one of the two. Further requests get the status 429. The file of keys may set "
        "another rate for a key.  [default: no limit]",
    ),
    click.option(
        "--app-key",
        "app_keys",
        multiple=True,
        metavar="NAME=KEY",
        help="An API key of the scope admin and its name, like ai00's app_keys. May be given several times.",
    ),
    click.option(
        "--open",
        "open_to_all",
        is_flag=True,
        help="Without an API key, accept requests from every machine that reaches the address.",
    ),
    click.option(
        "--allowed-host",
        "allowed_hosts",
        multiple=True,
        metavar="NAME",
        help="A host name that clients may use for the server, besides localhost, the name in --host and IP addresses. "
        "Checked if there is no API key or if this option is given. May be given several times.",
    ),
    click.option(
        "--cors-origin",
        "cors_origins",
        multiple=True,
        callback=_parse_origins,
        metavar="ORIGIN",
        help="Let web pages of this origin call the server: one such as https://chat.example, localhost for pages of "
        "this machine, or * for any origin, which needs an API key. May be given several times.",
    ),
    click.option(
        "--tls-cert",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Serve HTTPS with the certificate in this file (PEM), which also holds any intermediate certificates.",
    ),
    click.option(
        "--tls-key",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The file of the certificate's key (PEM, not encrypted).  [default: the file of the certificate]",
    ),
    click.option(
        "--share-cache",
        is_flag=True,
        help="Share the cached states of prompts among all API keys; clients can then guess what others have asked.",
    ),
)

_LIMITS = Limits()


def _limit_option(name: str, bound: Bound) -> AddOption:
    option, default = "--" + name.replace("_", "-"), getattr(_LIMITS, name)
    if bound.unit == "bytes":
        return click.option(
            option,
            callback=parse_size,
            metavar="SIZE",
            default=size_in_words(default),
            show_default=True,
            help=bound.help,
        )
    return click.option(
        option, type=click.IntRange(min=0), metavar="NUMBER", default=default, show_default=True, help=bound.help
    )


limit_options = option_group(
    "Limits of a request", Limits, *(_limit_option(name, bound) for name, bound in BOUNDS.items())
)

# Options that bound connections: how many there are, and how long a client may take.

_CONNECTIONS = ConnectionSettings()


def seconds_option(name: str, default: float, meaning: str) -> AddOption:
    """Return a click option called `name` that takes a positive number of seconds. `meaning` is its help text."""
    return click.option(
        name,
        type=FiniteRange(min=0, min_open=True),
        metavar="SECONDS",
        default=default,
        show_default=True,
        help=meaning,
    )


connection_options = option_group(
    "Connections",
    ConnectionSettings,
    click.option(
        "--max-connections",
        type=click.IntRange(min=1),
        default=_CONNECTIONS.max_connections,
        show_default=True,
        help="The most open connections. A further one closes the connection that has waited longest for a request.",
    ),
    click.option(
        "--max-connections-per-client",
        "max_per_client",
        type=click.IntRange(min=1),
        default=_CONNECTIONS.max_per_client,
        show_default=True,
        help="The most open connections of one address.",
    ),
    seconds_option("--idle-seconds", _CONNECTIONS.idle_seconds, "How long a connection may wait for a request."),
    seconds_option(
        "--header-seconds", _CONNECTIONS.header_seconds, "How long the headers of a request may take to arrive."
    ),
    seconds_option(
        "--body-seconds",
        _CONNECTIONS.body_seconds,
        "How long the body of a request may take to arrive; every 4 kB that arrive extend the time by a second.",
    ),
    seconds_option(
        "--stall-seconds",
        _CONNECTIONS.stall_seconds,
        "Drop a client that has read less than 512 bytes a second of its answer for this long.",
    ),
)

_LOGS = LogSettings()

log_options = option_group(
    "Log",
    LogSettings,
    click.option(
        "--log-format",
        "format",
        type=click.Choice(get_args(LogFormat)),
        default=_LOGS.format,
        show_default=True,
        help="How the lines on standard error are written; json is one object a line.",
    ),
    click.option(
        "--log-level",
        "level",
        type=click.Choice(get_args(LogLevel)),
        default=_LOGS.level,
        show_default=True,
        help="The lowest level that is logged. Requests have the level info, except those of /health and /metrics: "
        "debug.",
    ),
    click.option(
        "--slow-seconds",
        type=FiniteRange(0, min_open=True),
        metavar="SECONDS",
        help="Log a request that takes longer as a warning.  [default: none]",
    ),
)

# The server's log is written to standard error by a thread, so that no request waits for its reader.

_STANDARD_ERROR = 2
_CAPACITY = 4096  # lines that wait to be written; those beyond are dropped
_CLOSING_SECONDS = 1.0  # for the lines that are left at the end
_DROPPED = "%d log lines were dropped, since standard error was not read"


class BackgroundHandler(logging.Handler):
    """A log handler that writes lines to a file descriptor, such as standard error, on a thread of its own.

    Lines that come while `capacity` others wait are dropped; their number is logged once lines are read again.
    """

    def __init__(self, descriptor: int, capacity: int = _CAPACITY) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes | None] = queue.Queue(capacity)  # None ends the thread
        self.dropped = 0  # since this was last logged
        self._thread = threading.Thread(target=self._write_lines, name="rnn-engine log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a log record to be written. Does not block: if the queue is full, the record is dropped and counted."""
        try:
            self._lines.put_nowait(self._encode(record))
        except queue.Full:
            self.dropped += 1
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Wait until all log lines are written, and end the thread. Wait at most two seconds if nothing reads them."""
        with suppress(queue.Full):
            self._lines.put(None, timeout=_CLOSING_SECONDS)
            self._thread.join(_CLOSING_SECONDS)
        super().close()

    def _write_lines(self) -> None:
        while (line := self._lines.get()) is not None:
            self._write(line)
            if dropped := self._take_dropped():
                self._write(self._encode(_dropped(dropped)))

    def _write(self, line: bytes) -> None:
        """Write an encoded log line to the file descriptor. An OSError is ignored.

        It uses `os.write`, since a thread that hangs in `sys.stderr` would keep the interpreter from ending.
        """
        rest = memoryview(line)
        with suppress(OSError):  # nothing reads any more
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]

    def _take_dropped(self) -> int:
        self.acquire()
        try:
            dropped, self.dropped = self.dropped, 0
        finally:
            self.release()
        return dropped

    def _encode(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="backslashreplace")


def _dropped(count: int) -> logging.LogRecord:
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, _DROPPED, (count,), None)


@contextmanager
def log_on_stderr(settings: LogSettings) -> Iterator[None]:
    """Return a context manager that writes the log to standard error, with the format and level of `settings`."""
    handler = BackgroundHandler(_STANDARD_ERROR)
    handler.setFormatter(make_formatter(settings.format))
    handler.addFilter(RequestIdFilter())
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(settings.level.upper())
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        handler.close()
