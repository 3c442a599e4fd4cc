"""The connections of clients, with limits on their number and on how long a client may take.

aiohttp itself limits only the pause between two requests. asyncio's own servers, which aiohttp uses, do not serve here:
they report a client's address only after its TLS handshake, and nothing of a handshake that fails, so the open
connections could not be counted.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import re
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Any, Literal, TypeAlias, get_args

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from rnn_engine.errors import OverloadedError
from rnn_engine_server.core.bodies import to_json
from rnn_engine_server.core.errors import Failure, describe, describe_http, openai_error
from rnn_engine_server.core.settings import ConnectionSettings

CloseReason: TypeAlias = Literal["refused", "made_room", "idle", "slow_head", "slow_body", "stalled"]
"""Why the server closed or refused a connection: there were too many, a new one needed its place, or its client sent no
request, sent one too slowly or did not read its answer.
"""


@dataclass(slots=True)
class ConnectionCounters:
    """The number of open connections, and counts of those that the server closed, by reason. For the event loop."""

    open: int = 0  # at this moment
    closed: dict[CloseReason, int] = field(default_factory=lambda: dict.fromkeys(get_args(CloseReason), 0))


CONNECTIONS = web.AppKey("connections", ConnectionCounters)

BODY_RATE = 4096
"""The least rate at which a client must send a body, in bytes a second."""

ANSWER_RATE = 512
"""The least rate at which a client must read an answer that waits for it, in bytes a second."""

_SENT_BYTES = re.compile(r":? b?['\"].*")  # the part of a request in aiohttp's errors: it may hold an API key
_UNTAKEN_BYTES = 16 * 2**10  # of an answer; beyond it the server checks that its client reads
_PIECE_BYTES = 2**16  # of a large body; the transport has taken one before it gets the next
_NEVER = 1e8  # seconds: `Connection` itself closes what is idle, but not in the middle of a request's head
_log = logging.getLogger(__name__)


def encode_refusal(failure: Failure) -> bytes:
    """Return the bytes of a whole HTTP answer that reports `failure` to a client whose request is not read."""
    body = to_json(failure.body)
    head = {
        "Content-Type": "application/json; charset=utf-8",
        "Content-Length": str(len(body)),
        **failure.headers,
        "Connection": "close",
    }
    lines = [f"HTTP/1.1 {failure.status} {HTTPStatus(failure.status).phrase}", *map(": ".join, head.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Connection(web.RequestHandler):
    """Serves the requests of one connection, one after the other, and closes it if a time limit is exceeded.

    It waits for a request, reads its head and its body, and writes the answer. Each of these has a time limit; beyond
    it the connection is closed, with an answer of status 408 if a request has begun. `connections_middleware` calls
    `begin` for every request before its body is read. Errors that aiohttp finds itself are answered as JSON.
    """

    def __init__(
        self,
        server: web.Server,
        settings: ConnectionSettings,
        counters: ConnectionCounters,
        on_lost: Callable[[Connection], None],
    ) -> None:
        """Make the handler of a new connection. `on_lost` is called once, when the connection is closed."""
        loop = asyncio.get_running_loop()
        super().__init__(server, loop=loop, keepalive_timeout=_NEVER, auto_decompress=False)
        self._settings = settings
        self._counters = counters
        self._on_lost = on_lost
        self._clock = loop
        self._request: web.BaseRequest | None = None
        self._head_begun = False
        self._timer: asyncio.TimerHandle | None = None  # of what the client has to send
        self._stall_timer: asyncio.TimerHandle | None = None
        self._body_deadline = 0.0
        self.waiting_since: float | None = None  # loop time; None while a request runs

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.transport is not None:
            self.transport.set_write_buffer_limits(high=_UNTAKEN_BYTES)
        self._wait()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._set_timer(None)
        self._stop_stall_timer()
        super().connection_lost(exc)
        self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._request is not None:
            latest = self._clock.time() + self._settings.body_seconds  # however much came quickly
            self._body_deadline = min(self._body_deadline + len(data) / BODY_RATE, latest)
        elif data and not self._head_begun:
            self._head_begun = True
            self._set_timer(self._settings.header_seconds, self._end_head)

    def begin(self, request: web.BaseRequest) -> None:
        """Start the time limit for a request's body, after its head has arrived."""
        self._request = request
        self.waiting_since = None
        if request.content.is_eof():
            self._set_timer(None)
        else:
            self._body_deadline = self._clock.time() + self._settings.body_seconds
            self._set_timer(self._settings.body_seconds, self._check_body)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the rest of an answer, and prepare the connection for the next request."""
        self._set_timer(None)
        if isinstance(resp, web.HTTPException):
            resp = describe_http(resp, resp.text or resp.reason).response(openai_error)
        try:
            if isinstance(resp, web.Response) and not resp.prepared and request.method != hdrs.METH_HEAD:
                await self._send_in_pieces(request, resp)
            return await super().finish_response(request, resp, start_time)
        finally:
            if request.content.exception() is not None:  # the start of the next request is unknown
                self.force_close()
            self._wait()

    async def _send_in_pieces(self, request: web.BaseRequest, response: web.Response) -> None:
        """Send a large body as fast as its client reads it, so that many slow clients can share the same bytes.

        aiohttp passes a whole body to the transport, which copies what the system does not take.
        """
        body = response.body
        if not isinstance(body, bytes | bytearray) or len(body) <= _PIECE_BYTES:
            return
        await response.prepare(request)
        response.body = None
        pieces = memoryview(body)
        for start in range(0, len(body), _PIECE_BYTES):
            await response.write(pieces[start : start + _PIECE_BYTES])

    def log_access(self, request: web.BaseRequest, response: web.StreamResponse, time: float | None) -> None:
        """Do nothing: the telemetry middleware logs requests, not aiohttp."""

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Return the error answer to bytes that are no HTTP request, or to an exception that no middleware has caught.

        Raises ConnectionError if an answer has begun.
        """
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun; it can't become an error")
        if status < 500:
            text = _SENT_BYTES.sub("", " ".join((message or "").split()))
            _log.info("%s: not an HTTP request: %s", request.remote, text)
            failure = Failure(status, f"not an HTTP request: {text}", "invalid_request_error", "bad_request")
        else:
            failure = describe(exc if isinstance(exc, Exception) else RuntimeError(message))
        response = failure.response(openai_error)
        response.force_close()
        return response

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_answer()

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def drop(self, reason: CloseReason) -> None:
        """Close the connection at once. Unsent bytes are lost."""
        if self.transport is not None:
            self._counters.closed[reason] += 1
            self.transport.abort()

    def _wait(self) -> None:
        self._request = None
        self._head_begun = False
        self.waiting_since = self._clock.time()
        self._set_timer(self._settings.idle_seconds, partial(self.drop, "idle"))

    def _end_head(self) -> None:
        """Answer 408 to a client that has not sent the head of a request in time, and close."""
        if self.transport is not None:
            self._counters.closed["slow_head"] += 1
            message = f"the head of the request took longer than {self._settings.header_seconds:g} s"
            self.transport.write(encode_refusal(Failure(408, message, "invalid_request_error", "request_timeout")))
            self.transport.close()

    def _check_body(self) -> None:
        """Fail the read of a request's body with status 408 if its time limit is exceeded, else set the timer again."""
        request, transport = self._request, self.transport
        if request is None or transport is None or request.content.is_eof():
            return
        left = self._body_deadline - self._clock.time()
        if not transport.is_reading():
            left = self._settings.body_seconds  # the server is behind and not the client
        if left > 0:
            self._set_timer(left, self._check_body)
            return
        self._counters.closed["slow_body"] += 1
        text = (
            f"the body came too slowly; expected it in {self._settings.body_seconds:g} s, plus a second for "
            f"each {BODY_RATE} bytes"
        )
        request.content.set_exception(web.HTTPRequestTimeout(text=text, headers={hdrs.CONNECTION: "close"}))

    def _watch_answer(self) -> None:
        """Close the connection if its client reads too little of the answer in the next `stall_seconds`."""
        transport = self.transport
        if transport is None:
            return
        seconds = self._settings.stall_seconds
        writer = None if self._request is None else self._request.writer

        def bytes_taken() -> int:
            return (0 if writer is None else writer.output_size) - transport.get_write_buffer_size()

        before = bytes_taken()

        def check() -> None:
            if bytes_taken() - before >= ANSWER_RATE * seconds:
                self._watch_answer()
                return
            _log.info("%s: the client no longer reads its answer; the connection is closed", self._address())
            self.drop("stalled")

        self._stall_timer = self._clock.call_later(seconds, check)

    def _address(self) -> str:
        peer = None if self.transport is None else self.transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else "a Unix socket"

    def _set_timer(self, seconds: float | None, action: Callable[[], None] = lambda: None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._clock.call_later(seconds, action)

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


@web.middleware
async def connections_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Start the time limit in which a client must send the body of its request.

    This is the first middleware after that of telemetry.
    """
    if isinstance(request.protocol, Connection):  # the tests' server has connections of aiohttp's own
        request.protocol.begin(request)
    return await handler(request)


_RETRY_SECONDS = 1.0  # after the system refused to accept
_QUIET_SECONDS = 10.0  # between two log lines of `_Complaints`
_BACKLOG = 128
_UNSENT_BYTES = 16 * 2**10  # of an answer that the system buffers


class Acceptor:
    """Accepts the connections of one or more listening sockets and passes them to aiohttp's server.

    A new connection beyond the bound closes the one that has been idle longest. If none is idle, the new one is
    refused. For one event loop.
    """

    def __init__(
        self,
        server: web.Server,
        settings: ConnectionSettings,
        counters: ConnectionCounters,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._counters = counters
        self._tls = tls
        self._make_connection = partial(Connection, server, settings, counters, self._forget)
        self._connections: dict[Connection, str] = {}  # -> the client's address
        self._counts: Counter[str] = Counter()  # connections of each client
        self._tasks: set[asyncio.Task[None]] = set()
        self._complaints = _Complaints()

    def listen(self, listener: socket.socket) -> None:
        """Accept connections from a bound socket. `close` closes the socket, too."""
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self._start(self._accept(listener))

    async def close(self) -> None:
        """Stop accepting connections. Open connections stay open."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                try:
                    accepted, address = await loop.sock_accept(listener)
                except ConnectionError:
                    continue  # the client has left
                except OSError as error:
                    self._complaints.log(f"can't accept connections: {error.strerror}")
                    self._close_longest_waiting(self._connections)
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                try:
                    self._admit(accepted, str(address[0]) if isinstance(address, tuple) else "")
                except Exception:
                    _log.exception("a connection was not accepted")
                    accepted.close()
                await asyncio.sleep(0)  # `sock_accept` does not yield if the next client waits already

    def _admit(self, accepted: socket.socket, client: str) -> None:
        try:
            self._make_room(client)
        except OverloadedError as error:
            self._complaints.log(str(error))
            self._counters.closed["refused"] += 1
            with accepted, suppress(OSError):
                if self._tls is None:
                    accepted.setblocking(False)
                    accepted.send(encode_refusal(describe(error)))
            return
        connection = self._make_connection()
        self._connections[connection] = client
        self._counts[client] += 1
        self._counters.open += 1
        self._start(self._set_up(connection, accepted))

    def _make_room(self, client: str) -> None:
        """Make room for a new connection: close the longest idle one if a bound is reached.

        Raises OverloadedError if no connection is idle.
        """
        limits = self._settings
        if client and self._counts[client] >= limits.max_per_client:
            own = [connection for connection, owner in self._connections.items() if owner == client]
            if not self._close_longest_waiting(own):
                raise OverloadedError(f"{client} has {limits.max_per_client} connections, the most for one client", 1)
        elif len(self._connections) >= limits.max_connections and not self._close_longest_waiting(self._connections):
            raise OverloadedError(f"{limits.max_connections} connections are open, the most for this server", 1)

    def _close_longest_waiting(self, connections: Iterable[Connection]) -> bool:
        """Close the idle one of `connections` that has waited longest for a request. Return False if none is idle."""
        waiting = [(one.waiting_since, id(one), one) for one in connections if one.waiting_since is not None]
        if not waiting:
            return False
        _, _, longest = min(waiting)
        self._forget(longest)
        longest.drop("made_room")
        return True

    async def _set_up(self, connection: Connection, accepted: socket.socket) -> None:
        """Make the transport of an accepted socket. With TLS, wait for the client's handshake."""
        timeout = None if self._tls is None else self._settings.header_seconds
        loop = asyncio.get_running_loop()
        try:
            accepted.setblocking(False)
            if sys.platform != "win32":
                with suppress(OSError):  # a Unix socket has no such option
                    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
            await loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=timeout
            )
        except BaseException as error:
            self._forget(connection)
            accepted.close()
            if not isinstance(error, OSError):
                raise
            _log.debug("a connection was not set up: %s", error)

    def _forget(self, connection: Connection) -> None:
        """Remove a closed or closing connection from the counts of open ones. Further calls for it do nothing."""
        client = self._connections.pop(connection, None)
        if client is not None:
            self._counters.open -= 1
            self._counts[client] -= 1
            if self._counts[client] == 0:
                del self._counts[client]

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Complaints:
    """A log that limits repeated warnings to one in `_QUIET_SECONDS`, which says how many were left out before."""

    def __init__(self) -> None:
        self._quiet_until = 0.0
        self._left_out = 0

    def log(self, message: str) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._quiet_until:
            self._left_out += 1
            return
        more = f" ({self._left_out} lines like this were left out)" if self._left_out else ""
        _log.warning("%s%s", message, more)
        self._quiet_until, self._left_out = now + _QUIET_SECONDS, 0


_ENOUGH = 65536  # open files, if the system has no limit


def fit_descriptors(settings: ConnectionSettings) -> ConnectionSettings:
    """Raise the process's limit on open files, and return `settings` with a `max_connections` that fits the limit.

    At most half of the files may be connections.
    """
    limit = raise_descriptor_limit()
    if limit is None or limit // 2 >= settings.max_connections:
        return settings
    most = limit // 2
    _log.warning(
        "allowing %d connections at most, not %d: the process may open only %d files",
        most,
        settings.max_connections,
        limit,
    )
    return replace(settings, max_connections=most)


def raise_descriptor_limit() -> int | None:
    """Raise the limit of open files as far as the system allows, and return it; None without a limit (Windows)."""
    try:
        resource = importlib.import_module("resource")
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else int(soft)
