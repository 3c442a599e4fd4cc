"""Build the aiohttp application over one engine or several, and run it from loading models to shutdown."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cache, partial
from typing import TypeAlias

from aiohttp import web

from rnn_engine.errors import EngineClosedError
from rnn_engine.interface import EngineInfo, EngineLike
from rnn_engine_server.apis.engine.collections import COLLECTIONS
from rnn_engine_server.apis.koboldcpp import GENERATIONS, Generations
from rnn_engine_server.apis.openai.background import BACKGROUND, BackgroundRunner
from rnn_engine_server.apis.openai.batches import BATCHES, RUNNER
from rnn_engine_server.apis.openai.conversations import STORE
from rnn_engine_server.apis.openai.files import FILES
from rnn_engine_server.apis.openai.fine_tuning import TUNING_RUNNER, TUNINGS
from rnn_engine_server.apis.routes import ALL_ROUTES
from rnn_engine_server.auth.admission import (
    admission_middleware,
    check_listener,
    clients_middleware,
    header_setter,
    origins_middleware,
)
from rnn_engine_server.auth.engine import RATE_LIMITER
from rnn_engine_server.auth.keys import ANYONE
from rnn_engine_server.auth.quotas import RateLimiter
from rnn_engine_server.connections import (
    CONNECTIONS,
    Acceptor,
    ConnectionCounters,
    connections_middleware,
    fit_descriptors,
)
from rnn_engine_server.core.bodies import LOGGED
from rnn_engine_server.core.call import BUDGET, WORKERS, MemoryBudget, Workers
from rnn_engine_server.core.kept import MOST_SLOT_BYTES, MOST_SLOT_PROMPTS, SLOT_PROMPTS, BoundedStore, KeptUsage
from rnn_engine_server.core.performing import InnerCalls, respond, set_call_headers, telemetry_middleware
from rnn_engine_server.core.process import (
    end_process,
    notify,
    open_listeners,
    responsive_interpreter,
    stop_signals,
    url_of,
)
from rnn_engine_server.core.routing import (
    LIFECYCLE,
    SETTINGS,
    Lifecycle,
    Route,
    add_routes,
    errors_middleware,
    make_router,
)
from rnn_engine_server.core.settings import ServerSettings
from rnn_engine_server.core.tasks import cancel_tasks
from rnn_engine_server.jobs.runner import BatchRunner
from rnn_engine_server.jobs.tuning_runner import TuningRunner
from rnn_engine_server.models.orders import LoadEngine, LoadOrder
from rnn_engine_server.models.registry import MODELS, ModelRegistry
from rnn_engine_server.openapi.document import API_DOCUMENTS, KeptDocuments, make_document
from rnn_engine_server.store.folder import Store
from rnn_engine_server.telemetry.metrics import METRICS, Metrics, Readings
from rnn_engine_server.telemetry.records import HTTP_COUNTERS, HttpCounters
from rnn_engine_states.documents import CollectionLimits, DocumentStore


def kept_usage(app: web.Application) -> dict[str, KeptUsage]:
    """Return the usage of each store of clients' values, by the store's name. For any thread but the event loop's."""
    count, num_bytes, held, vector_bytes, evictions = app[COLLECTIONS].usage()
    return {
        "conversations": app[STORE].history_usage,
        "slot_prompts": app[SLOT_PROMPTS].usage,
        "collections": KeptUsage(count, num_bytes, 0),
        "collection_vectors": KeptUsage(held, vector_bytes, evictions),
    }


__all__ = ["BATCHES", "RUNNER", "STORE", "LoadEngine", "LoadOrder", "ModelRegistry", "make_app", "run"]

Served: TypeAlias = EngineLike | ModelRegistry
"""What a server serves: one engine, or the models of a registry."""

LoadServed: TypeAlias = Callable[[], Awaitable[Served]]
OnReady: TypeAlias = Callable[[Sequence[EngineInfo], str], None]

_CLOSING_SECONDS = 2.0  # for the error answers of requests that still run after the drain
_LOOK_SECONDS = 1.0  # between two checks for an engine that has failed
_MOST_IDLE_LOOK_SECONDS = 5.0  # between two checks for models that no request uses
_log = logging.getLogger(__name__)


@cache
def _router() -> tuple[web.UrlDispatcher, dict[web.AbstractRoute, Route]]:
    """Return the routes of every application, which take most of the time to make one."""
    return make_router(ALL_ROUTES, respond)


def make_app(
    served: Served, settings: ServerSettings, collections: DocumentStore | None = None, store: Store | None = None
) -> web.Application:
    """Build the application that serves one engine or several; its clean-up closes all of the arguments.

    Without `collections` or `store`, they are opened as `settings` say.
    """
    models = served if isinstance(served, ModelRegistry) else ModelRegistry.of(served)
    app = web.Application(
        middlewares=[
            telemetry_middleware,
            connections_middleware,
            errors_middleware,
            origins_middleware(settings),
            admission_middleware(settings),
            clients_middleware(settings.limits.max_client_requests),
        ],
        handler_args={"auto_decompress": False},
    )
    app[MODELS] = models
    app[SETTINGS] = settings
    app[LIFECYCLE] = Lifecycle()
    document = partial(make_document, ALL_ROUTES, asks_for_key=bool(settings.auth.keys), strict=settings.strict)
    app[API_DOCUMENTS] = KeptDocuments(document)
    app[SLOT_PROMPTS] = BoundedStore(MOST_SLOT_PROMPTS, MOST_SLOT_BYTES)
    app[COLLECTIONS] = collections or open_collections(settings)
    store = store or Store(settings.job_folder, settings.limits)
    app[STORE] = store
    app[FILES], app[BATCHES], app[TUNINGS] = store.files, store.batches, store.tunings
    calls = InnerCalls(app)
    find_principal = ({key.principal.name: key.principal for key in settings.auth.keys} or {ANYONE.name: ANYONE}).get
    app[RUNNER] = BatchRunner(
        app[BATCHES],
        calls,
        find_principal,
        lambda: sum(info.num_slots for info in models.infos()),
        settings.limits,
        strict=settings.strict,
    )
    app[BACKGROUND] = BackgroundRunner(
        store.responses, calls, find_principal, lambda: app[LIFECYCLE].closing, settings.limits.max_request_seconds
    )
    app[TUNING_RUNNER] = TuningRunner(app[TUNINGS], models, find_principal, settings.loading, settings.tuning_share)
    app[GENERATIONS] = Generations()
    app[LOGGED] = set()
    app[WORKERS] = Workers()
    app[BUDGET] = MemoryBudget(settings.limits.max_held_bytes)
    app[HTTP_COUNTERS] = HttpCounters()
    app[RATE_LIMITER] = RateLimiter(app[HTTP_COUNTERS].refused_by_quota)
    app[CONNECTIONS] = ConnectionCounters()
    counters = app[HTTP_COUNTERS], app[CONNECTIONS], app[BUDGET]
    app[METRICS] = Metrics(partial(Readings.of, models, *counters, partial(kept_usage, app), store.readings))
    app.on_response_prepare.extend((header_setter(settings), set_call_headers))
    app.on_shutdown.append(_drain)
    app.cleanup_ctx.append(_run_parts)
    add_routes(app, *_router())
    return app


def run(load: LoadServed, settings: ServerSettings, on_ready: OnReady) -> None:
    """Run the server until a signal to stop, then wait for the running requests and return. Blocks.

    See `stop_signals` for the signals. A signal that comes while `load` runs ends the process at once with code 0,
    since the loading thread can't be ended. The address is bound before `load` is called, so that OSError for a port in
    use comes at once. StateError comes as early, for a folder of collections or jobs that can't be used. So does
    InvalidRequestError: for an address that other machines reach although no API key is required, and for an unusable
    certificate. `on_ready` is called once the server takes requests. It gets the models' facts, those of the default
    model first, and the server's URL.
    """
    tls = None if settings.auth.tls is None else settings.auth.tls.make_context()
    with open_listeners(settings) as listeners:
        for listener in listeners:
            check_listener(listener, settings.auth)
        make = partial(
            make_app,
            settings=settings,
            collections=open_collections(settings),
            store=Store(settings.job_folder, settings.limits),
        )
        asyncio.run(_serve(load, make, settings, on_ready, listeners, tls))


async def _serve(
    load: LoadServed,
    make: Callable[[Served], web.Application],
    settings: ServerSettings,
    on_ready: OnReady,
    listeners: Sequence[socket.socket],
    tls: ssl.SSLContext | None,
) -> None:
    with stop_signals() as stop:
        app = make(await _load_unless_stopped(load, stop))
        models, lifecycle = app[MODELS], app[LIFECYCLE]
        async with responsive_interpreter(lambda: not lifecycle.active), serving(app, listeners, settings, tls):
            on_ready(models.infos(), url_of(listeners[0], "http" if tls is None else "https"))
            notify("READY=1")
            await _stop_or_failure(models, stop, settings)
            notify("STOPPING=1")


async def _stop_or_failure(models: ModelRegistry, stop: asyncio.Event, settings: ServerSettings) -> None:
    """Wait until the server must stop, and return when the event `stop` is set.

    Raises EngineClosedError if an engine fails for good and `settings.exit_on_failure` is set.
    """
    while not stop.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _LOOK_SECONDS if settings.exit_on_failure else None)
        health = models.health()
        if settings.exit_on_failure and health.status == "failed":
            raise EngineClosedError(f"the engine has failed for good: {health.reason}")


async def _load_unless_stopped(load: LoadServed, stop: asyncio.Event) -> Served:
    loading, stopping = asyncio.ensure_future(load()), asyncio.create_task(stop.wait())
    await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if stop.is_set():
        loading.cancel()
        await asyncio.wait((loading,))
        end_process()
    return loading.result()


@asynccontextmanager
async def serving(
    app: web.Application,
    listeners: Iterable[socket.socket],
    settings: ServerSettings,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[None]:
    """Serve the connections of bound sockets during a `with` block, then drain and clean up the application.

    Connections are accepted until all requests have ended, so that a probe is answered that the server is closing.
    """
    # a client that leaves cancels its handler, which frees the slots of its requests
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=_CLOSING_SECONDS)
    await runner.setup()
    assert runner.server is not None
    acceptor = Acceptor(runner.server, fit_descriptors(settings.connections), app[CONNECTIONS], tls)
    try:
        for listener in listeners:
            acceptor.listen(listener)
        yield
    finally:
        await _drain(app)
        await acceptor.close()
        await runner.cleanup()


async def _drain(app: web.Application) -> None:
    """Reject new requests and wait for the running ones. End those that still run after the time limit.

    A second call does nothing.
    """
    lifecycle, seconds = app[LIFECYCLE], app[SETTINGS].drain_seconds
    if lifecycle.closing:
        return
    if lifecycle.active:
        _log.info("waiting up to %g s for %d running request(s)", seconds, lifecycle.active)
    if not await lifecycle.drain(seconds):
        _log.warning("ending %d request(s) that still run", lifecycle.active)
        await app[MODELS].close()


def open_collections(settings: ServerSettings) -> DocumentStore:
    """Open the collections of documents, in their folder if there is one. Raises StateError if it can't be used."""
    names = ("max_collections", "max_collection_documents", "max_collection_bytes", "max_all_collection_bytes")
    limits = CollectionLimits(*(getattr(settings.limits, name) for name in names))
    return DocumentStore(settings.collection_folder, limits)


async def _run_parts(app: web.Application) -> AsyncIterator[None]:
    """Run what lives as long as the application, and at its end close all of it, the last part first."""
    idle_seconds = app[SETTINGS].idle_unload_seconds
    async with AsyncExitStack() as stack:
        stack.callback(app[COLLECTIONS].close)
        stack.push_async_callback(asyncio.to_thread, app[STORE].close)
        stack.push_async_callback(app[MODELS].close)
        stack.callback(app[WORKERS].close)
        for close in (app[RUNNER].close, app[BACKGROUND].close, app[TUNING_RUNNER].close):
            stack.push_async_callback(close)
        if app[STORE].persistent:  # a temporary folder is made when it is first needed
            await app[RUNNER].wake_all()
            await app[BACKGROUND].start_all()
            app[TUNING_RUNNER].wake()
        if idle_seconds is not None:
            stack.push_async_callback(cancel_tasks, asyncio.create_task(_keep_unloading(app[MODELS], idle_seconds)))
        yield


async def _keep_unloading(models: ModelRegistry, seconds: float) -> None:
    while True:
        await asyncio.sleep(min(seconds / 2, _MOST_IDLE_LOOK_SECONDS))
        await models.unload_idle(seconds)
