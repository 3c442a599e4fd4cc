"""Make the aiohttp application over an engine, and run it: load, listen, serve, drain, close."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import FrameType
from typing import TypeAlias

from aiohttp import web

from rnn_engine.interface import EngineInfo, EngineLike
from server.connections.acceptor import Acceptor
from server.connections.descriptors import fit_descriptors
from server.doors.addresses import check_listener
from server.http.context import ENGINE, HTTP_COUNTERS, LIFECYCLE, METRICS, SETTINGS, Lifecycle
from server.http.routing import add_routes
from server.middleware.admission import admission_middleware
from server.middleware.connections import connections_middleware
from server.middleware.errors import errors_middleware
from server.middleware.origins import header_setter, origins_middleware
from server.middleware.telemetry import set_telemetry_headers, telemetry_middleware
from server.routes import ALL_ROUTES
from server.settings import ServerSettings
from server.telemetry.http_counters import HttpCounters
from server.telemetry.metrics import Metrics, Readings

__all__ = ["ServerSettings", "make_app", "run"]

LoadEngine: TypeAlias = Callable[[], Awaitable[EngineLike]]
OnReady: TypeAlias = Callable[[EngineInfo, str], None]

_CLOSING_SECONDS = 2.0  # for the error answers of requests that still run after the drain
_log = logging.getLogger(__name__)


def make_app(engine: EngineLike, settings: ServerSettings) -> web.Application:
    """Return the application over `engine`, which closes the engine when it is cleaned up."""
    app = web.Application(
        client_max_size=settings.limits.max_body_bytes,
        middlewares=[
            telemetry_middleware,
            connections_middleware,
            errors_middleware,
            origins_middleware(settings),
            admission_middleware(settings),
        ],
    )
    app[ENGINE] = engine
    app[SETTINGS] = settings
    app[LIFECYCLE] = Lifecycle()
    app[HTTP_COUNTERS] = HttpCounters()
    app[METRICS] = Metrics(partial(Readings.of, engine, app[HTTP_COUNTERS]))
    app.on_response_prepare.extend((header_setter(settings), set_telemetry_headers))
    app.on_shutdown.append(_drain)
    app.cleanup_ctx.append(_close_engine)
    add_routes(app, ALL_ROUTES)
    return app


def run(load: LoadEngine, settings: ServerSettings, on_ready: OnReady) -> None:
    """Serve until Ctrl-C or SIGTERM, then drain and return; blocks. A second signal ends it without draining.

    The address is bound before `load` is called, so that OSError for a port in use comes at once, as does
    InvalidRequestError for an address that other machines reach where no API key is asked for. `on_ready` gets the
    engine's facts and the server's URL once it takes requests.
    """
    with _bind(settings.host, settings.port) as listener:
        if not settings.doors.keys and not settings.doors.open:
            check_listener(listener)
        asyncio.run(_serve(load, settings, on_ready, listener))


async def _serve(load: LoadEngine, settings: ServerSettings, on_ready: OnReady, listener: socket.socket) -> None:
    engine = await load()
    stop = asyncio.Event()
    with _signals_set(stop):
        async with serving(make_app(engine, settings), [listener], settings):
            on_ready(engine.info, _url(listener))
            await stop.wait()


@asynccontextmanager
async def serving(
    app: web.Application, listeners: Iterable[socket.socket], settings: ServerSettings
) -> AsyncIterator[None]:
    """Serve the connections of bound sockets while the block runs; then drain, and clean the application up."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=_CLOSING_SECONDS)
    await runner.setup()
    assert runner.server is not None
    acceptor = Acceptor(runner.server, fit_descriptors(settings.connections))
    try:
        for listener in listeners:
            acceptor.listen(listener)
        yield
    finally:
        await acceptor.close()
        await runner.cleanup()


async def _drain(app: web.Application) -> None:
    lifecycle, seconds = app[LIFECYCLE], app[SETTINGS].drain_seconds
    if lifecycle.active:
        _log.info("waiting up to %g s for %d running request(s)", seconds, lifecycle.active)
    if not await lifecycle.drain(seconds):
        _log.warning("ending %d request(s) that still run", lifecycle.active)
        await app[ENGINE].close()


async def _close_engine(app: web.Application) -> AsyncIterator[None]:
    yield
    await app[ENGINE].close()


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the address but takes no connections yet."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    try:
        if hasattr(signal, "SIGHUP"):  # elsewhere than on Windows, where the option would share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> OSError:
    return OSError(f"can't listen on {host} port {port}: {error.strerror}")


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def _signals_set(stop: asyncio.Event) -> Iterator[None]:
    """Have the first Ctrl-C or SIGTERM set `stop`; restore the earlier handlers for the next one."""
    loop = asyncio.get_running_loop()
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        restore()
        loop.call_soon_threadsafe(stop.set)

    for number in previous:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()
