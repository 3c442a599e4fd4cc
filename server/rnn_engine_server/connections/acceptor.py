"""Accept connections, bound their number, and recover if the system has no room for more.

asyncio's own servers, which aiohttp uses, do not serve here: they report a client's address only after its TLS
handshake, and nothing of a handshake that fails, so the open connections could not be counted.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import web

from rnn_engine.errors import OverloadedError
from rnn_engine_server.connections.connection import Connection, ConnectionCounters, encode_refusal
from rnn_engine_server.core.errors import describe
from rnn_engine_server.core.settings import ConnectionSettings

_RETRY_SECONDS = 1.0  # after the system refused to accept
_QUIET_SECONDS = 10.0  # between two log lines of `_Complaints`
_BACKLOG = 128
_UNSENT_BYTES = 16 * 2**10  # of an answer that the system buffers
_log = logging.getLogger(__name__)


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
